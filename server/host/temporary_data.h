// TemporaryData: the data directory of `ballastd --dev`, <temporary>/ballast-dev-XXXXXX, removed
// when its process ends. The next one to start removes the directory of a killed process.
// Comes from: main. Goes to: POSIX; the DataDirLock in the directory tells whether its owner lives.
// Thread safety: thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ballast::server {

// Move-only; the destructor removes the directory and everything in it.
class TemporaryData {
 public:
  // Holds no directory.
  TemporaryData() = default;
  // Creates a directory below `parent`. Errors: INTERNAL, naming it and the cause.
  static absl::StatusOr<TemporaryData> Create(const std::string& parent);
  ~TemporaryData();
  TemporaryData(TemporaryData&& other) noexcept;
  TemporaryData& operator=(TemporaryData&& other) noexcept;

  // "" if it holds no directory.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Removes this user's directories of this kind below `parent` whose owner has ended; returns their
// paths. A directory stays if its lock is held, or was never written: its process may just have
// been started. Entries that cannot be read or removed stay, too.
std::vector<std::string> RemoveStaleTemporaryData(const std::string& parent);

}  // namespace ballast::server
