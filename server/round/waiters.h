// Waiters: calls that wait for progress of the round. Each list fires as a whole, in the order of
// arrival; calls added while the list fires wait for the next time.
//
// In the course of one round the lists fire in this order:
//   kInitial   all initial weights are in, before round 1 and after growth: fetches
//   kWritten   all received initial weights are durable: snapshots
//   kReduced   the workers read no register any more: adoptions, which give registers back
//   kDurable   the PREPARE record is durable, after the effects of DurableInput: seals
//   kApplied   the round is over and the next one is open, after everything else that
//              OpenRound does: attaches, adoptions, growth
// When the job ends, kWritten, kDurable and then kApplied fire once more, and their calls find the
// failure. Comes from: RoundDriver. Goes to: RoundDriver. Thread safety: on the job's strand.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace ballast::server {

class Waiters {
 public:
  enum Event : size_t { kInitial, kWritten, kReduced, kDurable, kApplied, kEvents };

  void Add(Event event, std::function<void()> call) { lists_[event].push_back(std::move(call)); }
  void Fire(Event event) {
    for (const auto& call : std::exchange(lists_[event], {})) call();
  }

 private:
  std::array<std::vector<std::function<void()>>, kEvents> lists_;
};

}  // namespace ballast::server
