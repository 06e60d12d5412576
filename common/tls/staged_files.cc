#include "common/tls/staged_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace ballast {
namespace {

constexpr char kPrefix[] = "ballast-tls-";
constexpr time_t kFirstTime = 1'000'000'000;

absl::Status Failed(const std::string& path) {
  return absl::InternalError(
      absl::StrCat("cannot stage certificates in ", path, ": ", std::strerror(errno)));
}

absl::Status WriteAll(int fd, const std::string& path, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t put = write(fd, text.data() + written, text.size() - written);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Failed(path);
    written += static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, const std::string& text, time_t changed) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return Failed(path);
  absl::Status status = WriteAll(fd, path, text);
  const timespec times[2] = {{changed, 0}, {changed, 0}};
  if (status.ok() && futimens(fd, times) != 0) status = Failed(path);
  if (close(fd) != 0 && status.ok()) status = Failed(path);
  return status;
}

void Remove(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

// The lock of a directory, or -1: it is not ours, or its owner lives.
int LockDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat facts = {};
  if (fstat(fd, &facts) == 0 && facts.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
    return fd;
  }
  close(fd);
  return -1;
}

// An owner holds the lock before it publishes; a directory with nothing in it may be a moment old.
void RemoveThoseOfTheDead(const std::string& parent) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!absl::StartsWith(entry->path().filename().string(), kPrefix)) continue;
    const int lock = LockDirectory(path);
    if (lock < 0) continue;
    std::error_code unread;
    if (!std::filesystem::is_empty(path, unread) && !unread) Remove(path);
    close(lock);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StagedFiles>> StagedFiles::Create(const std::string& parent) {
  RemoveThoseOfTheDead(parent);
  std::string path = absl::StrCat(parent, "/", kPrefix, "XXXXXX");
  if (mkdtemp(path.data()) == nullptr) return Failed(path);
  const int lock = LockDirectory(path);
  if (lock < 0) return Failed(path);
  return std::unique_ptr<StagedFiles>(new StagedFiles(std::move(path), lock));
}

StagedFiles::StagedFiles(std::string directory, int lock)
    : directory_(std::move(directory)),
      lock_(lock),
      paths_{absl::StrCat(directory_, "/current/ca.pem"),
             absl::StrCat(directory_, "/current/certificate.pem"),
             absl::StrCat(directory_, "/current/key.pem")} {}

StagedFiles::~StagedFiles() {
  Remove(directory_);
  close(lock_);
}

std::string StagedFiles::SetName(uint64_t number) const { return absl::StrCat("set-", number); }

absl::Status StagedFiles::WriteSet(const std::string& folder, const TlsFiles& files) const {
  if (mkdir(folder.c_str(), 0700) != 0) return Failed(folder);
  const time_t changed = kFirstTime + static_cast<time_t>(published_);
  BALLAST_RETURN_IF_ERROR(WriteFile(absl::StrCat(folder, "/ca.pem"), files.ca.text, changed));
  BALLAST_RETURN_IF_ERROR(
      WriteFile(absl::StrCat(folder, "/certificate.pem"), files.certificate.text, changed));
  return WriteFile(absl::StrCat(folder, "/key.pem"), files.key.text, changed);
}

absl::Status StagedFiles::SwapTo(uint64_t number) const {
  const std::string next = absl::StrCat(directory_, "/next");
  const std::string current = absl::StrCat(directory_, "/current");
  unlink(next.c_str());
  if (symlink(SetName(number).c_str(), next.c_str()) != 0) return Failed(next);
  if (std::rename(next.c_str(), current.c_str()) != 0) return Failed(current);
  return absl::OkStatus();
}

absl::Status StagedFiles::Publish(const TlsFiles& files) {
  const uint64_t number = published_ + 1;
  const std::string folder = absl::StrCat(directory_, "/", SetName(number));
  absl::Status status = WriteSet(folder, files);
  if (status.ok()) status = SwapTo(number);
  if (!status.ok()) {
    Remove(folder);
    return status;
  }
  published_ = number;
  // A reader may still be in the set before this one.
  if (number > 2) Remove(absl::StrCat(directory_, "/", SetName(number - 2)));
  return absl::OkStatus();
}

}  // namespace ballast
