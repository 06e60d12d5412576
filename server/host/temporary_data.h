// TemporaryData: the data directory of `ballastd --dev`, <temporary>/ballast-dev-XXXXXX, which goes
// when its process ends. What a killed process leaves behind goes with the next one that starts.
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
  // Of no directory.
  TemporaryData() = default;
  // Makes a directory below `parent`. Errors: INTERNAL, naming it and the cause.
  static absl::StatusOr<TemporaryData> Create(const std::string& parent);
  ~TemporaryData();
  TemporaryData(TemporaryData&& other) noexcept;
  TemporaryData& operator=(TemporaryData&& other) noexcept;

  // "" of no directory.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Removes the directories of this kind below `parent` that belong to this user and whose owner has
// ended; returns their paths. A directory stays when its lock is held, or was never written: its
// process may just have been started. What cannot be read or removed stays, too.
std::vector<std::string> RemoveStaleTemporaryData(const std::string& parent);

}  // namespace ballast::server
