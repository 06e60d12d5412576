// Tests of server/durability/images/image_file.h and of its format. Power loss is in
// image_crash_test.cc.
#include "server/durability/images/image_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/bytes/crc32c.h"
#include "common/faults/failpoint.h"
#include "server/durability/images/image_format.h"
#include "tests/server/durability/images/image_testing.h"

namespace ballast::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Operation = MemoryDisk::Operation;

// --- Bytes ---

ImageHeader SmallHeader() {
  return {.job = 0x0123456789abcdef,
          .server = 2,
          .offset = 4096,
          .version = 42,
          .serial = 9,
          .flushed_serial = 8,
          .shape = {.extent = 7, .elements = 20000, .array_count = 1},
          .optimizer = 1,
          .formula_id = 5,
          .tile_elements = 64,
          .chunk_crcs = {0x11223344, 0x55667788}};
}

std::string Hex(absl::string_view bytes, size_t begin, size_t end) {
  return absl::BytesToHexString(bytes.substr(begin, end - begin));
}

std::string Encoded(const ImageHeader& header) {
  std::string bytes(ImageHeaderBytes(header.shape), 'x');
  EncodeImageHeader(header, bytes.data());
  return bytes;
}

void Seal(std::string* header) {
  const uint32_t crc = Crc32c(header->data(), header->size() - 4);
  std::memcpy(header->data() + header->size() - 4, &crc, sizeof(crc));
}

// As docs/formats/images.md shows them.
TEST(ImageFormat, BytesOfTheFilePageStayAsTheyAre) {
  std::string page(kPageBytes, 'x');
  ImageOptions options = SmallImages();
  options.job = 0x0123456789abcdef;
  EncodeImageFilePage(options, page.data());
  EXPECT_EQ(Hex(page, 0, 36),
            "42414c4c534c460a"  // BALLSLF\n
            "02000000"          // version
            "02000000"          // server
            "efcdab8967452301"  // job
            "01000000"          // optimizer
            "05000000"          // formula
            "40000000");        // elements of a tile
  EXPECT_EQ(Hex(page, 36, kPageBytes - 4), std::string(2 * (kPageBytes - 4 - 36), '0'));
  EXPECT_EQ(Hex(page, kPageBytes - 4, kPageBytes), "7e51863c");
}

TEST(ImageFormat, BytesOfVersionTwoStayAsTheyAre) {
  const std::string image = Encoded(SmallHeader());
  ASSERT_EQ(image.size(), kPageBytes);
  EXPECT_EQ(Hex(image, 0, 104),
            "42414c4c534c540a"  // BALLSLT\n
            "02000000"          // version
            "02000000"          // server
            "efcdab8967452301"  // job
            "0010000000000000"  // offset
            "2a00000000000000"  // version of the state
            "07000000"          // extent
            "204e0000"          // elements
            "01000000"          // arrays
            "01000000"          // optimizer
            "05000000"          // formula
            "40000000"          // elements of a tile
            "8038010000000000"  // payload bytes
            "02000000"          // chunks
            "00000000"          // reserved
            "0900000000000000"  // serial
            "0800000000000000"  // flushed serial
            "44332211"          // checksum of the first chunk
            "88776655");        // checksum of the second
  EXPECT_EQ(Hex(image, 104, kPageBytes - 4), std::string(2 * (kPageBytes - 4 - 104), '0'));
  EXPECT_EQ(Hex(image, kPageBytes - 4, kPageBytes), "80f4c947");
  EXPECT_EQ(ImageChunkCrc(SmallHeader(), 1, "abcd", 4), 0xcb57cfbbu);
}

TEST(ImageFormat, AChunksChecksumStartsFromTheHeadersFieldsAndItsIndex) {
  std::string identity = Encoded(SmallHeader()).substr(0, 96);
  identity[76] = 1;
  EXPECT_EQ(ImageChunkCrc(SmallHeader(), 1, "abcd", 4),
            Crc32c("abcd", 4, Crc32c(identity.data(), identity.size())));
}

TEST(ImageFormat, LargeExtentsHaveHeadersOfSeveralPages) {
  // AMSGrad with 4 Mi elements: 64 MiB in 1024 chunks.
  const ImageShape large{.extent = 1, .elements = 4 << 20, .array_count = 4};
  EXPECT_EQ(ImageHeaderBytes(large), 2 * kPageBytes);
  ImageHeader header = SmallHeader();
  header.shape = large;
  header.chunk_crcs.assign(1024, 7);
  const auto again = DecodeImageHeader(large, Encoded(header).data());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Encoded(*again), Encoded(header));
}

TEST(ImageFormat, ASingleChangedBitAnywhereIsDataLoss) {
  const std::string whole = Encoded(SmallHeader());
  std::string file_page(kPageBytes, 'x');
  EncodeImageFilePage(SmallImages(), file_page.data());
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    ASSERT_TRUE(absl::IsDataLoss(DecodeImageHeader(SmallHeader().shape, changed.data()).status()));
    changed = file_page;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    ASSERT_TRUE(absl::IsDataLoss(DecodeImageFilePage(changed.data()).status()));
  }
}

TEST(ImageFormat, RandomFieldsUnderARightChecksumAreRefusedOrMeanThemselves) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = Encoded(SmallHeader());
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      bytes[8 + random() % 88] = static_cast<char>(random());
    }
    Seal(&bytes);
    const auto header = DecodeImageHeader(SmallHeader().shape, bytes.data());
    if (header.ok()) {
      ASSERT_EQ(Encoded(*header), bytes);
    }
  }
}

// --- The file ---

class ImageFileTest : public ::testing::Test {
 protected:
  void Create(const std::vector<ImageShape>& shapes = SmallShapes()) {
    auto images = ImageFile::Create(&disk_, kImagePath, SmallImages(), shapes);
    ASSERT_TRUE(images.ok()) << images.status();
    images_ = *std::move(images);
  }
  absl::Status Open(const ImageOptions& options = SmallImages(),
                    const std::vector<ImageShape>& shapes = SmallShapes()) {
    images_.reset();
    auto images = ImageFile::Open(&disk_, kImagePath, options, shapes);
    if (images.ok()) images_ = *std::move(images);
    return images.status();
  }
  void Reopen() {
    const absl::Status status = Open();
    ASSERT_TRUE(status.ok()) << status;
  }
  absl::Status WriteAndSync(const ImageShape& shape, uint64_t version) {
    absl::Status status = WriteState(images_.get(), shape, version);
    return status.ok() ? images_->Sync() : status;
  }
  void ExpectState(const ImageShape& shape, uint64_t version) {
    const auto state = ReadState(images_.get(), shape, version);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(*state, Payload(shape, version));
  }

  std::string FileBytes() {
    auto file = disk_.Open(kImagePath, {.mode = OpenMode::kRead});
    std::string bytes(*(*file)->Size(), '\0');
    EXPECT_TRUE((*file)->ReadAt(0, bytes.size(), bytes.data()).ok());
    return bytes;
  }

  MemoryDisk disk_;
  std::unique_ptr<ImageFile> images_;
  const std::vector<ImageShape> shapes_ = SmallShapes();
};

TEST_F(ImageFileTest, ANewFileHasItsFullSizeAndEmptyPlaces) {
  Create();
  for (int restarts = 0; restarts < 2; ++restarts) {
    for (const ImageShape& shape : shapes_) EXPECT_THAT(images_->Versions(shape.extent), IsEmpty());
    auto file = disk_.Open(kImagePath, {.mode = OpenMode::kRead});
    EXPECT_EQ(*(*file)->Size(), ImageFile::DiskBytes(shapes_));
    Reopen();
  }
  EXPECT_THAT(images_->Versions(12345), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(ReadState(images_.get(), shapes_[0], 1).status()));
}

TEST_F(ImageFileTest, ANewFileSurvivesPowerLoss) {
  Create();
  disk_.Crash([] { return 1; });
  Reopen();
}

TEST_F(ImageFileTest, TheTwoNewestVersionsStay) {
  Create();
  for (uint64_t version = 1; version <= 9; ++version) {
    for (const ImageShape& shape : shapes_) ASSERT_TRUE(WriteAndSync(shape, version * 3).ok());
    if (version % 2 == 0) Reopen();
    for (const ImageShape& shape : shapes_) {
      if (version == 1) {
        EXPECT_THAT(images_->Versions(shape.extent), ElementsAre(3));
      } else {
        EXPECT_THAT(images_->Versions(shape.extent), ElementsAre(version * 3, version * 3 - 3));
        ExpectState(shape, version * 3 - 3);
      }
      ExpectState(shape, version * 3);
    }
  }
}

// Crc32c of each chunk of a payload, as whoever makes it may bring them.
std::vector<uint32_t> ChunkCrcs(const std::string& payload) {
  std::vector<uint32_t> crcs;
  for (size_t at = 0; at < payload.size(); at += kImageChunkBytes) {
    const std::string chunk = payload.substr(at, kImageChunkBytes);
    crcs.push_back(Crc32c(chunk.data(), chunk.size()));
  }
  return crcs;
}

TEST_F(ImageFileTest, ChecksumsThatCameWithAPayloadGiveTheSameFile) {
  std::string files[2];
  for (const bool brought : {false, true}) {
    Create();
    for (const ImageShape& shape : shapes_) {
      const std::string state = State(shape, 5);
      std::copy(state.begin(), state.end(), ImageBuffer());
      const auto crcs = brought ? ChunkCrcs(Payload(shape, 5)) : std::vector<uint32_t>();
      ASSERT_TRUE(images_->Write(shape.extent, 5, ImageBuffer(), crcs).ok());
    }
    ASSERT_TRUE(images_->Sync().ok());
    for (const ImageShape& shape : shapes_) ExpectState(shape, 5);
    files[brought] = FileBytes();
    images_.reset();
    ASSERT_TRUE(disk_.Remove(kImagePath).ok());
  }
  EXPECT_EQ(files[0], files[1]);
}

TEST_F(ImageFileTest, AnotherNumberOfChecksumsIsRefusedAndAWrongOneIsDamage) {
  Create();
  const ImageShape& shape = shapes_[0];
  const std::string state = State(shape, 5);
  std::copy(state.begin(), state.end(), ImageBuffer());
  std::vector<uint32_t> crcs = ChunkCrcs(Payload(shape, 5));
  crcs.push_back(0);
  const absl::Status refused = images_->Write(shape.extent, 5, ImageBuffer(), crcs);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("extent 4 has 3 chunks"), HasSubstr("4 checks")));
  EXPECT_THAT(images_->Versions(shape.extent), IsEmpty());
  crcs.pop_back();
  crcs.back() ^= 1;
  ASSERT_TRUE(images_->Write(shape.extent, 5, ImageBuffer(), crcs).ok());
  EXPECT_TRUE(absl::IsDataLoss(ReadState(images_.get(), shape, 5).status()));
}

TEST_F(ImageFileTest, TheOnlyFlushedImageIsNeverOverwritten) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
  ASSERT_TRUE(WriteState(images_.get(), shapes_[0], 2).ok());
  const absl::Status status = WriteState(images_.get(), shapes_[0], 3);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(status.message(), AllOf(HasSubstr("version 2 of extent 4"), HasSubstr("Sync")));
  ASSERT_TRUE(
      WriteState(images_.get(), shapes_[1], 3).ok());  // Another extent's images are its own.
  ASSERT_TRUE(images_->Sync().ok());
  ASSERT_TRUE(WriteAndSync(shapes_[0], 3).ok());
  EXPECT_THAT(images_->Versions(4), ElementsAre(3, 2));
}

TEST_F(ImageFileTest, VersionsOnlyGrow) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 5).ok());
  EXPECT_TRUE(absl::IsInternal(WriteAndSync(shapes_[0], 5)));
  EXPECT_TRUE(absl::IsInternal(WriteAndSync(shapes_[0], 4)));
  EXPECT_TRUE(absl::IsInvalidArgument(WriteAndSync({.extent = 99, .elements = 1}, 4)));
  ASSERT_TRUE(WriteAndSync(shapes_[0], 6).ok());
}

TEST_F(ImageFileTest, ADamagedImageIsNamedAndGivesWayToTheNextWrite) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
  ASSERT_TRUE(WriteAndSync(shapes_[0], 2).ok());
  // Version 2 is in the second image; byte 70000 of it is in its second chunk.
  const uint64_t second = kPageBytes + ImageHeaderBytes(shapes_[0]) +
                          ImageFile::BufferBytes(shapes_[0]) + ImageHeaderBytes(shapes_[0]);
  ASSERT_TRUE(disk_.FlipBit(kImagePath, second + 70000, 3).ok());
  Reopen();
  EXPECT_THAT(images_->Versions(4), ElementsAre(2, 1));
  const absl::Status status = ReadState(images_.get(), shapes_[0], 2).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(status.message(), AllOf(HasSubstr("version 2 of extent 4"),
                                      HasSubstr(absl::StrCat(second + kImageChunkBytes))));
  EXPECT_THAT(images_->Versions(4), ElementsAre(1));
  ExpectState(shapes_[0], 1);
  ASSERT_TRUE(WriteAndSync(shapes_[0], 3).ok());
  EXPECT_THAT(images_->Versions(4), ElementsAre(3, 1));
  ExpectState(shapes_[0], 1);
}

TEST_F(ImageFileTest, ADamagedHeaderIsAnEmptyPlace) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
  ASSERT_TRUE(WriteAndSync(shapes_[0], 2).ok());
  ASSERT_TRUE(disk_.FlipBit(kImagePath, kPageBytes + 32, 0).ok());
  Reopen();
  EXPECT_THAT(images_->Versions(4), ElementsAre(2));
  ASSERT_TRUE(WriteAndSync(shapes_[0], 3).ok());
  EXPECT_THAT(images_->Versions(4), ElementsAre(3, 2));
}

TEST_F(ImageFileTest, AImageWrittenToAnotherPlaceIsEmptyThere) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[1], 1).ok());
  const uint64_t first =
      kPageBytes + 2 * (ImageHeaderBytes(shapes_[0]) + ImageFile::BufferBytes(shapes_[0]));
  const uint64_t image_bytes = ImageHeaderBytes(shapes_[1]) + ImageFile::BufferBytes(shapes_[1]);
  std::string image(image_bytes, '\0');
  auto file = disk_.Open(kImagePath, {.mode = OpenMode::kWrite});
  ASSERT_TRUE((*file)->ReadAt(first, image_bytes, image.data()).ok());
  ASSERT_TRUE((*file)->WriteAt(first + image_bytes, {ConstBytes{image.data(), image.size()}}).ok());
  Reopen();
  EXPECT_THAT(images_->Versions(1), ElementsAre(1));
}

TEST_F(ImageFileTest, ALostWriteIsNoticedWhenTheImageIsRead) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[1], 1).ok());
  disk_.LoseNextWrite();  // The payload; the header after it arrives.
  ASSERT_TRUE(WriteAndSync(shapes_[1], 2).ok());
  EXPECT_TRUE(absl::IsDataLoss(ReadState(images_.get(), shapes_[1], 2).status()));
  ExpectState(shapes_[1], 1);
}

TEST_F(ImageFileTest, FilesMadeForSomethingElseAreRefusedByName) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[1], 1).ok());
  auto code = absl::StatusCode::kDataLoss;
  const auto refused = [&](const char* what, auto change) {
    ImageOptions options = SmallImages();
    change(&options);
    const absl::Status status = Open(options);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status.message(), HasSubstr(what));
  };
  refused("job 000000000000004d, server 2, not for job 000000000000004e, server 2",
          [](ImageOptions* o) { o->job = 78; });
  refused("server 2, not for job 000000000000004d, server 3",
          [](ImageOptions* o) { o->server = 3; });
  code = absl::StatusCode::kFailedPrecondition;
  refused("optimizer 1, not 2", [](ImageOptions* o) { o->optimizer = 2; });
  refused("kernel formula 5, not 6", [](ImageOptions* o) { o->formula_id = 6; });
  refused("64, not 128", [](ImageOptions* o) { o->tile_elements = 128; });
  std::vector<ImageShape> shapes = SmallShapes();
  shapes[1].extent = 2;
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(SmallImages(), shapes)));
  EXPECT_THAT(Open(SmallImages(), shapes).message(),
              HasSubstr("holds extent 1 of job 000000000000004d"));
  shapes = SmallShapes();
  shapes.push_back({.extent = 100, .elements = 5000});
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(SmallImages(), shapes)));
  Reopen();
  ExpectState(shapes_[1], 1);
}

TEST_F(ImageFileTest, OtherVersionsAndDamagedFileHeadersAreRefused) {
  Create();
  std::string page(kPageBytes, '\0');
  EncodeImageFilePage(SmallImages(), page.data());
  auto file = disk_.Open(kImagePath, {.mode = OpenMode::kWrite});
  for (const char version : {1, 3}) {
    page[8] = version;
    ASSERT_TRUE((*file)->WriteAt(0, {ConstBytes{page.data(), page.size()}}).ok());
    EXPECT_TRUE(absl::IsDataLoss(Open()));
    Seal(&page);
    ASSERT_TRUE((*file)->WriteAt(0, {ConstBytes{page.data(), page.size()}}).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(Open()));
    EXPECT_THAT(Open().message(),
                AllOf(HasSubstr("slots"), HasSubstr(absl::StrCat("format version ", version + 0))));
  }
  ASSERT_TRUE(ReplaceFile(&disk_, kImagePath, "short").ok());
  EXPECT_TRUE(absl::IsDataLoss(Open()));
  ASSERT_TRUE(disk_.Remove(kImagePath).ok());
  EXPECT_TRUE(absl::IsNotFound(Open()));
}

TEST_F(ImageFileTest, UnusableShapesAreRefusedAndNothingIsMade) {
  const ImageShape twice{.extent = 50, .elements = 1, .array_count = 3};
  const ImageShape arrays{.extent = 50, .elements = 4000000000, .array_count = 4000000000};
  const ImageShape large{.extent = 50, .elements = 4000000000, .array_count = 64};
  for (const std::vector<ImageShape>& shapes :
       {std::vector<ImageShape>{twice, twice}, {arrays}, {large}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        ImageFile::Create(&disk_, kImagePath, SmallImages(), shapes).status()));
    EXPECT_THAT(disk_.Paths(), IsEmpty());
  }
}

// --- Errors of the disk ---

TEST_F(ImageFileTest, WithoutRoomNothingIsMade) {
  const uint64_t needed = ImageFile::DiskBytes(shapes_);
  disk_.SetCapacity(needed - 1);
  const absl::Status status =
      ImageFile::Create(&disk_, kImagePath, SmallImages(), shapes_).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), AllOf(HasSubstr(absl::StrCat(needed, " bytes")),
                                      HasSubstr(absl::StrCat(needed - 1))));
  EXPECT_THAT(disk_.Paths(), IsEmpty());
  disk_.SetCapacity(needed);
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
  ASSERT_TRUE(WriteAndSync(shapes_[0], 2).ok());
}

TEST_F(ImageFileTest, AFailedCreateLeavesNoFiles) {
  for (const Operation operation : {Operation::kAllocate, Operation::kWrite, Operation::kSync}) {
    disk_.Fail(operation, 1, EIO);
    EXPECT_FALSE(ImageFile::Create(&disk_, kImagePath, SmallImages(), shapes_).ok());
    EXPECT_THAT(disk_.Paths(), IsEmpty());
  }
  Create();
  EXPECT_TRUE(absl::IsAlreadyExists(
      ImageFile::Create(&disk_, kImagePath, SmallImages(), shapes_).status()));
}

// The newest image is written again when the file is opened. A failure of this write says nothing
// about the content of the disk.
TEST_F(ImageFileTest, AWriteOrFlushThatFailsAtOpenIsNoLoss) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
  for (const Operation operation : {Operation::kWrite, Operation::kSync}) {
    disk_.Fail(operation, 1, EIO);
    const absl::Status failed = Open();
    EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  }
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(ReadState(images_.get(), shapes_[0], 1).ok());
}

TEST_F(ImageFileTest, AFailedWriteOrFlushIsFinal) {
  for (const Operation operation : {Operation::kWrite, Operation::kSync}) {
    disk_.RemoveAll(kImagePath).IgnoreError();
    Create();
    ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
    disk_.Fail(operation, 1, EIO);
    const absl::Status failed = WriteAndSync(shapes_[0], 2);
    EXPECT_TRUE(absl::IsInternal(failed)) << failed;
    EXPECT_EQ(images_->Sync(), failed);
    EXPECT_EQ(WriteState(images_.get(), shapes_[1], 2), failed);
    ExpectState(shapes_[0], 1);  // Reading continues.
  }
}

TEST_F(ImageFileTest, FailpointsStandAroundWritesAndFlushes) {
  for (const char* name :
       {"images.before_write", "images.after_write", "images.before_sync", "images.after_sync"}) {
    disk_.RemoveAll(kImagePath).IgnoreError();
    Create();
    ASSERT_TRUE(Failpoints::Configure(absl::StrCat(name, "=1*return(UNAVAILABLE)")).ok());
    EXPECT_TRUE(absl::IsUnavailable(WriteAndSync(shapes_[0], 1))) << name;
    EXPECT_TRUE(absl::IsUnavailable(images_->Sync())) << name;
    Failpoints::Reset();
  }
}

// Two overlapping flushes: the one that ends last covers everything written before it began.
TEST(ImageFlushes, AFlushCoversNoWriteThatBeganAfterIt) {
  MemoryDisk disk;
  const auto images = *ImageFile::Create(&disk, kImagePath, SmallImages(), SmallShapes());
  const ImageShape shape = SmallShapes().front();
  ASSERT_TRUE(WriteState(images.get(), shape, 1).ok());
  ASSERT_TRUE(images->Sync().ok());
  ASSERT_TRUE(WriteState(images.get(), shape, 2).ok());
  ASSERT_TRUE(Failpoints::Configure("images.after_sync=1*pause").ok());
  std::thread late([&] { EXPECT_TRUE(images->Sync().ok()); });
  Failpoints::WaitForPause("images.after_sync");
  ASSERT_TRUE(images->Sync().ok());
  ASSERT_TRUE(WriteState(images.get(), shape, 3).ok());
  Failpoints::Reset();
  late.join();
  EXPECT_EQ(images->Flushed(shape.extent), 2u);
  EXPECT_TRUE(images->NeedsSync(shape.extent));
  EXPECT_EQ(WriteState(images.get(), shape, 4).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(images->Sync().ok());
  EXPECT_EQ(images->Flushed(shape.extent), 3u);
  EXPECT_TRUE(WriteState(images.get(), shape, 4).ok());
}

TEST(ImageFileOnFiles, StatesComeBack) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/image_file_test.", getpid());
  for (const bool flush : {true, false}) {
    for (const bool direct : {true, false}) {
      ImageOptions options = SmallImages();
      options.flush = flush;
      options.direct = direct;
      auto images = ImageFile::Create(PosixFileSystem(), path, options, SmallShapes());
      ASSERT_TRUE(images.ok()) << images.status();
      for (uint64_t version = 1; version <= 5; ++version) {
        for (const ImageShape& shape : SmallShapes()) {
          ASSERT_TRUE(WriteState(images->get(), shape, version).ok());
        }
        ASSERT_TRUE((*images)->Sync().ok());
      }
      images = ImageFile::Open(PosixFileSystem(), path, options, SmallShapes());
      ASSERT_TRUE(images.ok()) << images.status();
      for (const ImageShape& shape : SmallShapes()) {
        EXPECT_THAT((*images)->Versions(shape.extent), ElementsAre(5, 4));
        EXPECT_EQ(*ReadState(images->get(), shape, 4), Payload(shape, 4));
        EXPECT_EQ(*ReadState(images->get(), shape, 5), Payload(shape, 5));
      }
      std::filesystem::remove(path);
    }
  }
}

}  // namespace
}  // namespace ballast::server
