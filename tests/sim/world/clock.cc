#include "tests/sim/world/clock.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/sim/world/world.h"

namespace ballast::sim {
namespace {

constexpr Tick kBootTime = 2 * kSecond;  // a steady clock's time when the first process starts
constexpr size_t kTimersKept = 32;

}  // namespace

Tick SimClock::Now() const {
  const Tick passed = world_->now() - since_;
  return shown_ + (rate_ == 1 ? passed : static_cast<Tick>(static_cast<double>(passed) * rate_));
}

Tick SimClock::TrueTime(Tick delay) const {
  if (rate_ == 1) return delay;
  return static_cast<Tick>(std::ceil(static_cast<double>(delay) / rate_)) + 1;
}

void SimClock::SetRate(double rate) {
  shown_ = Now();
  since_ = world_->now();
  rate_ = rate;
}

void SimClock::After(Tick delay, EventKind kind, std::function<void()> action) {
  AfterInLife(delay, world_->Life(node_), kind, std::move(action));
}

void SimClock::AfterInLife(Tick delay, uint64_t life, EventKind kind,
                           std::function<void()> action) {
  if (timers_.size() >= sweep_at_) {
    std::erase_if(timers_, [this](const auto& timer) {
      return !timer.first->action || timer.first->life != world_->Life(node_);
    });
    sweep_at_ = std::max(kTimersKept, 2 * timers_.size());
  }
  timers_.emplace_back(std::make_shared<Timer>(Timer{Now() + delay, life, std::move(action)}),
                       kind);
  Arm(timers_.back().first, kind);
}

void SimClock::Arm(const std::shared_ptr<Timer>& timer, EventKind kind) {
  const Tick now = Now();
  const Tick left = timer->due > now ? timer->due - now : 0;
  world_->AfterInLife(TrueTime(left), node_, timer->life, kind, [timer] {
    if (timer->action) std::exchange(timer->action, nullptr)();
  });
}

void SimClock::Leap(Tick by) {
  shown_ += by;
  for (const auto& [timer, kind] : timers_) {
    if (timer->action) Arm(timer, kind);
  }
}

void SimClock::Reboot() {
  wall_ahead_ += Now() - kBootTime;
  shown_ = kBootTime;
  since_ = world_->now();
  timers_.clear();
}

}  // namespace ballast::sim
