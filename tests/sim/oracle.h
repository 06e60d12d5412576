// Oracle: compares all messages and stored state with the reference, and remembers earlier
// messages. The first disagreement makes the seed red.
// Comes from: simulated servers and trainers, at every vote, decision, reply and restart.
// Goes to: World::Red. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/job/frame_header.h"
#include "server/recovery/capture.h"
#include "server/recovery/recovery.h"
#include "server/round/round_fsm.h"
#include "server/state/extent_store.h"
#include "tests/sim/reference.h"
#include "tests/sim/world/world.h"

namespace ballast::sim {

class Oracle {
 public:
  Oracle(World* world, const Swarm* swarm, const server::JobPlan* plan, const Layout* layout)
      : world_(world), plan_(plan), layout_(layout), reference_(swarm, plan, layout) {
    epochs_[plan->epoch.epoch] = plan->epoch;
  }

  Reference* reference() { return &reference_; }

  // The home's record says that the job is made.
  void Begin() { begun_ = true; }
  bool begun() const { return begun_; }
  // Files of a server are damaged: it may have forgotten a round that no trainer remembers.
  void OnDamage() { damage_ = true; }
  // The home's record of the next epoch is on its disk.
  void OnEpoch(const server::EpochRecord& record);
  // A server has gone over to an epoch, or comes back in it.
  void OnAdopted(uint32_t server, const server::EpochRecord& record, bool damaged);
  // Who takes part by the newest record.
  const server::EpochRecord& newest() const { return epochs_.rbegin()->second; }

  // That of the epoch; null: there is none.
  const server::EpochRecord* Record(uint32_t epoch) const {
    const auto found = epochs_.find(epoch);
    return found == epochs_.end() ? nullptr : &found->second;
  }

  // A server tells its peers its vote. `durable`: everything it stands on has been synced.
  void OnVote(uint32_t server, uint32_t epoch, uint64_t round, const Vote& vote, bool durable);
  // A server decided; once more after a restart.
  void OnDecision(uint32_t server, uint32_t epoch, uint64_t round, const Decision& decision);
  // A server holds version round + 1.
  void OnApplied(uint32_t server, uint64_t round);
  // A restarted server goes on. `damaged`: its files were damaged, so it may know less; then others
  // must notice.
  void OnRecovered(uint32_t server, const server::RoundFsm& fsm, bool damaged);
  // A trainer process has begun; it has ended, or says why it cannot continue.
  void OnTrainer(uint32_t process, const server::Member& who) { trainers_[process] = {who, 0}; }
  void OnTrainerOver(uint32_t process) { trainers_.erase(process); }
  // A trainer got (part of) the result, a piece of weights, or has finished a round.
  void OnResult(uint32_t process, const RoundResult& result);
  void OnWeights(uint32_t process, const FrameHeader& frame, const std::string& bytes);
  void OnTrainerRound(uint32_t slot, uint64_t round, const std::vector<std::vector<char>>& weights);
  // A trainer has fetched the state of `version`: the steps of each tensor, and of every extent the
  // state arrays, one after the other.
  void OnSteps(uint32_t slot, uint64_t version, const std::vector<uint64_t>& tensor_step);
  void OnArrays(uint32_t slot, uint64_t version, const std::vector<std::vector<float>>& arrays);
  // A snapshot of the beginning of `round` has this image of an extent, as a slot keeps it, and
  // says that the round before ended so.
  void OnImage(const std::string& whose, uint64_t round, uint32_t extent, const float* image);
  void OnRoundBefore(const std::string& whose, uint64_t round, const server::CapturedRound& before);

 private:
  // A living trainer, and the newest version that it has heard of.
  struct Trainer {
    server::Member who;
    uint64_t version = 0;
  };
  // When a damaged server came back: the first round that it did not have, and the trainers that
  // knew it as decided.
  struct Forgotten {
    uint64_t round = 0;
    std::map<uint32_t, Trainer> witnesses;  // by process
  };
  // `process`, unless it is over, has heard of `version`.
  void Knows(uint32_t process, uint64_t version);
  // Server `server` has `round` before it, whatever anybody has heard of that one.
  void OnForgotten(uint32_t server, uint64_t round);
  // Server `server` votes on `round`: not if it came back without it, and a witness lives.
  void CheckNotForgotten(uint32_t server, uint32_t epoch, uint64_t round);
  bool SameDecision(uint64_t round, bool applied, double grad_norm, double clip_coef,
                    uint64_t nonfinite, const PolicyState& policy);

  World* const world_;
  const server::JobPlan* const plan_;
  const Layout* const layout_;
  Reference reference_;
  // The epoch that `round` is run in, as far as is known.
  uint32_t EpochOf(uint64_t round) const;

  bool begun_ = false;
  bool damage_ = false;
  std::map<uint32_t, server::EpochRecord> epochs_;
  std::map<uint32_t, uint32_t> epoch_;       // of each server, the newest it ever had
  std::map<uint32_t, uint64_t> version_;     // of each server, the newest it ever had
  uint64_t committed_ = 1;                   // newest version of anybody
  std::map<uint32_t, Trainer> trainers_;     // by process
  std::map<uint32_t, Forgotten> forgotten_;  // by server
};

}  // namespace ballast::sim
