// RereadFiles: reads files of the configuration again when they change, and on request. A file at
// fault changes nothing; faults() name it until it is mended.
// Comes from: ServerSecurity. Goes to: the files; the users of their content. Thread safety:
// thread-safe. One thread at a time reads.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/threads/executor.h"

namespace ballast::server {

// The outcome of reading one file.
struct FileOutcome {
  std::string setting;  // "security.tokens_file"
  std::string path;
  absl::Status status;  // of an error: why the earlier content stays in force
};

// Logs the faults of a file read again.
void WarnOfFault(const absl::Status& fault);

class RereadFiles : public std::enable_shared_from_this<RereadFiles> {
 public:
  struct File {
    std::string setting;
    std::string path;  // not empty
    // Reads the file and applies its content, or returns the reason and has changed nothing.
    std::function<absl::Status()> read;
  };

  explicit RereadFiles(std::vector<File> files);

  // Reads all of them now, in order, without logging: the caller logs.
  std::vector<FileOutcome> Read();
  // Reads each file that differs from the one read last, once it has been the same for two looks,
  // so that a half-written file is not taken; and those at fault. To be called about once a second.
  // The log names the files read, and each fault once.
  void Look();
  // Looks every `interval`, until this object is gone.
  void Watch(Executor* executor, std::chrono::nanoseconds interval);
  // Waits for a read under way; later ones have no files.
  void Stop();
  // Faults of files at their newest reads. Waits for no disk.
  std::vector<std::string> faults() const;

 private:
  struct Watched {
    File file;
    std::string read;  // signature of the file at the last read
    std::string seen;  // at the newest look
    absl::Status status;
  };

  absl::Status ReadOne(Watched* watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_);
  // For faults().
  void TellFaults() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_);

  Mutex reading_;  // held while the disk is read
  std::vector<Watched> files_ ABSL_GUARDED_BY(reading_);
  mutable Mutex mu_;  // taken after reading_
  std::vector<std::string> faults_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
