// Tests of server/durability/slot_file.h and of its format. Power loss is in slot_crash_test.cc.
#include "server/durability/slot_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/failpoint.h"
#include "server/durability/slot_format.h"
#include "tests/server/durability/slot_testing.h"

namespace ballast::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Operation = MemoryDisk::Operation;

// --- Bytes ---

SlotHeader SmallHeader() {
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

std::string Encoded(const SlotHeader& header) {
  std::string bytes(SlotHeaderBytes(header.shape), 'x');
  EncodeSlotHeader(header, bytes.data());
  return bytes;
}

void Seal(std::string* header) {
  const uint32_t crc = Crc32c(header->data(), header->size() - 4);
  std::memcpy(header->data() + header->size() - 4, &crc, sizeof(crc));
}

// As docs/formats/slots.md shows them.
TEST(SlotFormat, BytesOfVersionTwoStayAsTheyAre) {
  std::string page(kPageBytes, 'x');
  SlotOptions options = SmallSlots();
  options.job = 0x0123456789abcdef;
  EncodeSlotFilePage(options, page.data());
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

  const std::string slot = Encoded(SmallHeader());
  ASSERT_EQ(slot.size(), kPageBytes);
  EXPECT_EQ(Hex(slot, 0, 104),
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
  EXPECT_EQ(Hex(slot, 104, kPageBytes - 4), std::string(2 * (kPageBytes - 4 - 104), '0'));
  EXPECT_EQ(Hex(slot, kPageBytes - 4, kPageBytes), "80f4c947");
  EXPECT_EQ(SlotChunkCrc(SmallHeader(), 1, "abcd", 4), 0xcb57cfbbu);
}

TEST(SlotFormat, AChunksChecksumStartsFromTheHeadersFieldsAndItsIndex) {
  std::string identity = Encoded(SmallHeader()).substr(0, 96);
  identity[76] = 1;
  EXPECT_EQ(SlotChunkCrc(SmallHeader(), 1, "abcd", 4),
            Crc32c("abcd", 4, Crc32c(identity.data(), identity.size())));
}

TEST(SlotFormat, LargeExtentsHaveHeadersOfSeveralPages) {
  // AMSGrad with 4 Mi elements: 64 MiB in 1024 chunks.
  const SlotShape large{.extent = 1, .elements = 4 << 20, .array_count = 4};
  EXPECT_EQ(SlotHeaderBytes(large), 2 * kPageBytes);
  SlotHeader header = SmallHeader();
  header.shape = large;
  header.chunk_crcs.assign(1024, 7);
  const auto again = DecodeSlotHeader(large, Encoded(header).data());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Encoded(*again), Encoded(header));
}

TEST(SlotFormat, ASingleChangedBitAnywhereIsDataLoss) {
  const std::string whole = Encoded(SmallHeader());
  std::string file_page(kPageBytes, 'x');
  EncodeSlotFilePage(SmallSlots(), file_page.data());
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    ASSERT_TRUE(absl::IsDataLoss(DecodeSlotHeader(SmallHeader().shape, changed.data()).status()));
    changed = file_page;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    ASSERT_TRUE(absl::IsDataLoss(DecodeSlotFilePage(changed.data()).status()));
  }
}

TEST(SlotFormat, RandomFieldsUnderARightChecksumAreRefusedOrMeanThemselves) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = Encoded(SmallHeader());
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      bytes[8 + random() % 88] = static_cast<char>(random());
    }
    Seal(&bytes);
    const auto header = DecodeSlotHeader(SmallHeader().shape, bytes.data());
    if (header.ok()) {
      ASSERT_EQ(Encoded(*header), bytes);
    }
  }
}

// --- The file ---

class SlotFileTest : public ::testing::Test {
 protected:
  void Create(const std::vector<SlotShape>& shapes = SmallShapes()) {
    auto slots = SlotFile::Create(&disk_, kSlotPath, SmallSlots(), shapes);
    ASSERT_TRUE(slots.ok()) << slots.status();
    slots_ = *std::move(slots);
  }
  absl::Status Open(const SlotOptions& options = SmallSlots(),
                    const std::vector<SlotShape>& shapes = SmallShapes()) {
    slots_.reset();
    auto slots = SlotFile::Open(&disk_, kSlotPath, options, shapes);
    if (slots.ok()) slots_ = *std::move(slots);
    return slots.status();
  }
  void Reopen() {
    const absl::Status status = Open();
    ASSERT_TRUE(status.ok()) << status;
  }
  absl::Status WriteAndSync(const SlotShape& shape, uint64_t version) {
    absl::Status status = WriteState(slots_.get(), shape, version);
    return status.ok() ? slots_->Sync() : status;
  }
  void ExpectState(const SlotShape& shape, uint64_t version) {
    const auto state = ReadState(slots_.get(), shape, version);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(*state, Payload(shape, version));
  }

  std::string FileBytes() {
    auto file = disk_.Open(kSlotPath, {.mode = OpenMode::kRead});
    std::string bytes(*(*file)->Size(), '\0');
    EXPECT_TRUE((*file)->ReadAt(0, bytes.size(), bytes.data()).ok());
    return bytes;
  }

  MemoryDisk disk_;
  std::unique_ptr<SlotFile> slots_;
  const std::vector<SlotShape> shapes_ = SmallShapes();
};

TEST_F(SlotFileTest, ANewFileHasItsFullSizeAndEmptySlots) {
  Create();
  for (int restarts = 0; restarts < 2; ++restarts) {
    for (const SlotShape& shape : shapes_) EXPECT_THAT(slots_->Versions(shape.extent), IsEmpty());
    auto file = disk_.Open(kSlotPath, {.mode = OpenMode::kRead});
    EXPECT_EQ(*(*file)->Size(), SlotFile::DiskBytes(shapes_));
    Reopen();
  }
  EXPECT_THAT(slots_->Versions(12345), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(ReadState(slots_.get(), shapes_[0], 1).status()));
}

TEST_F(SlotFileTest, ANewFileSurvivesPowerLoss) {
  Create();
  disk_.Crash([] { return 1; });
  Reopen();
}

TEST_F(SlotFileTest, TheTwoNewestVersionsStay) {
  Create();
  for (uint64_t version = 1; version <= 9; ++version) {
    for (const SlotShape& shape : shapes_) ASSERT_TRUE(WriteAndSync(shape, version * 3).ok());
    if (version % 2 == 0) Reopen();
    for (const SlotShape& shape : shapes_) {
      if (version == 1) {
        EXPECT_THAT(slots_->Versions(shape.extent), ElementsAre(3));
      } else {
        EXPECT_THAT(slots_->Versions(shape.extent), ElementsAre(version * 3, version * 3 - 3));
        ExpectState(shape, version * 3 - 3);
      }
      ExpectState(shape, version * 3);
    }
  }
}

// Crc32c of each chunk of a payload, as whoever makes it may bring them.
std::vector<uint32_t> ChunkCrcs(const std::string& payload) {
  std::vector<uint32_t> crcs;
  for (size_t at = 0; at < payload.size(); at += kSlotChunkBytes) {
    const std::string chunk = payload.substr(at, kSlotChunkBytes);
    crcs.push_back(Crc32c(chunk.data(), chunk.size()));
  }
  return crcs;
}

TEST_F(SlotFileTest, ChecksumsThatCameWithAPayloadGiveTheSameFile) {
  std::string files[2];
  for (const bool brought : {false, true}) {
    Create();
    for (const SlotShape& shape : shapes_) {
      const std::string state = State(shape, 5);
      std::copy(state.begin(), state.end(), SlotBuffer());
      const auto crcs = brought ? ChunkCrcs(Payload(shape, 5)) : std::vector<uint32_t>();
      ASSERT_TRUE(slots_->Write(shape.extent, 5, SlotBuffer(), crcs).ok());
    }
    ASSERT_TRUE(slots_->Sync().ok());
    for (const SlotShape& shape : shapes_) ExpectState(shape, 5);
    files[brought] = FileBytes();
    slots_.reset();
    ASSERT_TRUE(disk_.Remove(kSlotPath).ok());
  }
  EXPECT_EQ(files[0], files[1]);
}

TEST_F(SlotFileTest, AnotherNumberOfChecksumsIsRefusedAndAWrongOneIsDamage) {
  Create();
  const SlotShape& shape = shapes_[0];
  const std::string state = State(shape, 5);
  std::copy(state.begin(), state.end(), SlotBuffer());
  std::vector<uint32_t> crcs = ChunkCrcs(Payload(shape, 5));
  crcs.push_back(0);
  const absl::Status refused = slots_->Write(shape.extent, 5, SlotBuffer(), crcs);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("extent 4 has 3 chunks"), HasSubstr("4 checks")));
  EXPECT_THAT(slots_->Versions(shape.extent), IsEmpty());
  crcs.pop_back();
  crcs.back() ^= 1;
  ASSERT_TRUE(slots_->Write(shape.extent, 5, SlotBuffer(), crcs).ok());
  EXPECT_TRUE(absl::IsDataLoss(ReadState(slots_.get(), shape, 5).status()));
}

TEST_F(SlotFileTest, TheOnlyFlushedSlotIsNeverOverwritten) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
  ASSERT_TRUE(WriteState(slots_.get(), shapes_[0], 2).ok());
  const absl::Status status = WriteState(slots_.get(), shapes_[0], 3);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(status.message(), AllOf(HasSubstr("version 2 of extent 4"), HasSubstr("Sync")));
  ASSERT_TRUE(WriteState(slots_.get(), shapes_[1], 3).ok());  // Another extent's slots are its own.
  ASSERT_TRUE(slots_->Sync().ok());
  ASSERT_TRUE(WriteAndSync(shapes_[0], 3).ok());
  EXPECT_THAT(slots_->Versions(4), ElementsAre(3, 2));
}

TEST_F(SlotFileTest, VersionsOnlyGrow) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 5).ok());
  EXPECT_TRUE(absl::IsInternal(WriteAndSync(shapes_[0], 5)));
  EXPECT_TRUE(absl::IsInternal(WriteAndSync(shapes_[0], 4)));
  EXPECT_TRUE(absl::IsInvalidArgument(WriteAndSync({.extent = 99, .elements = 1}, 4)));
  ASSERT_TRUE(WriteAndSync(shapes_[0], 6).ok());
}

TEST_F(SlotFileTest, ADamagedSlotIsNamedAndGivesWayToTheNextWrite) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
  ASSERT_TRUE(WriteAndSync(shapes_[0], 2).ok());
  // Version 2 is in the second slot; byte 70000 of it is in its second chunk.
  const uint64_t second = kPageBytes + SlotHeaderBytes(shapes_[0]) +
                          SlotFile::BufferBytes(shapes_[0]) + SlotHeaderBytes(shapes_[0]);
  ASSERT_TRUE(disk_.FlipBit(kSlotPath, second + 70000, 3).ok());
  Reopen();
  EXPECT_THAT(slots_->Versions(4), ElementsAre(2, 1));
  const absl::Status status = ReadState(slots_.get(), shapes_[0], 2).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(status.message(), AllOf(HasSubstr("version 2 of extent 4"),
                                      HasSubstr(absl::StrCat(second + kSlotChunkBytes))));
  EXPECT_THAT(slots_->Versions(4), ElementsAre(1));
  ExpectState(shapes_[0], 1);
  ASSERT_TRUE(WriteAndSync(shapes_[0], 3).ok());
  EXPECT_THAT(slots_->Versions(4), ElementsAre(3, 1));
  ExpectState(shapes_[0], 1);
}

TEST_F(SlotFileTest, ADamagedHeaderIsAnEmptySlot) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
  ASSERT_TRUE(WriteAndSync(shapes_[0], 2).ok());
  ASSERT_TRUE(disk_.FlipBit(kSlotPath, kPageBytes + 32, 0).ok());
  Reopen();
  EXPECT_THAT(slots_->Versions(4), ElementsAre(2));
  ASSERT_TRUE(WriteAndSync(shapes_[0], 3).ok());
  EXPECT_THAT(slots_->Versions(4), ElementsAre(3, 2));
}

TEST_F(SlotFileTest, ASlotWrittenToAnotherPlaceIsEmptyThere) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[1], 1).ok());
  const uint64_t first =
      kPageBytes + 2 * (SlotHeaderBytes(shapes_[0]) + SlotFile::BufferBytes(shapes_[0]));
  const uint64_t slot_bytes = SlotHeaderBytes(shapes_[1]) + SlotFile::BufferBytes(shapes_[1]);
  std::string slot(slot_bytes, '\0');
  auto file = disk_.Open(kSlotPath, {.mode = OpenMode::kWrite});
  ASSERT_TRUE((*file)->ReadAt(first, slot_bytes, slot.data()).ok());
  ASSERT_TRUE((*file)->WriteAt(first + slot_bytes, {ConstBytes{slot.data(), slot.size()}}).ok());
  Reopen();
  EXPECT_THAT(slots_->Versions(1), ElementsAre(1));
}

TEST_F(SlotFileTest, ALostWriteIsNoticedWhenTheSlotIsRead) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[1], 1).ok());
  disk_.LoseNextWrite();  // The payload; the header behind it arrives.
  ASSERT_TRUE(WriteAndSync(shapes_[1], 2).ok());
  EXPECT_TRUE(absl::IsDataLoss(ReadState(slots_.get(), shapes_[1], 2).status()));
  ExpectState(shapes_[1], 1);
}

TEST_F(SlotFileTest, FilesMadeForSomethingElseAreRefusedByName) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[1], 1).ok());
  auto code = absl::StatusCode::kDataLoss;
  const auto refused = [&](const char* what, auto change) {
    SlotOptions options = SmallSlots();
    change(&options);
    const absl::Status status = Open(options);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status.message(), HasSubstr(what));
  };
  refused("job 000000000000004d, server 2, not for job 000000000000004e, server 2",
          [](SlotOptions* o) { o->job = 78; });
  refused("server 2, not for job 000000000000004d, server 3",
          [](SlotOptions* o) { o->server = 3; });
  code = absl::StatusCode::kFailedPrecondition;
  refused("optimizer 1, not 2", [](SlotOptions* o) { o->optimizer = 2; });
  refused("kernel formula 5, not 6", [](SlotOptions* o) { o->formula_id = 6; });
  refused("64, not 128", [](SlotOptions* o) { o->tile_elements = 128; });
  std::vector<SlotShape> shapes = SmallShapes();
  shapes[1].extent = 2;
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(SmallSlots(), shapes)));
  EXPECT_THAT(Open(SmallSlots(), shapes).message(),
              HasSubstr("holds extent 1 of job 000000000000004d"));
  shapes = SmallShapes();
  shapes.push_back({.extent = 100, .elements = 5000});
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(SmallSlots(), shapes)));
  Reopen();
  ExpectState(shapes_[1], 1);
}

TEST_F(SlotFileTest, OtherVersionsAndDamagedFileHeadersAreRefused) {
  Create();
  std::string page(kPageBytes, '\0');
  EncodeSlotFilePage(SmallSlots(), page.data());
  auto file = disk_.Open(kSlotPath, {.mode = OpenMode::kWrite});
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
  ASSERT_TRUE(ReplaceFile(&disk_, kSlotPath, "short").ok());
  EXPECT_TRUE(absl::IsDataLoss(Open()));
  ASSERT_TRUE(disk_.Remove(kSlotPath).ok());
  EXPECT_TRUE(absl::IsNotFound(Open()));
}

TEST_F(SlotFileTest, UnusableShapesAreRefusedAndNothingIsMade) {
  const SlotShape twice{.extent = 50, .elements = 1};
  const SlotShape arrays{.extent = 50, .elements = 4000000000, .array_count = 4000000000};
  const SlotShape large{.extent = 50, .elements = 4000000000, .array_count = 64};
  for (const std::vector<SlotShape>& shapes :
       {std::vector<SlotShape>{twice, twice}, {arrays}, {large}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        SlotFile::Create(&disk_, kSlotPath, SmallSlots(), shapes).status()));
    EXPECT_THAT(disk_.Paths(), IsEmpty());
  }
}

// --- Errors of the disk ---

TEST_F(SlotFileTest, WithoutRoomNothingIsMade) {
  const uint64_t needed = SlotFile::DiskBytes(shapes_);
  disk_.SetCapacity(needed - 1);
  const absl::Status status = SlotFile::Create(&disk_, kSlotPath, SmallSlots(), shapes_).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), AllOf(HasSubstr(absl::StrCat(needed, " bytes")),
                                      HasSubstr(absl::StrCat(needed - 1))));
  EXPECT_THAT(disk_.Paths(), IsEmpty());
  disk_.SetCapacity(needed);
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
  ASSERT_TRUE(WriteAndSync(shapes_[0], 2).ok());
}

TEST_F(SlotFileTest, CreateThatFailsOnTheWayLeavesNothingBehind) {
  for (const Operation operation : {Operation::kAllocate, Operation::kWrite, Operation::kSync}) {
    disk_.Fail(operation, 1, EIO);
    EXPECT_FALSE(SlotFile::Create(&disk_, kSlotPath, SmallSlots(), shapes_).ok());
    EXPECT_THAT(disk_.Paths(), IsEmpty());
  }
  Create();
  EXPECT_TRUE(
      absl::IsAlreadyExists(SlotFile::Create(&disk_, kSlotPath, SmallSlots(), shapes_).status()));
}

// The newest slot is written again when the file is opened. That this failed says nothing about
// what is there.
TEST_F(SlotFileTest, AWriteOrFlushThatFailsAtOpenIsNoLoss) {
  Create();
  ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
  for (const Operation operation : {Operation::kWrite, Operation::kSync}) {
    disk_.Fail(operation, 1, EIO);
    const absl::Status failed = Open();
    EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  }
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(ReadState(slots_.get(), shapes_[0], 1).ok());
}

TEST_F(SlotFileTest, AFailedWriteOrFlushIsFinal) {
  for (const Operation operation : {Operation::kWrite, Operation::kSync}) {
    disk_.RemoveAll(kSlotPath).IgnoreError();
    Create();
    ASSERT_TRUE(WriteAndSync(shapes_[0], 1).ok());
    disk_.Fail(operation, 1, EIO);
    const absl::Status failed = WriteAndSync(shapes_[0], 2);
    EXPECT_TRUE(absl::IsInternal(failed)) << failed;
    EXPECT_EQ(slots_->Sync(), failed);
    EXPECT_EQ(WriteState(slots_.get(), shapes_[1], 2), failed);
    ExpectState(shapes_[0], 1);  // Reading goes on.
  }
}

TEST_F(SlotFileTest, FailpointsStandAroundWritesAndFlushes) {
  for (const char* name :
       {"slots.before_write", "slots.after_write", "slots.before_sync", "slots.after_sync"}) {
    disk_.RemoveAll(kSlotPath).IgnoreError();
    Create();
    ASSERT_TRUE(Failpoints::Configure(absl::StrCat(name, "=1*return(UNAVAILABLE)")).ok());
    EXPECT_TRUE(absl::IsUnavailable(WriteAndSync(shapes_[0], 1))) << name;
    EXPECT_TRUE(absl::IsUnavailable(slots_->Sync())) << name;
    Failpoints::Reset();
  }
}

// Two flushes beside one another: the one that ends last covers what was written when it began.
TEST(SlotFlushes, AFlushCoversNoWriteThatBeganAfterIt) {
  MemoryDisk disk;
  const auto slots = *SlotFile::Create(&disk, kSlotPath, SmallSlots(), SmallShapes());
  const SlotShape shape = SmallShapes().front();
  ASSERT_TRUE(WriteState(slots.get(), shape, 1).ok());
  ASSERT_TRUE(slots->Sync().ok());
  ASSERT_TRUE(WriteState(slots.get(), shape, 2).ok());
  ASSERT_TRUE(Failpoints::Configure("slots.after_sync=1*pause").ok());
  std::thread late([&] { EXPECT_TRUE(slots->Sync().ok()); });
  Failpoints::WaitForPause("slots.after_sync");
  ASSERT_TRUE(slots->Sync().ok());
  ASSERT_TRUE(WriteState(slots.get(), shape, 3).ok());
  Failpoints::Reset();
  late.join();
  EXPECT_EQ(slots->Flushed(shape.extent), 2u);
  EXPECT_TRUE(slots->NeedsSync(shape.extent));
  EXPECT_EQ(WriteState(slots.get(), shape, 4).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(slots->Sync().ok());
  EXPECT_EQ(slots->Flushed(shape.extent), 3u);
  EXPECT_TRUE(WriteState(slots.get(), shape, 4).ok());
}

TEST(SlotFileOnFiles, StatesComeBack) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/slot_file_test.", getpid());
  for (const bool flush : {true, false}) {
    for (const bool direct : {true, false}) {
      SlotOptions options = SmallSlots();
      options.flush = flush;
      options.direct = direct;
      auto slots = SlotFile::Create(PosixFileSystem(), path, options, SmallShapes());
      ASSERT_TRUE(slots.ok()) << slots.status();
      for (uint64_t version = 1; version <= 5; ++version) {
        for (const SlotShape& shape : SmallShapes()) {
          ASSERT_TRUE(WriteState(slots->get(), shape, version).ok());
        }
        ASSERT_TRUE((*slots)->Sync().ok());
      }
      slots = SlotFile::Open(PosixFileSystem(), path, options, SmallShapes());
      ASSERT_TRUE(slots.ok()) << slots.status();
      for (const SlotShape& shape : SmallShapes()) {
        EXPECT_THAT((*slots)->Versions(shape.extent), ElementsAre(5, 4));
        EXPECT_EQ(*ReadState(slots->get(), shape, 4), Payload(shape, 4));
        EXPECT_EQ(*ReadState(slots->get(), shape, 5), Payload(shape, 5));
      }
      std::filesystem::remove(path);
    }
  }
}

}  // namespace
}  // namespace ballast::server
