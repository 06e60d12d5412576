#include "server/home/home_timers.h"

#include <algorithm>
#include <vector>

namespace ballast::server {
namespace {

using std::chrono::nanoseconds;

// A wait up to this long is the strand's alone: it is over before many can pile up, and it ends at
// its very time.
constexpr std::chrono::seconds kShort{1};

// How close to its end a wait gets before the strand is asked for its very time.
constexpr std::chrono::milliseconds kClose{4};

// When to wake for a deadline `due`: in the second half of the time until then, at a multiple of a
// power of two of milliseconds larger than a quarter of that time. Rounding lets deadlines share
// wake-ups: at most four of the pending ones fall between any time from now and twice that time.
nanoseconds WakeFor(nanoseconds due, nanoseconds now) {
  if (due - now < kClose) return due;
  nanoseconds step = std::chrono::milliseconds(1);
  while (step * 4 <= due - now) step *= 2;
  return due - due % step;
}

}  // namespace

void HomeTimers::Arm(const home::Life& to, const home::Arm& arm) {
  if (arm.after <= kShort) {
    return strand_->PostAfter(arm.after, [this, to, due = arm.due] { feed_(to, due); });
  }
  const nanoseconds now = clock_->Now();
  waits_.emplace(now + arm.after, Wait{to, arm.due});
  Look(now);
}

void HomeTimers::Drop(const QualifiedName& name) {
  std::erase_if(waits_, [&](const auto& wait) { return wait.second.to.name == name; });
}

void HomeTimers::Look(nanoseconds now) {
  if (waits_.empty()) return;
  const nanoseconds due = waits_.begin()->first;
  if (!wakes_.empty() && *wakes_.begin() <= due) return;
  const nanoseconds at = WakeFor(due, now);
  wakes_.insert(at);
  strand_->PostAfter(at - now, [this, at] { OnWake(at); });
}

// The strand may keep another time than the clock: `at` has come all the same.
void HomeTimers::OnWake(nanoseconds at) {
  wakes_.erase(at);
  const nanoseconds now = std::max(at, clock_->Now());
  std::vector<Wait> due;
  while (!waits_.empty() && waits_.begin()->first <= now) {
    due.push_back(std::move(waits_.extract(waits_.begin()).mapped()));
  }
  for (const Wait& wait : due) feed_(wait.to, wait.due);
  Look(now);
}

}  // namespace ballast::server
