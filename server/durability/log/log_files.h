// The files of a gradient log: made and written once, opened again, found by segment sequence.
// Comes from: GradientLog, log_scan. Goes to: common/io files.
// Thread safety: thread-compatible; every call may block on the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file.h"
#include "server/durability/log/gradient_log.h"

namespace ballast::server {

class LogFiles {
 public:
  // As GradientLog::Create; afterwards every file is full of zeros and all of it survives.
  static absl::StatusOr<LogFiles> Create(FileSystem* fs, const std::string& directory,
                                         const LogOptions& options);
  // NOT_FOUND when there is no file at all, DATA_LOSS when some are missing.
  static absl::StatusOr<LogFiles> Open(FileSystem* fs, const std::string& directory,
                                       const LogOptions& options);

  // Takes back a Create that could not be finished.
  void Remove(FileSystem* fs);

  uint32_t count() const { return static_cast<uint32_t>(files_.size()); }
  File* file(uint32_t index) const { return files_[index].get(); }
  std::string Path(uint32_t index) const;

  // The file that holds the segment with this sequence number, from 1.
  uint32_t IndexOf(uint64_t sequence) const {
    return static_cast<uint32_t>((sequence - 1) % files_.size());
  }
  File* FileOf(uint64_t sequence) const { return file(IndexOf(sequence)); }
  std::string PathOf(uint64_t sequence) const { return Path(IndexOf(sequence)); }

  // Reads exactly `bytes` bytes; DATA_LOSS, naming file and offset, when the file is too short.
  absl::Status Read(uint32_t index, uint64_t offset, uint64_t bytes, void* to) const;

 private:
  LogFiles(std::string directory, uint64_t segment_bytes)
      : directory_(std::move(directory)), segment_bytes_(segment_bytes) {}

  absl::Status CreateAll(FileSystem* fs, const LogOptions& options);

  std::string directory_;
  uint64_t segment_bytes_;
  std::vector<std::unique_ptr<File>> files_;
};

}  // namespace ballast::server
