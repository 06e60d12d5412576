// Reference: the required state of the job, from the specification alone: gradients that depend on
// the weights they were computed on, their slot-order sum, one multiplication, the optimizer in a
// plain loop. It knows nothing of servers, frames, votes or disks.
// Comes from: the swarm. Goes to: trainers (their gradients), the oracle (every comparison).
// Thread safety: one thread. Memory: the state of every version.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/job/decide.h"
#include "common/tensor/layout.h"
#include "server/round/round_types.h"
#include "tests/sim/swarm.h"

namespace ballast::sim {

// State arrays of one extent, the master weights first.
using ExtentState = std::vector<std::vector<float>>;

class Reference {
 public:
  Reference(const Swarm* swarm, const server::JobPlan* plan, const Layout* layout);

  // From round record.start_round on, its members contribute. Earlier results of such rounds are
  // not true any more.
  void OnEpoch(const server::EpochRecord& record);

  // What `round` replaces, weights or a plane of the state: it then is what Gradient gives for any
  // slot.
  UploadPlane PlaneOf(uint64_t round) const;
  bool Uploads(uint64_t round) const { return IsUpload(PlaneOf(round)); }
  // The step counts that it sets, if it does.
  std::optional<StepCounts> SetSteps(uint64_t round) const;
  // Whether the trainer of `slot` brings something of `tensor` to `round`, and the hyper-parameters
  // of a group.
  bool Present(uint64_t round, uint32_t slot, uint32_t tensor) const;
  Hyper HyperOf(uint64_t round, uint32_t group) const;
  // Its gradient of `extent`, computed on `weights`; both in the extent's wire dtype.
  std::vector<char> Gradient(uint64_t round, uint32_t slot, uint32_t extent,
                             const std::vector<char>& weights) const;

  // Whether the servers send the slot the weights of `extent` after `round`.
  bool GetsWeights(uint64_t round, uint32_t slot, uint32_t extent) const;
  // The weights of `version` in the extent's wire dtype, and the state of that version.
  const std::vector<char>& Weights(uint64_t version, uint32_t extent);
  const ExtentState& State(uint64_t version, uint32_t extent);
  // Per tensor, before round `version`.
  const std::vector<uint64_t>& TensorSteps(uint64_t version);
  // The decision of `round`, 0: the start of a job; and the sum of squares that its votes give for
  // an extent.
  const Decision& DecisionOf(uint64_t round);
  double SumOfSquares(uint64_t round, uint32_t extent);

 private:
  struct Version {
    std::vector<ExtentState> extents;
    std::vector<std::vector<char>> weights;
    std::vector<uint64_t> tensor_step;
    PolicyState policy;
    // Of the round that starts from it.
    Decision decision;
    std::vector<Hyper> hyper;  // per group, as the schedule has them
    std::vector<double> sumsq;
  };
  const std::vector<server::Member>& MembersOf(uint64_t round) const;
  // Whether every slot has the same gradients, and one of them counts: for each extent another one
  // where they are scattered, as if each slot had the sums of all extents.
  bool Reduced() const { return plan_->spec.gradients != Gradients::kLocal; }
  // The slot whose gradient of `extent` counts then.
  uint32_t Pusher(uint64_t round, uint32_t extent) const;
  Version& At(uint64_t version);
  void RunRound(uint64_t round);
  // Also puts the first element that is not finite into `first` if it comes before the present one.
  std::vector<float> Sum(uint64_t round, uint32_t extent, const Version& from,
                         Nonfinite* first) const;
  void Decide(uint64_t round, const std::vector<std::vector<float>>& sums, const Nonfinite& first,
              Version* from) const;
  void Step(uint64_t round, uint32_t extent, const std::vector<float>& sum, const Version& from,
            Version* to) const;
  // Of all extents: the ratios need whole tensors. `values` are the sums of gradients per extent.
  void StepLamb(uint64_t round, std::vector<std::vector<float>> values, const Version& from,
                Version* to) const;
  // Whether `round` sets an array of sums of squares.
  bool SetsSquares(uint64_t round) const;
  bool PresentAnywhere(uint64_t round, uint32_t tensor) const;
  void SetPlane(UploadPlane plane, uint32_t extent, const std::vector<float>& sum,
                ExtentState* state) const;
  bool Poisoned(uint64_t round, uint32_t slot, uint32_t extent, uint32_t element) const;
  std::vector<char> Rounded(uint32_t extent, const std::vector<float>& p) const;

  const Swarm* const swarm_;
  const server::JobPlan* const plan_;
  const Layout* const layout_;
  std::vector<server::EpochRecord> epochs_;
  std::vector<Version> versions_;  // [0] is version 1
  Decision before_first_;          // of a round 0 that has stepped nothing
};

}  // namespace ballast::sim
