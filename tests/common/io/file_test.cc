// What common/io/file.h promises, asked of every FileSystem, and its two helpers.
#include "common/io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/io/file_error.h"
#include "common/io/memory_disk.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

absl::Status WriteText(File* file, uint64_t offset, absl::string_view text) {
  return file->WriteAt(offset, {ConstBytes{text.data(), text.size()}});
}

std::string ReadText(File* file, uint64_t offset, size_t bytes) {
  std::string text(bytes, '?');
  const absl::StatusOr<size_t> read = file->ReadAt(offset, bytes, text.data());
  if (!read.ok()) return read.status().ToString();
  text.resize(*read);
  return text;
}

// A page-aligned buffer, as direct I/O wants it.
struct Pages {
  Pages(size_t count, char fill)
      : bytes(count * kPageBytes),
        data(static_cast<char*>(std::aligned_alloc(kPageBytes, bytes)), std::free) {
    std::memset(data.get(), fill, bytes);
  }
  const size_t bytes;
  const std::unique_ptr<char, decltype(&std::free)> data;
};

class FileTest : public ::testing::TestWithParam<const char*> {
 protected:
  FileTest() {
    std::string name = ::testing::TempDir() + "file_test.XXXXXX";
    if (GetParam() == std::string("posix")) {
      EXPECT_NE(mkdtemp(name.data()), nullptr) << strerror(errno);
      fs_ = PosixFileSystem();
    } else {
      fs_ = &disk_;
      EXPECT_TRUE(fs_->MakeDirectory(name).ok());
    }
    directory_ = name;
  }
  ~FileTest() override { EXPECT_TRUE(fs_->RemoveAll(directory_).ok()); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& name, OpenMode mode,
                                             bool direct = false) {
    return fs_->Open(Path(name), {.mode = mode, .direct = direct});
  }

  MemoryDisk disk_;
  FileSystem* fs_ = nullptr;
  std::string directory_;
};

INSTANTIATE_TEST_SUITE_P(, FileTest, ::testing::Values("posix", "memory"),
                         [](const auto& test) { return test.param; });

TEST_P(FileTest, WritesConsecutivePartsAndReadsThemBack) {
  auto file = *Open("a", OpenMode::kCreate);
  ASSERT_TRUE(file->WriteAt(3, {{"", 0}, {"one", 3}, {nullptr, 0}, {"two", 3}, {"", 0}}).ok());
  ASSERT_TRUE(file->WriteAt(0, {}).ok());
  EXPECT_EQ(*file->Size(), 9u);
  EXPECT_EQ(ReadText(file.get(), 0, 100), std::string("\0\0\0onetwo", 9));
  EXPECT_EQ(ReadText(file.get(), 4, 3), "net");
  EXPECT_EQ(ReadText(file.get(), 9, 1), "");
  EXPECT_EQ(ReadText(file.get(), 100, 1), "");
  EXPECT_TRUE(file->Sync().ok());
}

TEST_P(FileTest, WritesMorePartsThanTheSystemTakesAtOnce) {
  auto file = *Open("a", OpenMode::kCreate);
  std::string expected;
  std::vector<std::string> texts;
  for (int i = 0; i < 5000; ++i)
    texts.push_back(std::string(i % 7, static_cast<char>('a' + i % 26)));
  std::vector<ConstBytes> parts;
  for (const std::string& text : texts) {
    parts.push_back({text.data(), text.size()});
    expected += text;
  }
  ASSERT_TRUE(file->WriteAt(11, parts).ok());
  EXPECT_EQ(ReadText(file.get(), 11, expected.size() + 1), expected);
}

TEST_P(FileTest, ModesCreateEmptyAndRefuse) {
  EXPECT_EQ(Open("a", OpenMode::kRead).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Open("a", OpenMode::kWrite).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Open("missing/a", OpenMode::kCreate).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteText(Open("a", OpenMode::kCreateNew)->get(), 0, "abc").ok());
  const absl::Status twice = Open("a", OpenMode::kCreateNew).status();
  EXPECT_EQ(twice.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Text(twice), HasSubstr("open " + Path("a") + ": File exists"));
  ASSERT_TRUE(WriteText(Open("a", OpenMode::kWrite)->get(), 1, "X").ok());
  EXPECT_EQ(ReadText(Open("a", OpenMode::kRead)->get(), 0, 9), "aXc");
  const absl::Status refused = WriteText(Open("a", OpenMode::kRead)->get(), 1, "X");
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Text(refused), HasSubstr("cannot write 1 bytes at offset 1 of " + Path("a")));
  EXPECT_EQ(*(*Open("a", OpenMode::kCreate))->Size(), 0u);
}

TEST_P(FileTest, AllocateGrowsWithZerosAndNeverShrinks) {
  auto file = *Open("a", OpenMode::kCreate);
  ASSERT_TRUE(WriteText(file.get(), 0, "abc").ok());
  ASSERT_TRUE(file->Allocate(0).ok());
  ASSERT_TRUE(file->Allocate(1).ok());
  EXPECT_EQ(*file->Size(), 3u);
  ASSERT_TRUE(file->Allocate(200000).ok());
  EXPECT_EQ(*file->Size(), 200000u);
  EXPECT_EQ(ReadText(file.get(), 0, 300000), "abc" + std::string(199997, '\0'));
  EXPECT_FALSE(Open("a", OpenMode::kRead).value()->Allocate(300000).ok());
}

TEST_P(FileTest, AlignedAndUnalignedRequestsOfADirectFileSeeEachOther) {
  auto file = *Open("a", OpenMode::kCreate, /*direct=*/true);
  const Pages written(3, 'x');
  ASSERT_TRUE(file->WriteAt(0, {{written.data.get(), written.bytes}}).ok());
  Pages read(3, '?');
  for (uint64_t offset : {uint64_t{5}, kPageBytes + 1, 2 * kPageBytes - 1}) {
    ASSERT_TRUE(WriteText(file.get(), offset, "yy").ok());
    ASSERT_EQ(*file->ReadAt(0, read.bytes, read.data.get()), read.bytes);
    EXPECT_EQ(std::string(read.data.get() + offset - 1, 4), "xyyx");
  }
  // The page was just read through the cache, which must not keep it.
  ASSERT_EQ(ReadText(file.get(), kPageBytes - 1, 2), "xx");
  const Pages again(1, 'z');
  ASSERT_TRUE(file->WriteAt(kPageBytes, {{again.data.get(), again.bytes}}).ok());
  EXPECT_EQ(ReadText(file.get(), kPageBytes - 1, 3), "xzz");
  EXPECT_TRUE(file->Sync().ok());
}

TEST_P(FileTest, DirectReadsStopAtTheEndOfAnUnalignedFile) {
  auto file = *Open("a", OpenMode::kCreate, /*direct=*/true);
  ASSERT_TRUE(WriteText(file.get(), kPageBytes, "tail").ok());
  Pages read(3, '?');
  EXPECT_EQ(*file->ReadAt(0, read.bytes, read.data.get()), kPageBytes + 4);
  EXPECT_EQ(std::string(read.data.get() + kPageBytes, 4), "tail");
  EXPECT_EQ(*file->ReadAt(2 * kPageBytes, kPageBytes, read.data.get()), 0u);
}

TEST_P(FileTest, DirectIoIsAskedWithoutLeavingAnything) {
  fs_->DirectIo(directory_);
  EXPECT_THAT(*fs_->List(directory_), ElementsAre());
}

TEST_P(FileTest, NamesAreListedRenamedAndRemoved) {
  for (const char* name : {"c", "a", "b"}) {
    ASSERT_TRUE(WriteText(Open(name, OpenMode::kCreate)->get(), 0, name).ok());
  }
  EXPECT_THAT(*fs_->List(directory_), ElementsAre("a", "b", "c"));
  ASSERT_TRUE(fs_->Rename(Path("a"), Path("c")).ok());
  EXPECT_THAT(*fs_->List(directory_), ElementsAre("b", "c"));
  EXPECT_EQ(*ReadWholeFile(fs_, Path("c"), 9), "a");
  ASSERT_TRUE(fs_->Remove(Path("c")).ok());
  EXPECT_TRUE(fs_->SyncDirectory(directory_).ok());
  EXPECT_THAT(*fs_->List(directory_), ElementsAre("b"));

  const auto not_found = absl::StatusCode::kNotFound;
  EXPECT_EQ(fs_->Remove(Path("c")).code(), not_found);
  EXPECT_EQ(fs_->Rename(Path("c"), Path("d")).code(), not_found);
  EXPECT_EQ(fs_->List(Path("c")).status().code(), not_found);
  EXPECT_EQ(fs_->SyncDirectory(Path("c")).code(), not_found);
  EXPECT_EQ(fs_->FreeBytes(Path("c")).status().code(), not_found);
  EXPECT_THAT(Text(fs_->Rename(Path("c"), Path("d"))),
              HasSubstr("cannot rename " + Path("c") + " to " + Path("d") + ": No such file"));
  EXPECT_EQ(fs_->List(Path("b")).status().code(), absl::StatusCode::kInternal);
}

TEST_P(FileTest, AFileWithTwoNamesIsThereUntilBothAreRemoved) {
  ASSERT_TRUE(ReplaceFile(fs_, Path("a"), "text").ok());
  ASSERT_TRUE(fs_->MakeDirectory(Path("x")).ok());
  ASSERT_TRUE(fs_->Link(Path("a"), Path("x/b")).ok());
  ASSERT_TRUE(WriteText(Open("a", OpenMode::kWrite)->get(), 0, "T").ok());
  EXPECT_EQ(*ReadWholeFile(fs_, Path("x/b"), 9), "Text") << "it is one file";
  ASSERT_TRUE(fs_->Remove(Path("a")).ok());
  EXPECT_EQ(*ReadWholeFile(fs_, Path("x/b"), 9), "Text");
  EXPECT_EQ(fs_->Link(Path("a"), Path("c")).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(ReplaceFile(fs_, Path("a"), "other").ok());
  EXPECT_EQ(fs_->Link(Path("a"), Path("x/b")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(fs_->Link(Path("x"), Path("y")).ok()) << "no directories";
}

TEST_P(FileTest, DirectoriesAreMadeWithParentsMovedAndRemovedWhole) {
  ASSERT_TRUE(fs_->MakeDirectory(Path("x/y/z")).ok());
  ASSERT_TRUE(fs_->MakeDirectory(Path("x/y")).ok());
  ASSERT_TRUE(ReplaceFile(fs_, Path("x/y/z/file"), "deep").ok());
  EXPECT_EQ(fs_->MakeDirectory(Path("x/y/z/file/more")).code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(fs_->Remove(Path("x")).ok());
  EXPECT_FALSE(fs_->Rename(Path("x"), Path("x/y/z/x")).ok());
  EXPECT_FALSE(fs_->Rename(Path("x/y/z/file"), Path("x")).ok());
  ASSERT_TRUE(fs_->MakeDirectory(Path("empty")).ok());
  EXPECT_FALSE(fs_->Rename(Path("empty"), Path("x")).ok());
  ASSERT_TRUE(fs_->Rename(Path("x/y"), Path("empty")).ok());
  EXPECT_EQ(*ReadWholeFile(fs_, Path("empty/z/file"), 9), "deep");
  EXPECT_THAT(*fs_->List(Path("x")), ElementsAre());
  ASSERT_TRUE(fs_->RemoveAll(Path("empty")).ok());
  ASSERT_TRUE(fs_->RemoveAll(Path("empty")).ok());
  EXPECT_THAT(*fs_->List(directory_), ElementsAre("x"));
}

TEST_P(FileTest, FreeBytesAreMoreThanNone) { EXPECT_GT(*fs_->FreeBytes(directory_), 0u); }

TEST_P(FileTest, ReplaceFileLeavesTheNewContentAndNothingElse) {
  for (const std::string& content :
       {std::string("old and long"), std::string("new"), std::string(), std::string(100000, 'b')}) {
    ASSERT_TRUE(ReplaceFile(fs_, Path("a"), content).ok());
    EXPECT_EQ(*ReadWholeFile(fs_, Path("a"), content.size()), content);
    EXPECT_THAT(*fs_->List(directory_), ElementsAre("a"));
  }
  EXPECT_EQ(ReplaceFile(fs_, Path("missing/a"), "x").code(), absl::StatusCode::kNotFound);
}

TEST_P(FileTest, ReadWholeFileRefusesWhatIsLongerThanTheLimit) {
  ASSERT_TRUE(ReplaceFile(fs_, Path("a"), "12345").ok());
  EXPECT_EQ(*ReadWholeFile(fs_, Path("a"), 5), "12345");
  const absl::Status refused = ReadWholeFile(fs_, Path("a"), 4).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Text(refused), HasSubstr("5 bytes, the limit is 4"));
  EXPECT_EQ(ReadWholeFile(fs_, Path("b"), 4).status().code(), absl::StatusCode::kNotFound);
}

TEST(ReplaceFileTest, AFailureAnywhereKeepsTheOldContent) {
  using Operation = MemoryDisk::Operation;
  for (Operation operation :
       {Operation::kOpen, Operation::kWrite, Operation::kSync, Operation::kRename}) {
    MemoryDisk disk;
    ASSERT_TRUE(ReplaceFile(&disk, "a", "old").ok());
    disk.Fail(operation, 1, ENOSPC);
    EXPECT_EQ(ReplaceFile(&disk, "a", "new").code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(disk.Paths(), ElementsAre("a"));
    disk.Crash([] { return 0; });
    EXPECT_EQ(*ReadWholeFile(&disk, "a", 9), "old");
  }
}

TEST(FileErrorTest, CodesSayWhatToDoNext) {
  const std::vector<std::pair<int, absl::StatusCode>> codes = {
      {ENOENT, absl::StatusCode::kNotFound},
      {EEXIST, absl::StatusCode::kAlreadyExists},
      {EACCES, absl::StatusCode::kPermissionDenied},
      {EPERM, absl::StatusCode::kPermissionDenied},
      {EROFS, absl::StatusCode::kPermissionDenied},
      {ENOSPC, absl::StatusCode::kResourceExhausted},
      {EDQUOT, absl::StatusCode::kResourceExhausted},
      {EFBIG, absl::StatusCode::kResourceExhausted},
      {EIO, absl::StatusCode::kInternal},
      {EBADF, absl::StatusCode::kInternal},
      {EMFILE, absl::StatusCode::kInternal}};
  for (const auto& [error, code] : codes) {
    EXPECT_EQ(FileError(error, "write", "/a").code(), code);
    EXPECT_EQ(FileReadError(error, "read", "/a").code(),
              error == EIO ? absl::StatusCode::kDataLoss : code);
  }
  for (const auto error : {FileError, FileReadError}) {
    EXPECT_THAT(Text(error(EIO, "touch", "/a")), HasSubstr("do not trust this file any more"));
  }
  EXPECT_EQ(Text(FileError(ENOSPC, "write 512 bytes at offset 0 of", "/a")),
            "cannot write 512 bytes at offset 0 of /a: No space left on device; free space on this "
            "file system or raise the quota");
}

// As in programs that ignore SIGXFSZ.
TEST(FileErrorTest, AFileThatMayNotGrowNamesTheLimitOfTheProcess) {
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::string path = ::testing::TempDir() + "/limited-XXXXXX";
  ASSERT_NE(mkdtemp(path.data()), nullptr);
  FileSystem* const files = PosixFileSystem();
  auto file = files->Open(path + "/file", {.mode = OpenMode::kCreateNew});
  ASSERT_TRUE(file.ok()) << file.status();
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit = {.rlim_cur = 10000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status allocated = (*file)->Allocate(20000);
  const absl::Status written = WriteText(file->get(), 9000, std::string(2000, 'x'));
  EXPECT_EQ(FileBytesMax(), 10000u);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(files->RemoveAll(path).ok());
  for (const absl::Status& status : {allocated, written}) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("10000 bytes at most (RLIMIT_FSIZE, ulimit -f)"));
  }
}

}  // namespace
}  // namespace ballast
