#include "common/base/recent_log.h"

#include <utility>

namespace ballast {

void RecentLog::Add(LogRecord record) {
  if (record.text.size() > kRecentLogBytesMax) {
    size_t end = kRecentLogBytesMax - 3;
    // Not inside a character.
    while (end > 0 && (static_cast<unsigned char>(record.text[end]) & 0xC0u) == 0x80) --end;
    record.text.resize(end);
    record.text += "...";
  }
  MutexLock lock(&mu_);
  if (records_.size() == capacity_) records_.pop_front();
  records_.push_back(std::move(record));
}

std::vector<LogRecord> RecentLog::All() const {
  MutexLock lock(&mu_);
  return {records_.begin(), records_.end()};
}

RecentLog& ProcessLog() {
  // Never destroyed: threads may still log while the process ends.
  static auto* const log = new RecentLog(50);
  return *log;
}

}  // namespace ballast
