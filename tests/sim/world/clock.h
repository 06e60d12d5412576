// SimClock: the clocks of one machine, apart from the world's true time. The steady clock, the only
// one that production code reads, runs too fast or too slow, may leap ahead (a virtual machine that
// was moved) and starts again with its machine, but never goes back while anybody can look. The
// wall clock can be set to anything at any time; nothing may depend on it, and only mutants do.
// Comes from: the world. Goes to: everything with a timeout. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace ballast::sim {

using Tick = uint64_t;  // nanoseconds of virtual time
inline constexpr Tick kMicrosecond = 1000;
inline constexpr Tick kMillisecond = 1'000'000;
inline constexpr Tick kSecond = 1'000'000'000;
inline constexpr Tick kHour = 3600 * kSecond;

using NodeId = uint32_t;  // servers first, then trainers
enum class EventKind : uint8_t;
class World;

class SimClock {
 public:
  SimClock(World* world, NodeId node) : world_(world), node_(node) {}

  // Time since an arbitrary point. At first both clocks show the world's time.
  Tick Now() const;
  Tick Wall() const { return wall_ahead_ + Now(); }

  // Runs `action` when Now() has gone on by `delay`, however that comes about, unless the present
  // process of the node, or the one of `life`, has ended by then.
  void After(Tick delay, EventKind kind, std::function<void()> action);
  void AfterInLife(Tick delay, uint64_t life, EventKind kind, std::function<void()> action);

  // From now on it runs `rate` times as fast as the world's time; above 0.
  void SetRate(double rate);
  // The steady clock, and the wall clock with it, skips ahead: timers are due that much earlier.
  void Leap(Tick by);
  // Somebody sets the wall clock; `by` may be negative.
  void SetWall(int64_t by) { wall_ahead_ += static_cast<Tick>(by); }
  // The machine has lost its power and boots: the steady clock begins near 0, the wall clock goes
  // on. No earlier process may be alive.
  void Reboot();

 private:
  struct Timer {
    Tick due = 0;  // by Now()
    uint64_t life = 0;
    std::function<void()> action;  // empty once it has run
  };
  void Arm(const std::shared_ptr<Timer>& timer, EventKind kind);
  // How long the world takes until the clock has gone on by `delay`, or a little longer.
  Tick TrueTime(Tick delay) const;

  World* const world_;
  const NodeId node_;
  double rate_ = 1;
  Tick since_ = 0;  // the world's time at which the clock showed `shown_`
  Tick shown_ = 0;
  Tick wall_ahead_ = 0;                                               // modulo 2^64
  std::vector<std::pair<std::shared_ptr<Timer>, EventKind>> timers_;  // some have run
  size_t sweep_at_ = 0;  // how many of them are too many
};

}  // namespace ballast::sim
