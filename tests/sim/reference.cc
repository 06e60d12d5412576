#include "tests/sim/reference.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string_view>

#include "common/base/check.h"
#include "common/job/round_rates.h"
#include "server/optim/scalars.h"
#include "server/reduce/reduce.h"
#include "server/round/scalar_bits.h"
#include "tests/sim/optimizers.h"
#include "tests/sim/step_run.h"
#include "tests/sim/world/random.h"

namespace ballast::sim {
namespace {

float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Nearest, ties to even.
uint16_t ToBf16(float value) {
  if (std::isnan(value)) return 0x7FC0;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

float Load(DType dtype, const std::vector<char>& bytes, size_t i) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, bytes.data() + i * 4, 4);
    return value;
  }
  uint16_t value = 0;
  std::memcpy(&value, bytes.data() + i * 2, 2);
  return FromBf16(value);
}

void Store(DType dtype, float value, std::vector<char>* bytes, size_t i) {
  if (dtype == DType::kF32) {
    std::memcpy(bytes->data() + i * 4, &value, 4);
    return;
  }
  const uint16_t half = ToBf16(value);
  std::memcpy(bytes->data() + i * 2, &half, 2);
}

// In [-1, 1), a function of its key only.
float Noise(uint64_t seed, uint64_t round, uint64_t slot, uint64_t extent, uint64_t element) {
  const uint64_t key = Mix(seed + 1) ^ round << 48 ^ slot << 40 ^ extent << 20 ^ element;
  return static_cast<float>(static_cast<int32_t>(Mix(key) >> 32)) * 0x1p-31f;
}

}  // namespace

Reference::Reference(const Swarm* swarm, const server::JobPlan* plan, const Layout* layout)
    : swarm_(swarm), plan_(plan), layout_(layout), epochs_{plan->epoch} {
  Version first;
  first.tensor_step.assign(layout_->tensors().size(), 0);
  first.policy = StartPolicy(plan_->spec);
  for (uint32_t e = 0; e < layout_->extents().size(); ++e) {
    const Extent& extent = layout_->extents()[e];
    std::vector<char> wire(layout_->ExtentWireBytes(e));
    ExtentState state;
    for (uint32_t a = 0; a < StateArrayCount(plan_->spec); ++a) {
      state.emplace_back(extent.elements, InitialValue(plan_->spec, a));
    }
    for (uint32_t i = 0; i < extent.elements; ++i) {
      Store(extent.dtype, Noise(swarm_->seed, 0, 0, e, i), &wire, i);
      state[0][i] = Load(extent.dtype, wire, i);
    }
    first.extents.push_back(std::move(state));
    first.weights.push_back(std::move(wire));
  }
  before_first_.policy = first.policy;
  versions_.push_back(std::move(first));
}

void Reference::OnEpoch(const server::EpochRecord& record) {
  epochs_.push_back(record);
  if (versions_.size() < record.start_round) return;
  versions_.resize(record.start_round);
  versions_.back().decision = Decision();
  versions_.back().sumsq.clear();
}

const std::vector<server::Member>& Reference::MembersOf(uint64_t round) const {
  for (auto epoch = epochs_.rbegin();; ++epoch) {
    if (epoch->start_round <= round) return epoch->members;
  }
}

uint32_t Reference::Pusher(uint64_t round, uint32_t extent) const {
  const std::vector<server::Member>& members = MembersOf(round);
  if (plan_->spec.gradients == Gradients::kReduced) return members.front().slot;
  return members[layout_->Turn(extent) % members.size()].slot;
}

bool Reference::GetsWeights(uint64_t round, uint32_t slot, uint32_t extent) const {
  const bool scattered = plan_->spec.gradients == Gradients::kScattered;
  return !scattered || Uploads(round) || Pusher(round, extent) == slot;
}

// --- Trainers' gradients ------------------------------------------------------------------------

// Half of the uploads are weights.
UploadPlane Reference::PlaneOf(uint64_t round) const {
  const uint32_t n = swarm_->shape.upload_one_in;
  if (n == 0 || Mix(swarm_->seed ^ round << 32 ^ 11) % n != 0) return UploadPlane::kNone;
  const uint64_t key = Mix(swarm_->seed ^ round << 32 ^ 13);
  if (key % 2 == 0) return UploadPlane::kWeights;
  return static_cast<UploadPlane>(2 + (key >> 8) % (2 * StateArrayCount(plan_->spec)));
}

bool Reference::SetsSquares(uint64_t round) const {
  const UploadPlane plane = PlaneOf(round);
  if (!IsStatePlane(plane) || IsLowPlane(plane) || ArrayOf(plane) == 0) return false;
  const std::string_view name = StateArraysOf(plan_->spec)[ArrayOf(plane) - 1].name;
  return name == "sum" || name.ends_with("_sq");
}

std::optional<StepCounts> Reference::SetSteps(uint64_t round) const {
  const uint64_t key = Mix(swarm_->seed ^ round << 32 ^ 17);
  if (!IsStatePlane(PlaneOf(round)) || key % 2 == 0) return std::nullopt;
  StepCounts steps;
  for (uint32_t t = 0; t < layout_->tensors().size(); ++t) {
    steps.tensor.push_back(Mix(key + t) % 100);
  }
  steps.opt_step = (key >> 8) % 100;
  return steps;
}

bool Reference::Present(uint64_t round, uint32_t slot, uint32_t tensor) const {
  const uint32_t n = swarm_->shape.absent_one_in;
  if (Uploads(round)) return Carries(PlaneOf(round), layout_->tensors()[tensor].dtype);
  if (n == 0) return true;
  // Now and then the whole job leaves a tensor out.
  if (Mix(swarm_->seed ^ round << 32 ^ tensor << 8 ^ 3) % (3 * n) == 0) return false;
  const uint32_t whose = Reduced() ? 0 : slot;
  return Mix(swarm_->seed ^ round << 32 ^ uint64_t{tensor} << 8 ^ whose << 2 ^ 1) % n != 0;
}

bool Reference::PresentAnywhere(uint64_t round, uint32_t tensor) const {
  for (const server::Member& member : MembersOf(round)) {
    if (Present(round, member.slot, tensor)) return true;
  }
  return false;
}

bool Reference::Poisoned(uint64_t round, uint32_t slot, uint32_t extent, uint32_t element) const {
  const uint32_t n = swarm_->shape.nonfinite_one_in;
  if (n == 0 || Uploads(round)) return false;
  const uint64_t key = Mix(swarm_->seed ^ round << 32 ^ 7);
  const bool here = Reduced() || (key >> 20) % plan_->spec.world == slot;
  return key % n == 0 && here && (key >> 32) % layout_->extents().size() == extent &&
         (key >> 44) % layout_->extents()[extent].elements == element;
}

Hyper Reference::HyperOf(uint64_t round, uint32_t group) const {
  const double lr = (group == 0 ? 1e-2 : 3e-3) / static_cast<double>(round);
  return HyperFor(OptimizerOf(plan_->spec), lr, group);
}

std::vector<char> Reference::Gradient(uint64_t round, uint32_t slot, uint32_t extent_id,
                                      const std::vector<char>& weights) const {
  const Extent& extent = layout_->extents()[extent_id];
  const uint32_t whose = Reduced() ? 1 : slot + 1;
  std::vector<char> grad(weights.size());
  for (uint32_t i = 0; i < extent.elements; ++i) {
    float g = Noise(swarm_->seed, round, Uploads(round) ? 0 : whose, extent_id, i);
    g += 0.1f * Load(extent.dtype, weights, i);
    if (SetsSquares(round)) g = std::fabs(g);  // There is a root of it.
    if (Poisoned(round, slot, extent_id, i)) g = std::numeric_limits<float>::quiet_NaN();
    Store(extent.dtype, g, &grad, i);
  }
  return grad;
}

// --- Their results ------------------------------------------------------------------------------

Reference::Version& Reference::At(uint64_t version) {
  BALLAST_CHECK(version >= 1 && version <= swarm_->shape.rounds + 1);
  while (versions_.size() < version) RunRound(versions_.size());
  return versions_[version - 1];
}

const std::vector<char>& Reference::Weights(uint64_t version, uint32_t extent) {
  return At(version).weights[extent];
}
const ExtentState& Reference::State(uint64_t version, uint32_t extent) {
  return At(version).extents[extent];
}
const std::vector<uint64_t>& Reference::TensorSteps(uint64_t version) {
  return At(version).tensor_step;
}
const Decision& Reference::DecisionOf(uint64_t round) {
  if (round == 0) return before_first_;
  At(round + 1);
  return At(round).decision;
}
double Reference::SumOfSquares(uint64_t round, uint32_t extent) {
  At(round + 1);
  return At(round).sumsq[extent];
}

std::vector<float> Reference::Sum(uint64_t round, uint32_t extent_id, const Version& from,
                                  Nonfinite* first) const {
  const Extent& extent = layout_->extents()[extent_id];
  std::vector<float> sum(extent.elements);
  bool alone = true;
  for (const server::Member& member : MembersOf(round)) {
    const bool one = Reduced() && !Uploads(round);
    const uint32_t slot = one ? Pusher(round, extent_id) : member.slot;
    const std::vector<char> grad = Gradient(round, slot, extent_id, from.weights[extent_id]);
    for (uint32_t r = 0; r < extent.run_count; ++r) {
      const Run& run = layout_->runs()[extent.first_run + r];
      const bool present = Present(round, slot, run.tensor);
      for (uint32_t i = run.extent_offset; i < run.extent_offset + run.elements; ++i) {
        const float g = present ? Load(extent.dtype, grad, i) : 0.0f;
        sum[i] = alone ? g : sum[i] + g;
        if (std::isfinite(sum[i])) continue;
        // Gradients here are NaN or small.
        const Nonfinite nonfinite{NonfiniteKind::kGradient, extent_id, i, slot, 0x7FC00000};
        if (ComesBefore(nonfinite, *first)) *first = nonfinite;
      }
    }
    if (Uploads(round) || Reduced()) break;  // The first member's alone.
    alone = false;
  }
  return sum;
}

void Reference::RunRound(uint64_t round) {
  Version from = std::move(versions_.back());
  std::vector<std::vector<float>> sums;
  Nonfinite first;
  for (uint32_t e = 0; e < layout_->extents().size(); ++e) {
    sums.push_back(Sum(round, e, from, &first));
  }
  Decide(round, sums, first, &from);
  Version to{.extents = from.extents, .weights = from.weights, .tensor_step = from.tensor_step};
  to.policy = from.decision.policy;
  if (from.decision.applied) {
    if (plan_->spec.optimizer == OptimizerKind::kLamb && !Uploads(round)) {
      StepLamb(round, sums, from, &to);
    } else {
      for (uint32_t e = 0; e < sums.size(); ++e) Step(round, e, sums[e], from, &to);
    }
    for (uint32_t t = 0; t < to.tensor_step.size(); ++t) {
      if (PresentAnywhere(round, t) && !Uploads(round)) ++to.tensor_step[t];
    }
    if (const auto steps = SetSteps(round)) to.tensor_step = steps->tensor;
  }
  versions_.back() = std::move(from);
  versions_.push_back(std::move(to));
}

// The votes of one server that owns everything.
void Reference::Decide(uint64_t round, const std::vector<std::vector<float>>& sums,
                       const Nonfinite& first, Version* from) const {
  const reduce::NormTileFn norm = reduce::Kernels(simd::Isa::kScalar).norm_tile[0];
  DecideInput input = DecideInputOf(plan_->spec);
  input.policy = from->policy;
  input.upload = PlaneOf(round);
  if (const auto steps = SetSteps(round)) input.opt_step = steps->opt_step;
  const bool reduced = plan_->spec.gradients == Gradients::kReduced;
  const double divisor = reduced ? 1 : static_cast<double>(MembersOf(round).size());
  input.divisor.assign(plan_->spec.group_count, divisor);
  Vote vote{.first_nonfinite = first};
  from->hyper.clear();
  for (uint32_t g = 0; g < plan_->spec.group_count; ++g) from->hyper.push_back(HyperOf(round, g));
  if (plan_->spec.policy.active() && !Uploads(round)) {
    vote.rates = RatesOf(plan_->spec, from->policy, from->hyper);
    from->hyper = WithRates(plan_->spec, from->hyper, vote.rates);
  }
  for (uint32_t e = 0; e < sums.size(); ++e) {
    input.extent_group.push_back(layout_->extents()[e].group);
    reduce::TileNormSum total;
    for (size_t at = 0; at < sums[e].size(); at += layout_->tile_elements()) {
      const size_t count = std::min<size_t>(layout_->tile_elements(), sums[e].size() - at);
      total.Add(norm(sums[e].data() + at, count));
    }
    from->sumsq.push_back(total.sumsq);
    vote.norms.push_back({e, total.sumsq});
    vote.nonfinite += total.nonfinite;
  }
  absl::StatusOr<Decision> decision = ::ballast::Decide(input, {vote});
  BALLAST_CHECK(decision.ok());
  from->decision = *std::move(decision);
}

void Reference::Step(uint64_t round, uint32_t extent_id, const std::vector<float>& sum,
                     const Version& from, Version* to) const {
  const Extent& extent = layout_->extents()[extent_id];
  ExtentState& state = to->extents[extent_id];
  if (Uploads(round)) {
    SetPlane(PlaneOf(round), extent_id, sum, &state);
    to->weights[extent_id] = Rounded(extent_id, state[0]);
    return;
  }
  const Optimizer optimizer = OptimizerOf(plan_->spec);
  for (uint32_t r = 0; r < extent.run_count; ++r) {
    const Run& run = layout_->runs()[extent.first_run + r];
    if (!PresentAnywhere(round, run.tensor)) continue;
    const optim::Scalars k =
        optim::MakeScalars(optimizer.kind, optimizer.options, from.hyper[extent.group],
                           from.tensor_step[run.tensor] + 1);
    StepRun(optimizer, k, run, sum, from.decision.grad_scale[extent.group], &state);
  }
  to->weights[extent_id] = Rounded(extent_id, state[0]);
}

void Reference::StepLamb(uint64_t round, std::vector<std::vector<float>> values,
                         const Version& from, Version* to) const {
  std::vector<LambSquares> squares(layout_->tensors().size());
  const auto for_each_run = [&](const auto& run_of) {
    for (uint32_t e = 0; e < values.size(); ++e) {
      const Extent& extent = layout_->extents()[e];
      for (uint32_t r = 0; r < extent.run_count; ++r) {
        const Run& run = layout_->runs()[extent.first_run + r];
        if (!PresentAnywhere(round, run.tensor)) continue;
        run_of(e, run, LambStep(from.hyper[extent.group], from.tensor_step[run.tensor] + 1));
      }
    }
  };
  for_each_run([&](uint32_t e, const Run& run, const LambStep& k) {
    const float scale = from.decision.grad_scale[layout_->extents()[e].group];
    MeasureLamb(k, run, layout_->tile_elements(), scale, &values[e], &to->extents[e],
                &squares[run.tensor]);
  });
  for_each_run([&](uint32_t e, const Run& run, const LambStep& k) {
    ApplyLamb(k, run, squares[run.tensor], values[e], &to->extents[e]);
  });
  for (uint32_t e = 0; e < values.size(); ++e) to->weights[e] = Rounded(e, to->extents[e][0]);
}

// `sum` is the pushed values, widened. The bits of a 16-bit plane are those of the bf16 it came
// from.
void Reference::SetPlane(UploadPlane plane, uint32_t extent_id, const std::vector<float>& sum,
                         ExtentState* state) const {
  const DType dtype = layout_->extents()[extent_id].dtype;
  if (!Carries(plane, dtype)) return;
  if (plane == UploadPlane::kWeights) {
    (*state)[0] = sum;
    return;
  }
  std::vector<float>& array = (*state)[ArrayOf(plane)];
  for (size_t i = 0; i < sum.size(); ++i) {
    const auto pushed = std::bit_cast<uint32_t>(sum[i]);
    const auto was = std::bit_cast<uint32_t>(array[i]);
    const uint32_t halves =
        IsLowPlane(plane) ? (was & 0xFFFF0000u) | pushed >> 16 : pushed | (was & 0xFFFFu);
    array[i] = std::bit_cast<float>(dtype == DType::kF32 ? pushed : halves);
  }
}

std::vector<char> Reference::Rounded(uint32_t extent_id, const std::vector<float>& p) const {
  const DType dtype = layout_->extents()[extent_id].dtype;
  std::vector<char> wire(layout_->ExtentWireBytes(extent_id));
  for (size_t i = 0; i < p.size(); ++i) Store(dtype, p[i], &wire, i);
  return wire;
}

}  // namespace ballast::sim
