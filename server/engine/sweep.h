// Sweep: the step of one decided round over the extents of this server, a few at a time: as many as
// the tier holds in memory.
//
//   Plan -Run-> acquire -> step its tiles on the workers -> release -> next ... -> stepped
//
// First layers come first, where the tier does not choose the other direction: the next forward
// pass needs their weights first. LAMB's first pass is such a sweep, which only measures
// (FirstPass). Comes from: RoundDriver (ApplyRound). Goes to: ModelState, Contributions, Audience
// (weights), RoundDriver (SteppedInput). Thread safety: on the job's strand; tiles run on workers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/worker_pool.h"
#include "server/engine/audience.h"
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
    const RoundFsm* fsm = nullptr;
    Contributions* contributions = nullptr;
    ModelState* state = nullptr;
    const Audience* audience = nullptr;                       // hears of weights
    std::function<void()> stepped;                            // all extents
    std::function<void(std::vector<RunSquares>)> measured;    // as FirstPass'
    std::function<void(const absl::Status&)> failed;          // out of memory
    std::function<void(const absl::Status&)> storage_failed;  // of the tier
  };

  // What `deps` points to outlives this.
  explicit Sweep(Deps deps);

  // Once, in the open round of a restarted server: these extents hold its result already.
  void LeaveOut(const std::vector<uint32_t>& extents);
  void ForgetLeftOut() { ahead_.clear(); }

  // Measures what LAMB's ratios need of the FSM's round, which `decision` applies, and calls
  // `measured`; no state changes. Or calls `failed`: MakeStepPlan's errors; DATA_LOSS STATE_LOST
  // when the step of this round has changed an extent already.
  void Measure(const Decision& decision);
  // Plans the step of the FSM's round by `decision`; `ratios` are LAMB's, else none. Errors:
  // MakeStepPlan's.
  absl::Status Plan(const Decision& decision, const std::vector<float>& ratios = {});
  // Which extents the planned step changes.
  const std::vector<uint32_t>& extents() const { return extents_; }
  // Bytes of the weights that the slot gets of the planned step: where gradients are scattered,
  // those of the extents that it has pushed. Its trainer hands them on to the others.
  uint64_t WeightBytes(uint32_t slot) const;
  // Steps what was planned and sends the weights of every extent when it is stepped. Calls
  // `stepped` behind the last, at once when there is none.
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
  std::vector<uint32_t> extents_;  // that the planned step changes, first layers first
  bool to_pushers_ = false;        // each extent's weights go to the slot that has pushed it
  std::set<uint32_t> ahead_;
  uint64_t weight_overflows_ = 0;
};

}  // namespace ballast::server
