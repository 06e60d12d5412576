// PosixFileSystem on a bad day: this program brings its own system calls, which interrupt, shorten
// and refuse as told and otherwise ask the kernel.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/io/file.h"

namespace {

struct Faults {
  int interrupts = 0;           // Calls that answer EINTR before one goes through.
  size_t bytes_max = SIZE_MAX;  // Most bytes one read or write moves.
  int write_error = 0;
  int sync_error = 0;
  int fallocate_error = 0;
  int direct_open_error = 0;
  int direct_io_error = 0;
  // Seen:
  int direct_requests = 0;
};
Faults faults;

// The answer to this call: 0, or an errno value.
int Refuse(int error) {
  if (faults.interrupts > 0) {
    --faults.interrupts;
    return EINTR;
  }
  return error;
}

bool IsDirect(int fd) { return (syscall(SYS_fcntl, fd, F_GETFL) & O_DIRECT) != 0; }

int RefuseTransfer(int fd, int error) {
  const bool direct = IsDirect(fd);
  if (direct) ++faults.direct_requests;
  return Refuse(direct && faults.direct_io_error != 0 ? faults.direct_io_error : error);
}

template <typename Call>
auto Answer(int error, const Call& call) -> decltype(call()) {
  if (error == 0) return call();
  errno = error;
  return -1;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = va_arg(arguments, int);
  va_end(arguments);
  const int error = Refuse((flags & O_DIRECT) != 0 ? faults.direct_open_error : 0);
  return Answer(error,
                [&] { return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode)); });
}

ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  return Answer(RefuseTransfer(fd, 0), [&] {
    return syscall(SYS_pread64, fd, to, std::min(bytes, faults.bytes_max), offset);
  });
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return Answer(RefuseTransfer(fd, faults.write_error),
                [&] { return syscall(SYS_pwrite64, fd, data, bytes, offset); });
}

ssize_t pwritev(int fd, const struct iovec* parts, int count, off_t offset) {
  return Answer(RefuseTransfer(fd, faults.write_error), [&]() -> ssize_t {
    if (faults.bytes_max == SIZE_MAX) {
      return syscall(SYS_pwritev, fd, parts, count, offset, /*high half*/ 0);
    }
    const size_t bytes = std::min(parts[0].iov_len, faults.bytes_max);
    return syscall(SYS_pwrite64, fd, parts[0].iov_base, bytes, offset);
  });
}

int fdatasync(int fd) {
  return Answer(Refuse(faults.sync_error),
                [&] { return static_cast<int>(syscall(SYS_fdatasync, fd)); });
}

int fsync(int fd) {
  return Answer(Refuse(faults.sync_error),
                [&] { return static_cast<int>(syscall(SYS_fsync, fd)); });
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return Answer(Refuse(faults.fallocate_error),
                [&] { return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes)); });
}

}  // extern "C"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class PosixFileFaultTest : public ::testing::Test {
 protected:
  PosixFileFaultTest() {
    directory_ = ::testing::TempDir() + "posix_file_fault_test.XXXXXX";
    EXPECT_NE(mkdtemp(directory_.data()), nullptr) << strerror(errno);
  }
  ~PosixFileFaultTest() override {
    faults = {};
    EXPECT_TRUE(fs_->RemoveAll(directory_).ok());
  }

  std::unique_ptr<File> Create(bool direct = false) {
    auto file = fs_->Open(directory_ + "/a", {.mode = OpenMode::kCreate, .direct = direct});
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  std::string Content() { return *ReadWholeFile(fs_, directory_ + "/a", size_t{1} << 30); }

  FileSystem* const fs_ = PosixFileSystem();
  std::string directory_;
};

TEST_F(PosixFileFaultTest, InterruptedCallsAreMadeAgain) {
  faults.interrupts = 3;
  auto file = Create();
  EXPECT_EQ(faults.interrupts, 0);
  char read[3];
  for (const auto& call : std::vector<std::function<bool()>>{
           [&] {
             return file->WriteAt(0, {{"abc", 3}}).ok();
           },
           [&] { return file->ReadAt(0, 3, read).ok() && std::string(read, 3) == "abc"; },
           [&] { return file->Sync().ok(); }, [&] { return file->Allocate(100).ok(); },
           [&] { return fs_->SyncDirectory(directory_).ok(); }}) {
    faults.interrupts = 3;
    EXPECT_TRUE(call());
    EXPECT_EQ(faults.interrupts, 0);
  }
}

TEST_F(PosixFileFaultTest, ShortReadsAndWritesAreContinued) {
  for (size_t bytes_max : {1, 2, 3, 5}) {
    faults.bytes_max = bytes_max;
    auto file = Create();
    ASSERT_TRUE(file->WriteAt(0, {{"one", 3}, {"", 0}, {"to", 2}, {"three", 5}, {"", 0}}).ok());
    EXPECT_EQ(Content(), "onetothree");
  }
}

TEST_F(PosixFileFaultTest, AShortDirectWriteEndsThroughTheCache) {
  faults.bytes_max = 512;
  auto file = Create(/*direct=*/true);
  alignas(kPageBytes) static char page[2 * kPageBytes];
  std::memset(page, 'x', sizeof(page));
  ASSERT_TRUE(file->WriteAt(0, {{page, kPageBytes}, {page + kPageBytes, kPageBytes}}).ok());
  EXPECT_EQ(Content(), std::string(page, sizeof(page)));
}

TEST_F(PosixFileFaultTest, AFullDeviceNamesTheBytesThePathAndTheStep) {
  auto file = Create();
  faults.write_error = ENOSPC;
  const absl::Status full = file->WriteAt(7, {{"abc", 3}});
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("cannot write 3 bytes at offset 7 of " + directory_ + "/a: No space left"));
  // A device that takes nothing and gives no reason.
  faults = {.bytes_max = 0};
  EXPECT_EQ(file->WriteAt(7, {{"abc", 3}}).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(PosixFileFaultTest, AFailedSyncIsNeverFollowedByASuccess) {
  auto file = Create();
  faults.sync_error = EIO;
  EXPECT_EQ(file->Sync().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(fs_->SyncDirectory(directory_).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReplaceFile(fs_, directory_ + "/b", "x").code(), absl::StatusCode::kInternal);
  faults.sync_error = 0;
  const absl::Status again = file->Sync();
  EXPECT_EQ(again.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(again.message()), HasSubstr("sync again after a failed sync"));
}

TEST_F(PosixFileFaultTest, WithoutFallocateTheSpaceIsWritten) {
  faults.fallocate_error = EOPNOTSUPP;
  auto file = Create();
  ASSERT_TRUE(file->WriteAt(0, {{"abc", 3}}).ok());
  ASSERT_TRUE(file->Allocate(300001).ok());
  EXPECT_EQ(Content(), "abc" + std::string(299998, '\0'));
  ASSERT_TRUE(file->Allocate(2).ok());
  EXPECT_EQ(*file->Size(), 300001u);
  faults.write_error = ENOSPC;
  EXPECT_EQ(file->Allocate(400000).code(), absl::StatusCode::kResourceExhausted);
  faults = {.fallocate_error = ENOSPC};
  const absl::Status full = file->Allocate(400000);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("allocate 400000 bytes"));
}

TEST_F(PosixFileFaultTest, DirectFilesWorkWhereTheFileSystemRefusesThem) {
  alignas(kPageBytes) static char page[kPageBytes];
  std::memset(page, 'x', sizeof(page));
  for (const Faults& refusal :
       {Faults{.direct_open_error = EINVAL}, Faults{.direct_io_error = EINVAL}}) {
    faults = refusal;
    EXPECT_FALSE(fs_->DirectIo(directory_));
    auto file = Create(/*direct=*/true);
    ASSERT_TRUE(file->WriteAt(0, {{page, sizeof(page)}}).ok());
    ASSERT_EQ(*file->ReadAt(0, sizeof(page), page), sizeof(page));
    EXPECT_EQ(Content(), std::string(page, sizeof(page)));
  }
  faults = {.direct_open_error = EMFILE};
  EXPECT_FALSE(fs_->Open(directory_ + "/a", {.mode = OpenMode::kWrite, .direct = true}).ok());
}

TEST_F(PosixFileFaultTest, OnlyWholePagesGoPastTheCache) {
  if (!fs_->DirectIo(directory_)) GTEST_SKIP() << "no direct I/O in " << directory_;
  alignas(kPageBytes) static char page[2 * kPageBytes];
  auto file = Create(/*direct=*/true);
  const auto direct_requests = [&](const std::function<bool()>& call) {
    faults.direct_requests = 0;
    EXPECT_TRUE(call());
    return faults.direct_requests;
  };
  const auto write = [&](uint64_t offset, size_t skip, size_t bytes) {
    return direct_requests([&] { return file->WriteAt(offset, {{page + skip, bytes}}).ok(); });
  };
  EXPECT_EQ(write(0, 0, 2 * kPageBytes), 1);
  EXPECT_EQ(write(kPageBytes, kPageBytes, kPageBytes), 1);
  EXPECT_EQ(write(1, 0, kPageBytes), 0);
  EXPECT_EQ(write(0, 1, kPageBytes), 0);
  EXPECT_EQ(write(0, 0, kPageBytes - 1), 0);
  EXPECT_EQ(direct_requests([&] { return file->ReadAt(0, kPageBytes, page).ok(); }), 1);
  EXPECT_EQ(direct_requests([&] { return file->ReadAt(1, kPageBytes, page).ok(); }), 0);
  EXPECT_EQ(direct_requests([&] { return file->ReadAt(0, kPageBytes, page + 1).ok(); }), 0);
}

}  // namespace
}  // namespace ballast
