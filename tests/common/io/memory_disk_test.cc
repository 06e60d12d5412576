// Tests of common/io/memory_disk.h: the content after a crash, and the faults. Behaviour shared
// with every FileSystem is tested in file_test.cc.
#include "common/io/memory_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Operation = MemoryDisk::Operation;

const MemoryDisk::Random kKeepAll = [] { return 0; };
const MemoryDisk::Random kLoseAll = [] { return 1; };

std::unique_ptr<File> Open(MemoryDisk* disk, const std::string& path,
                           OpenMode mode = OpenMode::kCreate) {
  auto file = disk->Open(path, {.mode = mode});
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

absl::Status Write(File* file, uint64_t offset, absl::string_view text) {
  return file->WriteAt(offset, {ConstBytes{text.data(), text.size()}});
}

std::string Content(MemoryDisk* disk, const std::string& path) {
  const absl::StatusOr<std::string> content = ReadWholeFile(disk, path, size_t{1} << 20);
  return content.ok() ? *content : content.status().ToString();
}

// A disk with file "a" of `content`, all of it safe.
std::unique_ptr<MemoryDisk> DiskWith(const std::string& content) {
  auto disk = std::make_unique<MemoryDisk>();
  EXPECT_TRUE(ReplaceFile(disk.get(), "a", content).ok());
  return disk;
}

TEST(MemoryDiskTest, ALinkIsSafeOnceItsDirectoryIsSyncedAndTakesNoSpace) {
  auto disk = DiskWith("text");
  const uint64_t free = *disk->FreeBytes("/");
  ASSERT_TRUE(disk->Link("a", "lost").ok());
  EXPECT_EQ(*disk->FreeBytes("/"), free);
  disk->Crash(kLoseAll);
  EXPECT_THAT(disk->Paths(), ElementsAre("a"));
  ASSERT_TRUE(disk->Link("a", "b").ok());
  ASSERT_TRUE(disk->SyncDirectory("/").ok());
  ASSERT_TRUE(disk->Remove("a").ok());
  ASSERT_TRUE(disk->SyncDirectory("/").ok());
  disk->Crash(kLoseAll);
  EXPECT_EQ(Content(disk.get(), "b"), "text");
  disk->Fail(Operation::kLink, 1, EXDEV);
  EXPECT_EQ(disk->Link("b", "c").code(), absl::StatusCode::kUnimplemented);
}

TEST(MemoryDiskTest, ACrashMayKeepOrLoseUnsyncedWrites) {
  for (const bool keep : {true, false}) {
    auto disk = DiskWith("old");
    auto file = Open(disk.get(), "a", OpenMode::kWrite);
    ASSERT_TRUE(Write(file.get(), 0, "new and longer").ok());
    ASSERT_TRUE(file->Allocate(20).ok());
    EXPECT_EQ(*file->Size(), 20u);
    disk->Crash(keep ? kKeepAll : kLoseAll);
    EXPECT_EQ(Content(disk.get(), "a"),
              keep ? "new and longer" + std::string(6, '\0') : std::string("old"));
  }
}

TEST(MemoryDiskTest, SyncedBytesSurviveEveryCrash) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100; ++i) {
    MemoryDisk disk;
    ASSERT_TRUE(disk.MakeDirectory("d").ok());
    auto file = Open(&disk, "d/a");
    ASSERT_TRUE(Write(file.get(), 0, "first").ok());
    ASSERT_TRUE(file->Sync().ok());
    ASSERT_TRUE(disk.SyncDirectory("d").ok());
    ASSERT_TRUE(disk.SyncDirectory("/").ok());
    ASSERT_TRUE(Write(file.get(), 5, " second").ok());
    disk.Crash(std::ref(random));
    ASSERT_THAT(Content(&disk, "d/a"), ::testing::AnyOf("first", "first second"));
  }
}

TEST(MemoryDiskTest, AWriteIsTornAtSectorsOnly) {
  const std::string old_bytes(2048, 'o'), new_bytes(1100, 'n');
  std::mt19937_64 random(2);
  std::set<std::string> seen;
  for (int i = 0; i < 300; ++i) {
    auto disk = DiskWith(old_bytes);
    ASSERT_TRUE(Write(Open(disk.get(), "a", OpenMode::kWrite).get(), 500, new_bytes).ok());
    disk->Crash(std::ref(random));
    std::string got = Content(disk.get(), "a");
    std::string shape;
    for (auto [begin, end] :
         {std::pair{0, 500}, {500, 512}, {512, 1024}, {1024, 1536}, {1536, 1600}, {1600, 2048}}) {
      const std::string piece = got.substr(begin, end - begin);
      ASSERT_EQ(piece, std::string(piece.size(), piece[0])) << "torn inside a sector";
      shape += piece[0];
    }
    ASSERT_EQ(shape.front(), 'o');
    ASSERT_EQ(shape.back(), 'o');
    seen.insert(shape);
  }
  EXPECT_EQ(seen.size(), 16u);  // Each of four sectors old or new.
}

TEST(MemoryDiskTest, WritesAreLostOneByOneNotOnlyTheLast) {
  std::mt19937_64 random(3);
  std::set<std::string> seen;
  for (int i = 0; i < 300; ++i) {
    auto disk = DiskWith("..");
    auto file = Open(disk.get(), "a", OpenMode::kWrite);
    ASSERT_TRUE(Write(file.get(), 0, "1").ok());
    ASSERT_TRUE(Write(file.get(), 1, "2").ok());
    disk->Crash(std::ref(random));
    seen.insert(Content(disk.get(), "a"));
  }
  EXPECT_THAT(seen, UnorderedElementsAre("..", "1.", ".2", "12"));
}

TEST(MemoryDiskTest, TheSameChoicesGiveTheSameDisk) {
  const auto run = [](uint64_t seed) {
    std::mt19937_64 random(seed);
    MemoryDisk disk;
    for (int i = 0; i < 40; ++i) {
      const std::string path = std::to_string(random() % 10);
      EXPECT_TRUE(Write(Open(&disk, path).get(), random() % 700, std::string(900, 'x')).ok());
      EXPECT_TRUE(disk.Rename(path, std::to_string(random() % 10)).ok());
      EXPECT_TRUE(i != 20 || disk.SyncDirectory("").ok());
    }
    disk.Crash(std::ref(random));
    std::string all;
    for (const std::string& path : disk.Paths()) all += path + "=" + Content(&disk, path) + ";";
    return all;
  };
  EXPECT_EQ(run(4), run(4));
  EXPECT_NE(run(4), run(5));
}

TEST(MemoryDiskTest, EmptyingAFileMayBeUndone) {
  auto disk = DiskWith("old");
  ASSERT_TRUE(Write(Open(disk.get(), "a").get(), 0, "n").ok());
  EXPECT_EQ(Content(disk.get(), "a"), "n");
  disk->Crash(kLoseAll);
  EXPECT_EQ(Content(disk.get(), "a"), "old");
}

TEST(MemoryDiskTest, NamesAreSafeAfterSyncOfTheirDirectoryOnly) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("d").ok());
  auto file = Open(&disk, "d/a");
  ASSERT_TRUE(Write(file.get(), 0, "safe").ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(disk.SyncDirectory("d").ok());
  // The name of "d" itself was not synced.
  disk.Crash(kLoseAll);
  EXPECT_THAT(disk.Paths(), ElementsAre());

  ASSERT_TRUE(disk.MakeDirectory("d").ok());
  ASSERT_TRUE(disk.SyncDirectory("").ok());
  ASSERT_TRUE(ReplaceFile(&disk, "d/a", "1").ok());
  ASSERT_TRUE(ReplaceFile(&disk, "d/b", "2").ok());
  ASSERT_TRUE(disk.Rename("d/a", "d/c").ok());
  ASSERT_TRUE(disk.Remove("d/b").ok());
  EXPECT_THAT(disk.Paths(), ElementsAre("d/c"));
  disk.Crash(kLoseAll);
  EXPECT_THAT(disk.Paths(), ElementsAre("d/a", "d/b"));

  ASSERT_TRUE(disk.Rename("d/a", "d/c").ok());
  ASSERT_TRUE(disk.Remove("d/b").ok());
  ASSERT_TRUE(disk.SyncDirectory("d").ok());
  disk.Crash(kLoseAll);
  EXPECT_THAT(disk.Paths(), ElementsAre("d/c"));
  EXPECT_EQ(Content(&disk, "d/c"), "1");
}

TEST(MemoryDiskTest, ARenamedFileHasOneNameAfterAnyCrash) {
  std::mt19937_64 random(6);
  std::set<std::string> seen;
  for (int i = 0; i < 300; ++i) {
    MemoryDisk disk;
    ASSERT_TRUE(disk.MakeDirectory("x").ok());
    ASSERT_TRUE(disk.MakeDirectory("y").ok());
    ASSERT_TRUE(ReplaceFile(&disk, "x/a", "1").ok());
    ASSERT_TRUE(disk.SyncDirectory("").ok());
    ASSERT_TRUE(disk.Rename("x/a", "y/b").ok());
    ASSERT_TRUE(disk.Rename("y/b", "y/c").ok());
    ASSERT_TRUE(disk.Rename("y/c", "x/d").ok());
    disk.Crash(std::ref(random));
    ASSERT_EQ(disk.Paths().size(), 1u);
    seen.insert(disk.Paths()[0]);
  }
  EXPECT_THAT(seen, UnorderedElementsAre("x/a", "y/b", "y/c", "x/d"));
}

TEST(MemoryDiskTest, SyncOfADirectoryMakesRenamesDurable) {
  for (const bool keep : {true, false}) {
    MemoryDisk disk;
    ASSERT_TRUE(disk.MakeDirectory("x").ok());
    ASSERT_TRUE(disk.MakeDirectory("y").ok());
    ASSERT_TRUE(disk.SyncDirectory("").ok());
    ASSERT_TRUE(Open(&disk, "x/a")->Sync().ok());
    ASSERT_TRUE(Open(&disk, "x/other")->Sync().ok());
    ASSERT_TRUE(disk.Rename("x/a", "y/b").ok());
    ASSERT_TRUE(disk.SyncDirectory("y").ok());
    disk.Crash(keep ? kKeepAll : kLoseAll);
    // Never "x/a" again; "x/other" was not saved along.
    const std::vector<std::string> kept = {"x/other", "y/b"}, lost = {"y/b"};
    EXPECT_EQ(disk.Paths(), keep ? kept : lost);
  }
}

TEST(MemoryDiskTest, ReplaceFileLeavesOldOrNewWhateverIsLost) {
  std::mt19937_64 random(7);
  std::set<std::string> seen;
  const std::string old_content(3000, 'o'), new_content(3000, 'n');
  for (int i = 0; i < 300; ++i) {
    auto disk = DiskWith(old_content);
    disk->Fail(Operation::kSync, 2, EIO);  // Of the directory: the new name is not safe.
    EXPECT_EQ(ReplaceFile(disk.get(), "a", new_content).code(), absl::StatusCode::kInternal);
    disk->Crash(std::ref(random));
    seen.insert(Content(disk.get(), "a"));
  }
  EXPECT_THAT(seen, UnorderedElementsAre(old_content, new_content));
}

TEST(MemoryDiskTest, RemoveAllMayBeCutShort) {
  std::mt19937_64 random(8);
  std::set<size_t> seen;
  for (int i = 0; i < 100; ++i) {
    MemoryDisk disk;
    ASSERT_TRUE(disk.MakeDirectory("d").ok());
    ASSERT_TRUE(disk.SyncDirectory("").ok());
    ASSERT_TRUE(ReplaceFile(&disk, "d/a", "").ok());
    ASSERT_TRUE(ReplaceFile(&disk, "d/b", "").ok());
    ASSERT_TRUE(disk.RemoveAll("d").ok());
    EXPECT_THAT(disk.Paths(), ElementsAre());
    disk.Crash(std::ref(random));
    seen.insert(disk.Paths().size());
  }
  EXPECT_THAT(seen, UnorderedElementsAre(0, 1, 2));
}

TEST(MemoryDiskTest, FilesFromBeforeACrashAreDead) {
  auto disk = DiskWith("a");
  auto file = Open(disk.get(), "a", OpenMode::kWrite);
  disk->Crash(kKeepAll);
  char byte;
  for (const absl::Status& status : {Write(file.get(), 0, "b"), file->Sync(), file->Allocate(9),
                                     file->Size().status(), file->ReadAt(0, 1, &byte).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("opened before the disk crashed"));
  }
  EXPECT_EQ(Content(disk.get(), "a"), "a");
}

TEST(MemoryDiskTest, ALaterSyncDoesNotMakeUpForAFailedOne) {
  auto disk = DiskWith("......");
  auto file = Open(disk.get(), "a", OpenMode::kWrite);
  ASSERT_TRUE(Write(file.get(), 0, "11").ok());
  ASSERT_TRUE(Write(file.get(), 3, "33").ok());
  disk->Fail(Operation::kSync, 1, EIO);
  EXPECT_EQ(file->Sync().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Content(disk.get(), "a"), "11.33.");
  ASSERT_TRUE(Write(file.get(), 4, "44").ok());
  ASSERT_TRUE(file->Sync().ok());
  disk->Crash(kLoseAll);
  EXPECT_EQ(Content(disk.get(), "a"), "....44");
}

TEST(MemoryDiskTest, AnAbandonedWriteNeverCoversALaterSavedOne) {
  auto disk = DiskWith("......");
  auto file = Open(disk.get(), "a", OpenMode::kWrite);
  ASSERT_TRUE(Write(file.get(), 0, "1111").ok());
  disk->Fail(Operation::kSync, 1, EIO);
  EXPECT_FALSE(file->Sync().ok());
  ASSERT_TRUE(Write(file.get(), 2, "22").ok());
  ASSERT_TRUE(file->Sync().ok());
  disk->Crash(kKeepAll);
  EXPECT_THAT(Content(disk.get(), "a").substr(2), "22..");
}

TEST(MemoryDiskTest, TheNthOperationFailsAndOnlyThat) {
  auto disk = DiskWith("");
  auto file = Open(disk.get(), "a", OpenMode::kWrite);
  disk->Fail(Operation::kWrite, 2, EIO);
  disk->Fail(Operation::kWrite, 4, ENOSPC);
  EXPECT_TRUE(Write(file.get(), 0, "1").ok());
  const absl::Status failed = Write(file.get(), 1, "2");
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("cannot write 1 bytes at offset 1 of a:"));
  EXPECT_TRUE(Write(file.get(), 2, "3").ok());
  EXPECT_EQ(Write(file.get(), 3, "4").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Content(disk.get(), "a"), std::string("1\0003", 3));

  char byte;
  for (Operation operation : {Operation::kOpen, Operation::kRead, Operation::kSync,
                              Operation::kAllocate, Operation::kRename, Operation::kRemove}) {
    disk->Fail(operation, 1, EIO);
  }
  EXPECT_EQ(disk->Open("a", {}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(file->ReadAt(0, 1, &byte).status().code(), absl::StatusCode::kDataLoss);
  disk->Fail(Operation::kOpen, 1, EIO);
  EXPECT_EQ(disk->Open("b", {.mode = OpenMode::kCreate}).status().code(),
            absl::StatusCode::kInternal);
  const auto internal = absl::StatusCode::kInternal;
  EXPECT_EQ(disk->SyncDirectory("").code(), internal);
  EXPECT_EQ(file->Allocate(100).code(), internal);
  EXPECT_EQ(disk->Rename("a", "b").code(), internal);
  EXPECT_EQ(disk->Remove("a").code(), internal);
  EXPECT_TRUE(disk->Remove("a").ok());
}

TEST(MemoryDiskTest, AFullDiskTakesAsManyBytesAsFit) {
  MemoryDisk disk(10);
  auto a = Open(&disk, "a"), b = Open(&disk, "b");
  ASSERT_TRUE(a->Allocate(6).ok());
  EXPECT_EQ(*disk.FreeBytes("a"), 4u);
  EXPECT_EQ(Write(b.get(), 1, "12345").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Content(&disk, "b"), std::string("\0"
                                             "123",
                                             4));
  EXPECT_TRUE(Write(a.get(), 0, "inside").ok());
  EXPECT_EQ(a->Allocate(7).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Write(b.get(), 100, "1").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*b->Size(), 4u);
  disk.SetCapacity(5);
  EXPECT_EQ(*disk.FreeBytes(""), 0u);
  disk.SetCapacity(11);
  EXPECT_TRUE(Write(b.get(), 4, "x").ok());
  EXPECT_TRUE(disk.Remove("a").ok());
  EXPECT_EQ(*disk.FreeBytes(""), 6u);
  EXPECT_EQ(Write(b.get(), uint64_t{1} << 63, "x").code(), absl::StatusCode::kInternal);
}

TEST(MemoryDiskTest, WritesAreLostAndMisdirectedSilently) {
  auto disk = DiskWith("......");
  auto file = Open(disk.get(), "a", OpenMode::kWrite);
  disk->LoseNextWrite();
  ASSERT_TRUE(Write(file.get(), 0, "1").ok());
  disk->MisdirectNextWrite(4);
  ASSERT_TRUE(Write(file.get(), 1, "2").ok());
  ASSERT_TRUE(Write(file.get(), 2, "3").ok());
  ASSERT_TRUE(file->Sync().ok());
  disk->Crash(kLoseAll);
  EXPECT_EQ(Content(disk.get(), "a"), "..3.2.");
}

TEST(MemoryDiskTest, AFlippedBitStaysFlipped) {
  auto disk = DiskWith("AB");
  ASSERT_TRUE(Write(Open(disk.get(), "a", OpenMode::kWrite).get(), 1, "CD").ok());
  ASSERT_TRUE(disk->FlipBit("a", 0, 5).ok());
  ASSERT_TRUE(disk->FlipBit("a", 2, 5).ok());
  EXPECT_EQ(Content(disk.get(), "a"), "aCd");
  disk->Crash(kKeepAll);
  EXPECT_EQ(Content(disk.get(), "a"), "aCd");
  EXPECT_EQ(disk->FlipBit("a", 3, 0).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(disk->FlipBit("b", 0, 0).code(), absl::StatusCode::kNotFound);
}

TEST(MemoryDiskTest, PathsAreFilesInAscendingOrder) {
  MemoryDisk disk;
  for (const char* directory : {"/x/y", "./empty"}) {
    ASSERT_TRUE(disk.MakeDirectory(directory).ok());
  }
  for (const char* path : {"x/y/b", "/x/a", "x.log", "./b", "a"}) Open(&disk, path);
  EXPECT_THAT(disk.Paths(), ElementsAre("a", "b", "x.log", "x/a", "x/y/b"));
}

}  // namespace
}  // namespace ballast
