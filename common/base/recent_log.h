// RecentLog: the last records of this process' log, for a page that shows them.
// Comes from: log.cc, which adds each record it writes. Goes to: /statusz.
// Thread safety: any thread. Memory: at most `capacity` records of kRecentLogBytesMax bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace ballast {

inline constexpr size_t kRecentLogBytesMax = 512;

struct LogRecord {
  int64_t time_us = 0;        // since 1970, UTC
  const char* severity = "";  // INFO | WARN | ERROR
  std::string text;           // message and fields on one line, control characters escaped
};

class RecentLog {
 public:
  explicit RecentLog(size_t capacity) : capacity_(capacity) {}

  // Cuts the text at kRecentLogBytesMax, and forgets the oldest of `capacity` records.
  void Add(LogRecord record);
  // Oldest first.
  std::vector<LogRecord> All() const;

 private:
  const size_t capacity_;
  mutable Mutex mu_;
  std::deque<LogRecord> records_ ABSL_GUARDED_BY(mu_);
};

// That of BALLAST_LOG in this process: the last 50 records.
RecentLog& ProcessLog();

}  // namespace ballast
