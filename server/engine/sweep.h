// Sweep: the step of one decided round over the extents of this server, a few at a time: as many as
// the tier holds in memory.
//
//   Plan -Run-> acquire -> step its tiles on the workers -> release -> next ... -> stepped
//
// First layers come first, unless the tier chooses the other direction: the next forward pass needs
// their weights first. LAMB's first pass is a sweep that only measures (FirstPass). Comes from:
// RoundDriver (ApplyRound). Goes to: ModelState, Contributions, SlotSinks (weights), RoundDriver
// (SteppedInput). Thread safety: on the job's strand; tiles run on workers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/threads/worker_pool.h"
#include "server/engine/round_control.h"
#include "server/engine/slot_sinks.h"
#include "server/extents/contributions.h"
#include "server/extents/first_pass.h"
#include "server/extents/tier_walk.h"
#include "server/round/job_strand.h"
#include "server/round/model_state.h"
#include "server/round/round_fsm.h"
#include "server/round/step_plan.h"

namespace ballast::server {

class Sweep {
 public:
  struct Deps {
    JobStrand* strand = nullptr;
    WorkerPool* workers = nullptr;
    RoundControl* rounds = nullptr;  // gets MeasuredInput, and errors of memory and of the tier
    const RoundFsm* fsm = nullptr;
    Contributions* contributions = nullptr;
    ModelState* state = nullptr;
    const SlotSinks* sinks = nullptr;  // get the weights
    std::function<void()> stepped;     // all extents
  };

  // All objects in `deps` outlive this.
  explicit Sweep(Deps deps);

  // Once, in the open round of a restarted server: these extents have its result already.
  void LeaveOut(const std::vector<uint32_t>& extents);
  void ForgetLeftOut() { ahead_.clear(); }

  // Measures the squares for LAMB's ratios in the FSM's round, which `decision` applies, and feeds
  // MeasuredInput; no state changes. Or fails the job: MakeStepPlan's errors; DATA_LOSS STATE_LOST
  // when the step of this round has already changed an extent.
  void Measure(const Decision& decision);
  // Plans the step of the FSM's round by `decision`; `ratios` are LAMB's, else none. Errors:
  // MakeStepPlan's.
  absl::Status Plan(const Decision& decision, const std::vector<float>& ratios = {});
  // The extents that the planned step changes.
  const std::vector<uint32_t>& extents() const { return extents_; }
  // Bytes of weights that the planned step sends to the slot: where gradients are scattered, those
  // of the extents it pushed. Its trainer hands them on to the others.
  uint64_t WeightBytes(uint32_t slot) const;
  // Carries out the planned step and sends the weights of each stepped extent. Calls `stepped`
  // after the last extent, at once when there is none.
  void Run();
  // Finite masters that became Inf in 16-bit weights, in the last sweep.
  uint64_t weight_overflows() const { return weight_overflows_; }
  // No sweep in this round.
  void SkipRound() { weight_overflows_ = 0; }

 private:
  absl::Status RatiosLost(uint32_t extent) const;
  // `extent` is in memory. `version` of OnStepped as in Tier::Release.
  void Step(uint32_t extent);
  void OnStepped(uint32_t extent, uint64_t version, const BufferRef& weight);
  bool Gets(uint32_t slot, uint32_t extent) const;
  void TellWeights(uint32_t extent, const BufferRef& weight) const;

  const Deps deps_;
  FirstPass first_pass_;
  TierWalk walk_;
  std::shared_ptr<StepPlan> plan_;
  std::vector<uint32_t> extents_;  // of the planned step, first layers first
  bool to_pushers_ = false;        // each extent's weights go to the slot that pushed it
  std::set<uint32_t> ahead_;
  uint64_t weight_overflows_ = 0;
};

}  // namespace ballast::server
