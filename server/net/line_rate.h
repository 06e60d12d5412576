// LineRate: when the log has a line about something that may happen often: at once for the first
// time, and then once a minute. So a flood of strangers does not flood the log.
// Comes from: RefusalLog, HandshakeFailures. Goes to: nothing. Thread safety: thread-compatible.
#pragma once

#include <chrono>
#include <cstdint>

namespace ballast::server {

class LineRate {
 public:
  // It has happened `count` times in all, the last one at `now`. How many of them the next line has
  // to report; 0: no line is due.
  uint64_t Due(uint64_t count, std::chrono::nanoseconds now) {
    if (said_ > 0 && now - said_at_ < kLineEvery) return 0;
    const uint64_t unsaid = count - said_;
    said_ = count;
    said_at_ = now;
    return unsaid;
  }

 private:
  static constexpr std::chrono::minutes kLineEvery{1};

  uint64_t said_ = 0;  // the count at the last line
  std::chrono::nanoseconds said_at_{0};
};

}  // namespace ballast::server
