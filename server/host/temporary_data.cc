#include "server/host/temporary_data.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ballast::server {
namespace {

constexpr char kPrefix[] = "ballast-dev-";

// Paths of the entries of a directory; as many as can be read.
std::vector<std::string> EntriesOf(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    paths.push_back(entry->path().string());
  }
  return paths;
}

// Whether it is a directory of this user, and not a link in its place.
bool IsOwnDirectory(const std::string& path) {
  struct stat status = {};
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

// The lock of the directory, held, if its owner has ended; else -1. An owner writes its pid under
// the lock, so a lock file with a pid and no holder belongs to an ended process; one without may be
// brand new.
int TakeLockOfTheDead(const std::string& directory) {
  const int lock = open((directory + "/lock").c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (lock < 0) return -1;
  char first = 0;
  struct stat status = {};
  // Without links it was meanwhile removed by another process that cleans up.
  if (pread(lock, &first, 1, 0) == 1 && flock(lock, LOCK_EX | LOCK_NB) == 0 &&
      fstat(lock, &status) == 0 && status.st_nlink > 0) {
    return lock;
  }
  close(lock);
  return -1;
}

// The lock goes last, so that an interrupted removal can be repeated.
bool RemoveWithLock(const std::string& directory) {
  std::error_code error;
  for (const std::string& path : EntriesOf(directory)) {
    if (!absl::EndsWith(path, "/lock")) std::filesystem::remove_all(path, error);
  }
  std::filesystem::remove_all(directory, error);
  return !error;
}

}  // namespace

absl::StatusOr<TemporaryData> TemporaryData::Create(const std::string& parent) {
  std::string name = absl::StrCat(parent, "/", kPrefix, "XXXXXX");
  if (mkdtemp(name.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("cannot create ", name, ": ", std::strerror(errno),
                                            "; set TMPDIR to a directory that you may write to"));
  }
  TemporaryData data;
  data.path_ = name;
  return data;
}

TemporaryData::~TemporaryData() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

TemporaryData::TemporaryData(TemporaryData&& other) noexcept
    : path_(std::exchange(other.path_, std::string())) {}

TemporaryData& TemporaryData::operator=(TemporaryData&& other) noexcept {
  path_.swap(other.path_);
  return *this;
}

std::vector<std::string> RemoveStaleTemporaryData(const std::string& parent) {
  std::vector<std::string> removed;
  for (const std::string& path : EntriesOf(parent)) {
    const std::string name = std::filesystem::path(path).filename().string();
    if (!absl::StartsWith(name, kPrefix) || !IsOwnDirectory(path)) continue;
    const int lock = TakeLockOfTheDead(path);
    if (lock < 0) continue;
    if (RemoveWithLock(path)) removed.push_back(path);
    close(lock);
  }
  return removed;
}

}  // namespace ballast::server
