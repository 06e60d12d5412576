// HomeTimers keeps the waits of the jobs of one home, and asks the strand for few wake-ups,
// however many jobs come and go: the strand cannot cancel a wake-up, but the wait can end early.
// Comes from: HomeJobs. Goes to: OwnerStrand (time), HomeJobs (waits that end). Thread safety: on
// the directory's strand.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "common/base/clock.h"
#include "server/home/home_types.h"
#include "server/jobs/owner_strand.h"

namespace ballast::server {

class HomeTimers {
 public:
  using Feed = std::function<void(const home::Life& to, const home::Due& due)>;
  struct Wait {
    home::Life to;
    home::Due due;
  };

  // `clock` and `strand` outlive it. It must live until the strand has run or dropped its wake-ups.
  HomeTimers(const Clock* clock, OwnerStrand* strand, Feed feed)
      : clock_(clock), strand_(strand), feed_(std::move(feed)) {}

  // Feeds `arm.due` to the job after `arm.after`, not earlier, unless Drop comes first.
  void Arm(const home::Life& to, const home::Arm& arm);
  // Nothing of the job of that name waits any more. Only a short wait still takes its wake-up.
  void Drop(const QualifiedName& name);

 private:
  // Asks for a wake-up for the earliest deadline, unless one comes early enough.
  void Look(std::chrono::nanoseconds now);
  void OnWake(std::chrono::nanoseconds at);

  const Clock* const clock_;
  OwnerStrand* const strand_;
  const Feed feed_;
  std::multimap<std::chrono::nanoseconds, Wait> waits_;  // by when they end
  std::set<std::chrono::nanoseconds> wakes_;             // that the strand was asked for
};

}  // namespace ballast::server
