#include "server/security/reread_files.h"

#include <utility>

#include "common/base/log.h"
#include "common/system/guarded_file.h"

namespace ballast::server {

void WarnOfFault(const absl::Status& fault) {
  BALLAST_LOG(WARN) << fault.message() << "; what this file said before stays in force";
}

RereadFiles::RereadFiles(std::vector<File> files) {
  MutexLock lock(&reading_);
  for (File& file : files) files_.push_back({std::move(file), "", "", absl::OkStatus()});
}

absl::Status RereadFiles::ReadOne(Watched* watched) {
  // Taken before the file is read, so that a file changed meanwhile is read again.
  watched->read = watched->seen = FileSignature(watched->file.path);
  return watched->status = watched->file.read();
}

void RereadFiles::TellFaults() {
  std::vector<std::string> faults;
  for (const Watched& watched : files_) {
    if (!watched.status.ok()) faults.emplace_back(watched.status.message());
  }
  MutexLock lock(&mu_);
  faults_ = std::move(faults);
}

std::vector<FileOutcome> RereadFiles::Read() {
  MutexLock lock(&reading_);
  std::vector<FileOutcome> outcomes;
  for (Watched& watched : files_) {
    outcomes.push_back({watched.file.setting, watched.file.path, ReadOne(&watched)});
  }
  TellFaults();
  return outcomes;
}

void RereadFiles::Look() {
  MutexLock lock(&reading_);
  for (Watched& watched : files_) {
    const std::string now = FileSignature(watched.file.path);
    const bool stands_still = std::exchange(watched.seen, now) == now;
    if (!stands_still || (now == watched.read && watched.status.ok())) continue;
    const absl::Status before = watched.status;
    const absl::Status after = ReadOne(&watched);
    if (after.ok()) {
      BALLAST_LOG(INFO, LogField("setting", watched.file.setting),
                  LogField("file", watched.file.path))
          << "a file that had changed was read again";
    } else if (after != before) {  // One that stays at fault is named once.
      WarnOfFault(after);
    }
  }
  TellFaults();
}

void RereadFiles::Watch(Executor* executor, std::chrono::nanoseconds interval) {
  executor->PostAfter(interval, [weak = weak_from_this(), executor, interval] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->Look();
    self->Watch(executor, interval);
  });
}

void RereadFiles::Stop() {
  MutexLock lock(&reading_);
  files_.clear();
}

std::vector<std::string> RereadFiles::faults() const {
  MutexLock lock(&mu_);
  return faults_;
}

}  // namespace ballast::server
