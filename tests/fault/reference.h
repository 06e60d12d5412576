// Reference: the required state of a kill storm's job, from the specification alone, in the process
// of each trainer: gradients that depend on the weights they were computed on and on the process
// that computed them, their slot-order sum, one multiplication, the optimizer in a plain loop.
//
// Now and then a round is an upload of edited weights instead.
// A gradient is noise(seed, life, round, slot, extent, element) + 0.1 * weight. The `life` of a
// slot counts its processes and stands for the epoch: each new process begins a new one. So a round
// that mixes the gradients of two processes, applies one twice or starts from other weights has
// other bits, and every round after it has.
//
// Comes from: seed and world, and who ran which round (Lives). Goes to: trainer.cc.
// Thread safety: one thread. Memory: the state of one version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/job/decide.h"
#include "common/job/job_spec.h"
#include "common/job/optimizer.h"
#include "common/tensor/layout.h"

namespace ballast::fault {

// One parameter of the storm's model.
struct Parameter {
  const char* name;
  int64_t elements;
  DType dtype;
  uint32_t group;
};

inline constexpr uint32_t kTileElements = 512;
inline constexpr uint32_t kExtentElements = 2048;
inline constexpr double kMaxGradNorm = 50;

// Seven extents in two groups and two dtypes; none ends where a tensor does.
const std::vector<Parameter>& Parameters();
Layout ModelLayout();
// State arrays of one extent, the master weights first, and its weights as they travel, widened to
// fp32.
struct ExtentState {
  std::vector<std::vector<float>> arrays;
  std::vector<float> weight;
};

class Reference {
 public:
  // `kind`: of the optimizer; without one the seed draws it.
  Reference(uint64_t seed, uint32_t world, std::optional<OptimizerKind> kind);

  // The job's optimizer with its options, and in half of the jobs a dynamic loss scale or a
  // schedule, drawn from the seed.
  const JobSpec& spec() const { return spec_; }
  // The factor of this round's gradients.
  double loss_scale() const { return policy_.loss_scale; }
  // Raw hyper-parameters of `group` in this round.
  Hyper HyperOf(uint32_t group) const;
  // The next round to run; the state is that of this version.
  uint64_t round() const { return round_; }
  uint64_t opt_step() const { return policy_.opt_step; }
  const ExtentState& extent(uint32_t extent) const { return extents_[extent]; }
  uint64_t tensor_step(uint32_t tensor) const { return tensor_step_[tensor]; }
  const Layout& layout() const { return layout_; }

  // Whether `round` replaces the weights; never the first one.
  bool Uploads(uint64_t round) const;
  // What by, when this round does: a function of those before it, the same on all trainers, rounded
  // to the extent's dtype.
  std::vector<float> Edited(uint32_t extent) const;
  // Whether `slot` has a gradient for `tensor` in `round`.
  bool Present(uint64_t round, uint32_t slot, uint32_t tensor) const;
  // The gradient of an extent in this round by the process `life` of `slot`, rounded to the
  // extent's dtype.
  std::vector<float> Gradient(uint64_t life, uint32_t slot, uint32_t extent) const;

  // Runs this round: an upload, or with the gradients of these processes, one per slot. Returns its
  // decision.
  Decision Step(const std::vector<uint64_t>& lives);

  // The whole state to a file that replaces `path`, and back. Load: NOT_FOUND without a file.
  absl::Status Save(const std::string& path) const;
  absl::Status Load(const std::string& path);

 private:
  std::vector<float> Sum(const std::vector<uint64_t>& lives, uint32_t extent) const;
  // Sets hyper_, too.
  Decision Decide(const std::vector<std::vector<float>>& sums);
  void StepExtent(uint32_t extent, const std::vector<float>& sum, float scale);
  // Of all extents: the ratios need whole tensors. `values` are the sums of gradients per extent.
  void StepLamb(const Decision& decision, std::vector<std::vector<float>> values);
  bool PresentAnywhere(uint32_t tensor) const;
  bool Poisoned(uint32_t slot, uint32_t extent, uint32_t element) const;

  uint64_t seed_;
  uint32_t world_;
  Layout layout_;
  JobSpec spec_;
  uint64_t round_ = 1;
  PolicyState policy_;
  std::vector<Hyper> hyper_;  // of this round, as the schedule has them
  std::vector<uint64_t> tensor_step_;
  std::vector<ExtentState> extents_;
};

// Rounds to bf16 and back for that dtype, else returns `value`.
float RoundTo(DType dtype, float value);

}  // namespace ballast::fault
