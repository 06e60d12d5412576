// Monotonic time as an interface, so that code with deadlines can be tested without waiting.
// Comes from: nothing. Goes to: every room with timeouts; server/round takes times as inputs
// instead. Thread safety: both clocks are thread-safe.
#pragma once

#include <atomic>
#include <chrono>

namespace ballast {

class Clock {
 public:
  virtual ~Clock() = default;
  // Time since an arbitrary fixed point; never goes back.
  virtual std::chrono::nanoseconds Now() const = 0;
};

class RealClock : public Clock {
 public:
  std::chrono::nanoseconds Now() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
  }
  // The process-wide instance; lives until the process ends.
  static RealClock* Get() {
    static RealClock clock;
    return &clock;
  }
};

// Stands still until told to move.
class FakeClock : public Clock {
 public:
  explicit FakeClock(std::chrono::nanoseconds start = std::chrono::nanoseconds{0})
      : now_ns_(start.count()) {}
  std::chrono::nanoseconds Now() const override {
    return std::chrono::nanoseconds{now_ns_.load(std::memory_order_acquire)};
  }
  // Moves the clock forward by `step`, which must not be negative.
  void Advance(std::chrono::nanoseconds step) {
    now_ns_.fetch_add(step.count(), std::memory_order_acq_rel);
  }

 private:
  std::atomic<std::chrono::nanoseconds::rep> now_ns_;
};

}  // namespace ballast
