// Files that appear whole or not at all: order of writes, full disks, power loss, direct I/O.
#include "common/safetensors/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/forwarding_files.h"
#include "common/io/memory_disk.h"
#include "common/safetensors/reader.h"
#include "tests/common/safetensors/files.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Operation = MemoryDisk::Operation;
using Writer = std::unique_ptr<SafetensorsWriter>;

const char kPath[] = "out/m.safetensors";
const char kPartPath[] = "out/m.safetensors.part";
const std::vector<TensorEntry> kTensors = {
    {.name = "a", .dtype = SafeDType::kU8, .shape = {4}},
    {.name = "none", .dtype = SafeDType::kF32, .shape = {0}},
    {.name = "b", .dtype = SafeDType::kF32, .shape = {}},
};

absl::Status WriteText(SafetensorsWriter* writer, size_t tensor, uint64_t offset,
                       absl::string_view text) {
  return writer->WriteAt(tensor, offset, {ConstBytes{text.data(), text.size()}});
}

std::string Tensor(const SafetensorsReader& reader, size_t tensor) {
  std::string bytes(reader.header().tensors[tensor].bytes(), '?');
  const absl::Status status = reader.ReadAt(tensor, 0, bytes.size(), bytes.data());
  return status.ok() ? bytes : status.ToString();
}

// All bytes of kTensors in the file at kPath, or the error.
std::string Content(FileSystem* fs, const std::string& path = kPath) {
  const auto reader = SafetensorsReader::Open(fs, path);
  if (!reader.ok()) return reader.status().ToString();
  return Tensor(**reader, 0) + Tensor(**reader, 1) + Tensor(**reader, 2);
}

absl::Status Export(FileSystem* fs, const std::string& path, absl::string_view content) {
  BALLAST_ASSIGN_OR_RETURN(const Writer writer,
                           SafetensorsWriter::Create(fs, path, kTensors, {{"k", "v"}}));
  BALLAST_RETURN_IF_ERROR(WriteText(writer.get(), 2, 0, content.substr(4)));
  BALLAST_RETURN_IF_ERROR(WriteText(writer.get(), 0, 2, content.substr(2, 2)));
  BALLAST_RETURN_IF_ERROR(WriteText(writer.get(), 0, 0, content.substr(0, 2)));
  return writer->Finish();
}

class SafetensorsWriterTest : public ::testing::Test {
 protected:
  SafetensorsWriterTest() { EXPECT_TRUE(disk_.MakeDirectory("out").ok()); }

  absl::StatusOr<Writer> Create() { return SafetensorsWriter::Create(&disk_, kPath, kTensors, {}); }

  MemoryDisk disk_;
};

TEST_F(SafetensorsWriterTest, WritesInAnyOrderWhatAReaderReads) {
  ASSERT_TRUE(Export(&disk_, kPath, "abcdEFGH").ok());
  EXPECT_EQ(Content(&disk_), "abcdEFGH");
  const auto reader = SafetensorsReader::Open(&disk_, kPath);
  EXPECT_EQ((*reader)->header().metadata.at("k"), "v");
  EXPECT_EQ((*reader)->header().data_offset, kPageBytes);
}

TEST_F(SafetensorsWriterTest, SaysTheBytesOfTheFileBeforehand) {
  const absl::StatusOr<uint64_t> bytes = SafetensorsWriter::FileBytes(kTensors, {{"k", "v"}});
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  ASSERT_TRUE(Export(&disk_, kPath, "abcdEFGH").ok());
  EXPECT_EQ(*(*disk_.Open(kPath, {}))->Size(), *bytes);
  EXPECT_EQ(*bytes, kPageBytes + 8);
}

TEST_F(SafetensorsWriterTest, TheFileAppearsOnlyWhenComplete) {
  const auto writer = Create();
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(WriteText(writer->get(), 0, 0, "abcd").ok());
  ASSERT_TRUE(WriteText(writer->get(), 2, 0, "EFGH").ok());
  EXPECT_THAT(disk_.Paths(), ElementsAre(kPartPath));
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_THAT(disk_.Paths(), ElementsAre(kPath));
}

TEST_F(SafetensorsWriterTest, WithoutFinishNothingIsLeft) {
  ASSERT_TRUE(WriteText(Create()->get(), 0, 0, "abcd").ok());
  EXPECT_THAT(disk_.Paths(), IsEmpty());
}

TEST_F(SafetensorsWriterTest, FinishNamesTheTensorThatLacksBytesAndMayBeCalledAgain) {
  const auto writer = Create();
  ASSERT_TRUE(WriteText(writer->get(), 0, 0, "abcd").ok());
  ASSERT_TRUE(WriteText(writer->get(), 2, 0, "EFG").ok());
  const absl::Status status = (*writer)->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), AllOf(HasSubstr("\"b\""), HasSubstr("4 bytes"), HasSubstr("3 were")));
  EXPECT_THAT(disk_.Paths(), ElementsAre(kPartPath));
  ASSERT_TRUE(WriteText(writer->get(), 2, 3, "H").ok());
  EXPECT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ(Content(&disk_), "abcdEFGH");
}

TEST_F(SafetensorsWriterTest, FinishRefusesBytesThatWereWrittenTwice) {
  const auto writer = Create();
  ASSERT_TRUE(WriteText(writer->get(), 0, 0, "abcd").ok());
  ASSERT_TRUE(WriteText(writer->get(), 0, 0, "a").ok());
  ASSERT_TRUE(WriteText(writer->get(), 2, 0, "EFGH").ok());
  EXPECT_THAT(Text((*writer)->Finish()), HasSubstr("5 were written"));
}

TEST_F(SafetensorsWriterTest, RefusesRangesThatLeaveTheTensor) {
  const auto writer = Create();
  const auto code = [&](size_t tensor, uint64_t offset, absl::string_view text) {
    return WriteText(writer->get(), tensor, offset, text).code();
  };
  EXPECT_EQ(code(0, 0, "abcde"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, 4, "a"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, UINT64_MAX, "ab"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1, 0, "a"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(3, 0, ""), absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsWriterTest, AfterFinishNothingIsWrittenAnyMore) {
  const auto writer = Create();
  ASSERT_TRUE(WriteText(writer->get(), 0, 0, "abcd").ok());
  ASSERT_TRUE(WriteText(writer->get(), 2, 0, "EFGH").ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ(WriteText(writer->get(), 0, 0, "").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SafetensorsWriterTest, TooLittleSpaceIsSaidBeforeAnythingIsMade) {
  disk_.SetCapacity(kPageBytes + 7);
  const absl::Status status = Create().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Text(status),
              AllOf(HasSubstr(kPath), HasSubstr("4104 bytes"), HasSubstr("4103 are free")));
  EXPECT_THAT(disk_.Paths(), IsEmpty());
  disk_.SetCapacity(kPageBytes + 8);
  EXPECT_TRUE(Export(&disk_, kPath, "abcdEFGH").ok());
}

TEST_F(SafetensorsWriterTest, AnErrorAtTheBeginningLeavesNothing) {
  for (const Operation operation : {Operation::kOpen, Operation::kAllocate, Operation::kWrite}) {
    disk_.Fail(operation, 1, ENOSPC);
    EXPECT_EQ(Create().status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(disk_.Paths(), IsEmpty());
  }
}

TEST_F(SafetensorsWriterTest, SpaceIsTakenBeforeItIsWritten) {
  const auto writer = Create();
  disk_.SetCapacity(0);
  ASSERT_TRUE(WriteText(writer->get(), 0, 0, "abcd").ok());
  ASSERT_TRUE(WriteText(writer->get(), 2, 0, "EFGH").ok());
  EXPECT_TRUE((*writer)->Finish().ok());
}

TEST_F(SafetensorsWriterTest, AFullDiskMidwayLeavesOnlyTheOldFile) {
  ASSERT_TRUE(Export(&disk_, kPath, "oldoldol").ok());
  {
    const auto writer = Create();
    ASSERT_TRUE(WriteText(writer->get(), 0, 0, "abcd").ok());
    disk_.Fail(Operation::kWrite, 1, ENOSPC);
    EXPECT_EQ(WriteText(writer->get(), 2, 0, "EFGH").code(), absl::StatusCode::kResourceExhausted);
    // The content of the disk is not known any more.
    EXPECT_TRUE(WriteText(writer->get(), 2, 0, "EFGH").ok());
    EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_THAT(disk_.Paths(), ElementsAre(kPath));
  EXPECT_EQ(Content(&disk_), "oldoldol");
}

TEST_F(SafetensorsWriterTest, AFailedSyncOrRenameLeavesTheOldFile) {
  ASSERT_TRUE(Export(&disk_, kPath, "oldoldol").ok());
  for (const Operation operation : {Operation::kSync, Operation::kRename}) {
    disk_.Fail(operation, 1, EIO);
    EXPECT_EQ(Export(&disk_, kPath, "abcdEFGH").code(), absl::StatusCode::kInternal);
    EXPECT_THAT(disk_.Paths(), ElementsAre(kPath));
    EXPECT_EQ(Content(&disk_), "oldoldol");
  }
}

TEST_F(SafetensorsWriterTest, ASyncThatFailedIsNotTriedAgain) {
  const auto writer = Create();
  ASSERT_TRUE(WriteText(writer->get(), 0, 0, "abcd").ok());
  ASSERT_TRUE(WriteText(writer->get(), 2, 0, "EFGH").ok());
  disk_.Fail(Operation::kSync, 1, EIO);
  EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kInternal);
  EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SafetensorsWriterTest, LeftoversOfAnEarlierAttemptAreReplaced) {
  PutFile(&disk_, kPartPath, std::string(10'000, 'x'));
  disk_.SetCapacity(10'000);  // Room for one of them.
  ASSERT_TRUE(Export(&disk_, kPath, "abcdEFGH").ok());
  EXPECT_THAT(disk_.Paths(), ElementsAre(kPath));
  EXPECT_EQ(Content(&disk_), "abcdEFGH");
}

TEST_F(SafetensorsWriterTest, TakesWritesFromSeveralThreads) {
  constexpr size_t kTensorCount = 8, kBytes = 1000;
  std::vector<TensorEntry> tensors(kTensorCount);
  for (size_t i = 0; i < kTensorCount; ++i) {
    tensors[i] = {.name = absl::StrCat(i), .dtype = SafeDType::kU8, .shape = {kBytes}};
  }
  const auto writer = SafetensorsWriter::Create(&disk_, kPath, tensors, {});
  std::vector<std::thread> threads;
  for (char t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < kTensorCount * kBytes; ++i) {
        const char value = static_cast<char>(i);
        if (i % 4 != static_cast<size_t>(t)) continue;
        EXPECT_TRUE((*writer)->WriteAt(i / kBytes, i % kBytes, {ConstBytes{&value, 1}}).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto reader = SafetensorsReader::Open(&disk_, kPath);
  for (size_t i = 0; i < kTensorCount; ++i) {
    const std::string bytes = Tensor(**reader, i);
    for (size_t k = 0; k < kBytes; ++k) {
      ASSERT_EQ(bytes[k], static_cast<char>(i * kBytes + k)) << i << " " << k;
    }
  }
}

// A disk that asks `step` before each change; an error of it is the change's.
class StepFiles : public ForwardingFiles {
 public:
  using Step = std::function<absl::Status(const std::string& what)>;

  StepFiles(FileSystem* below, Step step) : ForwardingFiles(below), step_(std::move(step)) {}

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) override {
    BALLAST_RETURN_IF_ERROR(step_(options.direct ? "open direct" : "open"));
    BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<File> file, below()->Open(path, options));
    return std::make_unique<StepFile>(std::move(file), &step_);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    BALLAST_RETURN_IF_ERROR(step_("rename"));
    return below()->Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override {
    BALLAST_RETURN_IF_ERROR(step_("remove"));
    return below()->Remove(path);
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    BALLAST_RETURN_IF_ERROR(step_("sync directory"));
    return below()->SyncDirectory(directory);
  }

 private:
  class StepFile : public File {
   public:
    StepFile(std::unique_ptr<File> below, const Step* step)
        : below_(std::move(below)), step_(step) {}

    absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t bytes, void* to) override {
      return below_->ReadAt(offset, bytes, to);
    }
    absl::Status WriteAt(uint64_t offset, absl::Span<const ConstBytes> parts) override {
      bool aligned = offset % kPageBytes == 0;
      uint64_t bytes = 0;
      for (const ConstBytes& part : parts) {
        aligned = aligned && part.bytes % kPageBytes == 0 &&
                  reinterpret_cast<uintptr_t>(part.data) % kPageBytes == 0;
        bytes += part.bytes;
      }
      if (bytes > 0) {
        BALLAST_RETURN_IF_ERROR((*step_)(absl::StrCat("write ", bytes, aligned ? " pages" : "")));
      }
      return below_->WriteAt(offset, parts);
    }
    absl::Status Sync() override {
      BALLAST_RETURN_IF_ERROR((*step_)("sync"));
      return below_->Sync();
    }
    absl::Status Allocate(uint64_t bytes) override { return below_->Allocate(bytes); }
    absl::StatusOr<uint64_t> Size() override { return below_->Size(); }

   private:
    const std::unique_ptr<File> below_;
    const Step* const step_;
  };

  const Step step_;
};

// Exports over an old file and loses power before step number `crash_at` (from 0). Returns whether
// the export had reported success, and the content of kPath afterwards.
std::pair<bool, std::string> ContentAfterPowerLoss(int crash_at, const MemoryDisk::Random& random) {
  MemoryDisk disk;
  EXPECT_TRUE(disk.MakeDirectory("out").ok());
  EXPECT_TRUE(disk.SyncDirectory("").ok());
  EXPECT_TRUE(Export(&disk, kPath, "oldoldol").ok());
  int steps = 0;
  StepFiles files(&disk, [&](const std::string& what) {
    if (steps == crash_at) disk.Crash(random);
    return steps++ < crash_at ? absl::OkStatus() : absl::InternalError(what);
  });
  const bool done = Export(&files, kPath, "abcdEFGH").ok();
  if (done) disk.Crash(random);
  return {done, Content(&disk)};
}

TEST(SafetensorsWriterPowerLoss, AtAnyStepLeavesTheOldFileOrTheNewOne) {
  bool done = false;
  int old_seen = 0, new_seen = 0;
  for (int crash_at = 0; !done; ++crash_at) {
    ASSERT_LT(crash_at, 100);
    for (uint64_t seed = 0; seed < 40; ++seed) {
      std::mt19937_64 chance(seed);
      const auto random = [&]() -> uint64_t { return seed < 2 ? seed : chance(); };
      const auto [finished, content] = ContentAfterPowerLoss(crash_at, random);
      done = finished;
      EXPECT_THAT(content, ::testing::AnyOf("oldoldol", "abcdEFGH"))
          << "step " << crash_at << ", seed " << seed;
      EXPECT_TRUE(!finished || content == "abcdEFGH") << "seed " << seed;
      ++(content == "oldoldol" ? old_seen : new_seen);
    }
  }
  EXPECT_GT(old_seen, 0);
  EXPECT_GT(new_seen, 40);  // Also before it had said so.
}

TEST(SafetensorsWriterSteps, BytesAreSafeBeforeTheyHaveTheirName) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("out").ok());
  std::vector<std::string> steps;
  StepFiles files(&disk, [&](const std::string& what) {
    steps.push_back(what);
    return absl::OkStatus();
  });
  ASSERT_TRUE(Export(&files, kPath, "abcdEFGH").ok());
  EXPECT_THAT(steps, ElementsAre("remove", "open direct", "write 4096", "write 4", "write 2",
                                 "write 2", "sync", "rename", "sync directory"));
}

TEST(SafetensorsWriterSteps, TheFileOfAnotherExportOfTheSameMomentIsLeftAlone) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("out").ok());
  StepFiles files(&disk, [&](const std::string& what) {
    if (what == "open direct") PutFile(&disk, kPartPath, "other");
    return absl::OkStatus();
  });
  EXPECT_EQ(Export(&files, kPath, "abcdEFGH").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadWholeFile(&disk, kPartPath, 100).value_or("gone"), "other");
}

TEST(SafetensorsWriterSteps, LargePartsGoPastThePageCacheButForTheirEnds) {
  MemoryDisk disk;
  std::vector<std::string> steps;
  StepFiles files(&disk, [&](const std::string& what) {
    steps.push_back(what);
    return absl::OkStatus();
  });
  constexpr size_t kBytes = 100'000;
  const auto writer = SafetensorsWriter::Create(
      &files, "m.safetensors", {{.name = "a", .dtype = SafeDType::kU8, .shape = {5 + kBytes}}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(kPageBytes, 26 * kPageBytes)), std::free);
  for (size_t i = 0; i < 26 * kPageBytes; ++i) memory.get()[i] = static_cast<char>(i * 7);
  steps.clear();
  // Byte 5 of the tensor lies 5 bytes after the start of a page of the file; so does the memory.
  ASSERT_TRUE((*writer)->WriteAt(0, 0, {ConstBytes{memory.get(), 5}}).ok());
  ASSERT_TRUE((*writer)->WriteAt(0, 5, {ConstBytes{memory.get() + 5, kBytes}}).ok());
  EXPECT_THAT(steps, ElementsAre("write 5", "write 4091", "write 94208 pages", "write 1701"));
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto reader = SafetensorsReader::Open(&disk, "m.safetensors");
  EXPECT_EQ(Tensor(**reader, 0), std::string(memory.get(), 5 + kBytes));
}

TEST(SafetensorsWriterSteps, LargePartsOfOtherMemoryGoThroughIt) {
  MemoryDisk disk;
  std::vector<std::string> steps;
  StepFiles files(&disk, [&](const std::string& what) {
    steps.push_back(what);
    return absl::OkStatus();
  });
  const std::string bytes(100'000 + kPageBytes, 'x');
  const auto writer = SafetensorsWriter::Create(
      &files, "m.safetensors", {{.name = "a", .dtype = SafeDType::kU8, .shape = {100'001}}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const uint64_t pad =
      (kPageBytes - reinterpret_cast<uintptr_t>(bytes.data()) % kPageBytes + 1) % kPageBytes;
  steps.clear();
  ASSERT_TRUE((*writer)
                  ->WriteAt(0, 0, {ConstBytes{"y", 1}, ConstBytes{bytes.data() + pad + 1, 100'000}})
                  .ok());
  EXPECT_THAT(steps, ElementsAre("write 1", "write 100000"));
}

class SafetensorsWriterOnDisk : public ::testing::Test {
 protected:
  SafetensorsWriterOnDisk() : directory_(::testing::TempDir() + "safetensors_test.XXXXXX") {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr) << strerror(errno);
  }
  ~SafetensorsWriterOnDisk() override {
    EXPECT_TRUE(PosixFileSystem()->RemoveAll(directory_).ok());
  }

  std::string directory_;
};

TEST_F(SafetensorsWriterOnDisk, WritesWhatAReaderReads) {
  const std::string path = directory_ + "/m.safetensors";
  constexpr size_t kBytes = 1'000'003;
  const std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(kPageBytes, 256 * kPageBytes)), std::free);
  for (size_t i = 0; i < kBytes; ++i) memory.get()[i] = static_cast<char>(i * 7 + (i >> 9));
  const std::vector<TensorEntry> tensors = {
      {.name = "a", .dtype = SafeDType::kU8, .shape = {kBytes}},
      {.name = "b", .dtype = SafeDType::kU8, .shape = {kBytes}}};
  const auto writer = SafetensorsWriter::Create(PosixFileSystem(), path, tensors, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->WriteAt(1, 0, {ConstBytes{memory.get(), kBytes}}).ok());
  ASSERT_TRUE((*writer)->WriteAt(0, 0, {ConstBytes{memory.get(), kBytes}}).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_THAT(*PosixFileSystem()->List(directory_), ElementsAre("m.safetensors"));
  const auto reader = SafetensorsReader::Open(PosixFileSystem(), path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const absl::string_view expected(memory.get(), kBytes);
  EXPECT_TRUE(Tensor(**reader, 0) == expected);
  EXPECT_TRUE(Tensor(**reader, 1) == expected);
}

TEST_F(SafetensorsWriterOnDisk, DoesNotFollowALinkUnderTheTemporaryName) {
  const std::string path = directory_ + "/m.safetensors", other = directory_ + "/other";
  PutFile(PosixFileSystem(), other, "mine");
  ASSERT_EQ(symlink(other.c_str(), (path + ".part").c_str()), 0);
  ASSERT_TRUE(Export(PosixFileSystem(), path, "abcdEFGH").ok());
  EXPECT_EQ(*ReadWholeFile(PosixFileSystem(), other, 100), "mine");
  EXPECT_EQ(Content(PosixFileSystem(), path), "abcdEFGH");
}

TEST_F(SafetensorsWriterOnDisk, ADirectoryThatIsNotThereIsNotFound) {
  EXPECT_EQ(Export(PosixFileSystem(), directory_ + "/none/m.safetensors", "abcdEFGH").code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ballast
