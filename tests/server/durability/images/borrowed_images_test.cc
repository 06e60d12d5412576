// Borrowed images: a forked job's extents are read where the snapshot has them until the job has
// versions of its own; nothing is written there, and no power loss finds less than was flushed.
#include "server/durability/images/borrowed_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/forwarding_files.h"
#include "server/durability/images/image_base.h"
#include "tests/server/directory/power_cut.h"
#include "tests/server/durability/images/image_testing.h"

namespace ballast::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kJob[] = "job";
constexpr char kSnapshot[] = "snapshot";
constexpr uint64_t kRound = 10;

// The two servers that wrote the snapshot had two extents each.
std::vector<ImageBasePart> Parts() {
  const std::vector<ImageShape> shapes = SmallShapes();
  return {{.server = 5, .shapes = {shapes[0], shapes[2]}},
          {.server = 6, .shapes = {shapes[3], shapes[1]}}};
}

ImageBase Base() {
  return {.job = SmallImages().job,
          .server = SmallImages().server,
          .lender = 55,
          .round = kRound,
          .optimizer = SmallImages().optimizer,
          .formula_id = SmallImages().formula_id,
          .tile_elements = SmallImages().tile_elements,
          .parts = Parts()};
}

class BorrowedImagesTest : public ::testing::Test {
 protected:
  BorrowedImagesTest() { Fork(&disk_); }

  // A snapshot, and a job that has just been forked from it.
  static void Fork(MemoryDisk* disk) {
    for (const char* directory : {kJob, kSnapshot}) {
      ASSERT_TRUE(disk->MakeDirectory(directory).ok());
    }
    ASSERT_TRUE(disk->SyncDirectory("/").ok());
    ASSERT_TRUE(ImageFile::Create(disk, ImagesPath(), SmallImages(), SmallShapes()).ok());
    for (const ImageBasePart& part : Parts()) {
      ImageOptions options = ImageBasePartOptions(Base(), part.server, /*direct=*/true);
      options.read_only = false;
      const std::string path = ImageBasePartPath(kSnapshot, part.server);
      auto file = ImageFile::Create(disk, path, options, part.shapes);
      ASSERT_TRUE(file.ok()) << file.status();
      for (const ImageShape& shape : part.shapes) {
        ASSERT_TRUE(WriteState(file->get(), shape, kRound).ok());
      }
      ASSERT_TRUE((*file)->Sync().ok());
      ASSERT_TRUE(disk->Link(path, ImageBasePartPath(kJob, part.server)).ok());
    }
    ASSERT_TRUE(disk->SyncDirectory(kJob).ok());
    ASSERT_TRUE(ReplaceFile(disk, ImageBasePath(kJob), EncodeImageBase(Base())).ok());
  }
  static std::string ImagesPath() { return absl::StrCat(kJob, "/", kImagePath); }

  static absl::StatusOr<std::unique_ptr<ImageFile>> Open(FileSystem* fs) {
    auto own = ImageFile::Open(fs, ImagesPath(), SmallImages(), SmallShapes());
    if (!own.ok()) return own.status();
    return OpenBorrowed(fs, kJob, SmallImages(), SmallShapes(), *std::move(own));
  }
  void Open() {
    images_ = nullptr;
    auto opened = Open(&disk_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    images_ = *std::move(opened);
  }
  void Write(const ImageShape& shape, uint64_t version) {
    const absl::Status written = WriteState(images_.get(), shape, version);
    ASSERT_TRUE(written.ok()) << written;
    ASSERT_TRUE(images_->Sync().ok());
  }
  void WriteAll(uint64_t version) {
    for (const ImageShape& shape : SmallShapes()) Write(shape, version);
  }
  void ExpectWhole(const ImageShape& shape, uint64_t version) {
    const auto state = ReadState(images_.get(), shape, version);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_TRUE(*state == Payload(shape, version)) << "extent " << shape.extent;
  }
  std::vector<std::string> Files() { return *disk_.List(kJob); }

  MemoryDisk disk_;
  std::unique_ptr<ImageFile> images_;
  const ImageShape shape_ = SmallShapes().front();
};

TEST_F(BorrowedImagesTest, ABorrowedVersionIsThereUntilOneOfItsOwnIsFlushed) {
  Open();
  for (const ImageShape& shape : SmallShapes()) {
    EXPECT_THAT(images_->Versions(shape.extent), ElementsAre(kRound));
    EXPECT_EQ(images_->Flushed(shape.extent), kRound);
    ExpectWhole(shape, kRound);
  }
  EXPECT_EQ(WriteState(images_.get(), shape_, kRound).code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(WriteState(images_.get(), shape_, 12).ok());
  EXPECT_THAT(images_->Versions(shape_.extent), ElementsAre(12u, kRound));
  EXPECT_EQ(images_->Flushed(shape_.extent), kRound);
  EXPECT_TRUE(images_->NeedsSync(shape_.extent));
  ExpectWhole(shape_, kRound);
  ASSERT_TRUE(images_->Sync().ok());
  EXPECT_THAT(images_->Versions(shape_.extent), ElementsAre(12u));
  EXPECT_EQ(images_->Flushed(shape_.extent), 12u);
  ExpectWhole(shape_, 12);
}

TEST_F(BorrowedImagesTest, TheSnapshotStaysAsItIsAndMayGo) {
  const auto part = [&] {
    return *ReadWholeFile(&disk_, ImageBasePartPath(kSnapshot, 5), size_t{1} << 22);
  };
  const std::string before = part();
  Open();
  for (uint64_t version = 11; version < 15; ++version) Write(shape_, version);
  EXPECT_TRUE(part() == before);
  ASSERT_TRUE(disk_.RemoveAll(kSnapshot).ok());
  disk_.Crash([] { return 0; });
  Open();
  for (const ImageShape& shape : SmallShapes()) {
    ExpectWhole(shape, shape == shape_ ? 14u : kRound);
  }
}

TEST_F(BorrowedImagesTest, TheFilesGoOnceEveryExtentHasAVersionOfItsOwn) {
  const uint64_t free = *disk_.FreeBytes("/");
  ASSERT_TRUE(disk_.RemoveAll(kSnapshot).ok());
  EXPECT_EQ(*disk_.FreeBytes("/"), free) << "the links keep the bytes";
  Open();
  for (const ImageShape& shape : SmallShapes()) {
    EXPECT_THAT(Files(), ElementsAre("base", "base-5", "base-6", kImagePath));
    Write(shape, 11);
  }
  EXPECT_THAT(Files(), ElementsAre(kImagePath));
  EXPECT_GT(*disk_.FreeBytes("/"), free);
  WriteAll(12);
  Open();
  for (const ImageShape& shape : SmallShapes()) ExpectWhole(shape, 12);
}

// The last writes of the last process may be in a cache only, and their payload may be torn.
TEST_F(BorrowedImagesTest, AfterARestartOneVersionOfItsOwnIsNotEnough) {
  Open();
  for (const ImageShape& shape : SmallShapes()) {
    ASSERT_TRUE(WriteState(images_.get(), shape, 11).ok());
  }
  ASSERT_TRUE(disk_.FlipBit(ImagesPath(), 3 * kPageBytes, 0).ok());
  Open();
  EXPECT_THAT(images_->Versions(shape_.extent), ElementsAre(11u, kRound));
  EXPECT_EQ(ReadState(images_.get(), shape_, 11).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(images_->Flushed(shape_.extent), kRound);
  ExpectWhole(shape_, kRound);
  WriteAll(12);
  EXPECT_THAT(Files(), ElementsAre(kImagePath));
}

TEST_F(BorrowedImagesTest, AHeldBorrowedVersionStaysWhateverIsWritten) {
  Open();
  EXPECT_EQ(*images_->Hold(shape_.extent), kRound);
  WriteAll(11);
  WriteAll(12);
  EXPECT_THAT(images_->Versions(shape_.extent), ElementsAre(12u, 11u, kRound));
  EXPECT_EQ(*images_->Hold(shape_.extent), kRound) << "what is held already";
  EXPECT_EQ(images_->Held(shape_.extent), kRound);
  EXPECT_EQ(images_->Flushed(shape_.extent), kRound) << "the log is kept for it";
  ExpectWhole(shape_, kRound);
  images_->LetGo(shape_.extent);
  ExpectWhole(shape_, kRound);
  EXPECT_THAT(Files(), ::testing::Contains("base"));
  images_->LetGo(shape_.extent);
  EXPECT_EQ(images_->Held(shape_.extent), std::nullopt);
  EXPECT_EQ(images_->Flushed(shape_.extent), 12u);
  ASSERT_TRUE(images_->Sync().ok());
  EXPECT_THAT(Files(), ElementsAre(kImagePath));
  EXPECT_EQ(*images_->Hold(shape_.extent), 12u);
}

TEST_F(BorrowedImagesTest, ForgottenVersionsAreNotBorrowed) {
  Open();
  ASSERT_TRUE(images_->Hold(shape_.extent).ok());
  images_->Forget(shape_.extent);
  EXPECT_THAT(images_->Versions(shape_.extent), IsEmpty());
  EXPECT_EQ(images_->Flushed(shape_.extent), 0u);
  EXPECT_EQ(images_->Hold(shape_.extent).status().code(), absl::StatusCode::kNotFound);
  Write(shape_, 1);
  EXPECT_THAT(images_->Versions(shape_.extent), ElementsAre(1u));
}

TEST_F(BorrowedImagesTest, DamageOfABorrowedVersionIsTold) {
  ASSERT_TRUE(disk_.FlipBit(ImageBasePartPath(kJob, 5), 3 * kPageBytes, 0).ok());
  Open();
  const absl::Status read = ReadState(images_.get(), shape_, kRound).status();
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(read.message()), HasSubstr("job/base-5"));
  EXPECT_THAT(images_->Versions(shape_.extent), IsEmpty());
  EXPECT_EQ(images_->Flushed(shape_.extent), 0u);
}

TEST_F(BorrowedImagesTest, MissingOrDamagedImagesAreNamedAndNothingChanges) {
  const auto expect_lost = [this](const std::string& path, const std::string& names) {
    const std::vector<std::string> before = Files();
    const absl::Status opened = Open(&disk_).status();
    EXPECT_EQ(opened.code(), absl::StatusCode::kDataLoss) << opened;
    EXPECT_THAT(std::string(opened.message()), HasSubstr(names)) << path;
    EXPECT_EQ(Files(), before);
  };
  for (const std::string& path : {ImageBasePath(kJob), ImageBasePartPath(kJob, 5)}) {
    ASSERT_TRUE(disk_.Rename(path, "elsewhere").ok());
    expect_lost(path, path);
    ASSERT_TRUE(disk_.Rename("elsewhere", path).ok());
    ASSERT_TRUE(disk_.FlipBit(path, 30, 1).ok());
    expect_lost(path, path);
    ASSERT_TRUE(disk_.FlipBit(path, 30, 1).ok());
  }
  // The header of an extent's only image.
  ASSERT_TRUE(disk_.FlipBit(ImageBasePartPath(kJob, 5), kPageBytes + 33, 1).ok());
  expect_lost("header", absl::StrCat("extent ", shape_.extent));
}

TEST_F(BorrowedImagesTest, ABaseOfAnotherJobIsRefused) {
  ImageBase base = Base();
  base.job = 78;
  ASSERT_TRUE(ReplaceFile(&disk_, ImageBasePath(kJob), EncodeImageBase(base)).ok());
  const absl::Status opened = Open(&disk_).status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(opened.message()), HasSubstr("000000000000004e"));
}

// Runs `during` once, between a flush of a file and its return.
class FlushWatch : public ForwardingFiles {
 public:
  FlushWatch(FileSystem* below, std::function<void()> during)
      : ForwardingFiles(below), during_(std::move(during)) {}
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) override {
    auto file = below()->Open(path, options);
    if (!file.ok()) return file.status();
    return std::make_unique<WatchedFile>(this, *std::move(file));
  }
  void Arm() { armed_ = true; }

 private:
  class WatchedFile : public File {
   public:
    WatchedFile(FlushWatch* watch, std::unique_ptr<File> file)
        : watch_(watch), file_(std::move(file)) {}
    absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t bytes, void* to) override {
      return file_->ReadAt(offset, bytes, to);
    }
    absl::Status WriteAt(uint64_t offset, absl::Span<const ConstBytes> parts) override {
      return file_->WriteAt(offset, parts);
    }
    absl::Status Sync() override {
      const absl::Status synced = file_->Sync();
      if (std::exchange(watch_->armed_, false)) watch_->during_();
      return synced;
    }
    absl::Status Allocate(uint64_t bytes) override { return file_->Allocate(bytes); }
    absl::StatusOr<uint64_t> Size() override { return file_->Size(); }

   private:
    FlushWatch* const watch_;
    const std::unique_ptr<File> file_;
  };

  const std::function<void()> during_;
  bool armed_ = false;
};

TEST_F(BorrowedImagesTest, AFlushCoversNoWriteThatCameWhileItWasUnderWay) {
  const ImageShape last = SmallShapes().back();
  FlushWatch watch(&disk_, [&] { ASSERT_TRUE(WriteState(images_.get(), last, 11).ok()); });
  images_ = *Open(&watch);
  for (const ImageShape& shape : SmallShapes()) {
    if (shape != last) Write(shape, 11);
  }
  watch.Arm();
  ASSERT_TRUE(images_->Sync().ok());
  EXPECT_THAT(Files(), ::testing::Contains("base"));
  EXPECT_THAT(images_->Versions(last.extent), ElementsAre(11u, kRound));
  EXPECT_EQ(images_->Flushed(last.extent), kRound);
  ASSERT_TRUE(images_->Sync().ok());
  EXPECT_THAT(Files(), ElementsAre(kImagePath));
}

// --- Power loss ---------------------------------------------------------------------------------

// A life in which the power goes at one operation: rounds of writes and flushes.
class Life {
 public:
  explicit Life(MemoryDisk* disk) : disk_(disk) {
    for (const ImageShape& shape : SmallShapes()) flushed_[shape.extent] = kRound;
  }

  // Whether the power went before the end.
  bool Run(absl::StatusOr<std::unique_ptr<ImageFile>> (*open)(FileSystem*), uint64_t operations,
           const MemoryDisk::Random& random) {
    testing::PowerCut power(disk_, operations);
    {  // Closes the open files when the power goes off.
      auto images = open(&power);
      for (uint64_t version = 11; images.ok() && version < 14 && !power.off(); ++version) {
        Round(images->get(), version);
      }
    }
    disk_->Crash(random);
    auto images = open(disk_);
    EXPECT_TRUE(images.ok()) << images.status();
    if (images.ok()) Check(images->get());
    return power.off();
  }

 private:
  void Round(ImageFile* images, uint64_t version) {
    std::vector<uint32_t> written;
    for (const ImageShape& shape : SmallShapes()) {
      if ((shape.extent + version) % 5 == 0) continue;  // Some have one less.
      if (!WriteState(images, shape, version).ok()) return;
      written.push_back(shape.extent);
    }
    if (!images->Sync().ok()) return;
    for (const uint32_t extent : written) flushed_[extent] = version;
  }
  // As recovery does: the newest that is whole; then the life continues.
  void Check(ImageFile* images) {
    for (const ImageShape& shape : SmallShapes()) {
      uint64_t found = 0;
      for (const uint64_t version : images->Versions(shape.extent)) {
        const auto state = ReadState(images, shape, version);
        if (!state.ok()) continue;
        EXPECT_TRUE(*state == Payload(shape, version)) << shape.extent << " at " << version;
        found = version;
        break;
      }
      EXPECT_GE(found, flushed_[shape.extent]) << "extent " << shape.extent;
    }
    for (const uint64_t version : {20, 21}) {
      for (const ImageShape& shape : SmallShapes()) {
        EXPECT_TRUE(WriteState(images, shape, version).ok());
      }
      EXPECT_TRUE(images->Sync().ok());
    }
    EXPECT_THAT(*disk_->List(kJob), ElementsAre(kImagePath)) << "nothing is left over";
  }

  MemoryDisk* const disk_;
  std::map<uint32_t, uint64_t> flushed_;
};

class BorrowedImagesPower : public BorrowedImagesTest {
 protected:
  static absl::StatusOr<std::unique_ptr<ImageFile>> OpenOn(FileSystem* fs) { return Open(fs); }
};

TEST_F(BorrowedImagesPower, LossAtAnyPointLosesNothingThatWasFlushed) {
  uint64_t operations = 0;
  for (bool went = true; went; ++operations) {
    went = false;
    for (const uint64_t seed : {0, 1, 2, 3, 4, 5}) {
      SCOPED_TRACE(absl::StrCat("operation ", operations, ", seed ", seed));
      MemoryDisk disk;
      Fork(&disk);
      std::mt19937_64 random(seed);
      const MemoryDisk::Random choose = [&]() -> uint64_t { return seed < 2 ? seed : random(); };
      went = Life(&disk).Run(&OpenOn, operations, choose) || went;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(operations, 25u);  // The test is about something.
}

// --- The format ---------------------------------------------------------------------------------

TEST(ImageBaseFormat, BytesOfVersionOneStayAsTheyAre) {
  const ImageBase base = {.job = 0x0123456789abcdef,
                          .server = 2,
                          .lender = 0x55,
                          .round = 10,
                          .optimizer = 1,
                          .formula_id = 5,
                          .tile_elements = 64,
                          .parts = {{.server = 6, .shapes = {{7, 20000, 3}}}}};
  const std::string bytes = EncodeImageBase(base);
  std::string hex;
  for (const char c : bytes)
    absl::StrAppend(&hex, absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
  EXPECT_EQ(hex,
            "42414c4c4241530a01000000000000005c00000000000000"
            "efcdab89674523010200000055000000000000000a00000000000000"
            "01000000050000004000000001000000"
            "060000000100000007000000204e000003000000"
            "3fff58b3");
  const auto decoded = DecodeImageBase(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(*decoded == base);
}

TEST(ImageBaseFormat, ATruncatedOrChangedFileIsDamaged) {
  const std::string bytes = EncodeImageBase(Base());
  for (size_t count = 0; count < bytes.size(); ++count) {
    EXPECT_EQ(DecodeImageBase(bytes.substr(0, count)).status().code(), absl::StatusCode::kDataLoss);
    std::string changed = bytes;
    changed[count] ^= 4;
    EXPECT_EQ(DecodeImageBase(changed).status().code(), absl::StatusCode::kDataLoss) << count;
  }
}

}  // namespace
}  // namespace ballast::server
