#include "tests/fault/reference.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/job/round_rates.h"
#include "server/optim/scalars.h"
#include "server/reduce/reduce.h"
#include "tests/sim/optimizers.h"
#include "tests/sim/step_run.h"
#include "tests/sim/world/random.h"

namespace ballast::fault {
namespace {

using sim::Mix;

// One round in so many has a NaN; one gradient in so many is missing.
constexpr uint64_t kPoisonedOneIn = 61;
constexpr uint64_t kAbsentOneIn = 13;
constexpr uint64_t kUploadOneIn = 17;

// In [-1, 1), a function of its key only.
float Noise(uint64_t key) {
  return static_cast<float>(static_cast<int32_t>(Mix(key) >> 32)) * 0x1p-31f;
}

template <typename T>
void Write(const std::vector<T>& values, std::ofstream* to) {
  static_assert(std::is_trivially_copyable_v<T>);
  to->write(reinterpret_cast<const char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
}

template <typename T>
void Read(std::vector<T>* values, std::ifstream* from) {
  from->read(reinterpret_cast<char*>(values->data()),
             static_cast<std::streamsize>(values->size() * sizeof(T)));
}

// Scales that neither reach their minimum nor grow without end: a round in kPoisonedOneIn is NaN.
LossScalerConfig DrawScaler(sim::Random* random) {
  return {.initial_scale_power = static_cast<int64_t>(random->Between(8, 24)),
          .loss_scale_window = static_cast<int64_t>(random->Between(20, 90)),
          .hysteresis = static_cast<int64_t>(random->Between(1, 2))};
}

Schedule DrawSchedule(bool has_betas, sim::Random* random) {
  const auto steps = static_cast<int64_t>(random->Between(2, 60));
  if (random->OneIn(2))
    return WarmupCosineLR{.total_num_steps = 9 * steps, .warmup_num_steps = steps};
  return OneCycle{.cycle_min_lr = 1e-3,
                  .cycle_max_lr = 1e-2,
                  .cycle_first_step_size = static_cast<double>(steps),
                  .decay_step_size = 10,
                  .cycle_momentum = has_betas};
}

JobSpec DrawSpec(uint64_t seed, std::optional<OptimizerKind> kind) {
  sim::Random random(seed);
  const Optimizer optimizer =
      kind.has_value() ? sim::WithOptions(*kind, &random) : sim::DrawOptimizer(&random);
  JobSpec spec;
  spec.optimizer = optimizer.kind;
  spec.options = optimizer.options;
  spec.group_count = 2;
  spec.max_grad_norm = kMaxGradNorm;
  const bool has_betas = OptimizerRowOf(spec).hyper[1].name == std::string_view("beta1");
  if (random.OneIn(2)) spec.policy.loss_scaler = DrawScaler(&random);
  if (random.OneIn(2)) spec.policy.schedule = DrawSchedule(has_betas, &random);
  return spec;
}

// The weights of a run, from its masters.
void RoundWeights(DType dtype, const Run& run, ExtentState* state) {
  for (uint32_t i = run.extent_offset; i < run.extent_offset + run.elements; ++i) {
    state->weight[i] = RoundTo(dtype, state->arrays[0][i]);
  }
}

}  // namespace

float RoundTo(DType dtype, float value) {
  if (dtype != DType::kBF16) return value;
  if (std::isnan(value)) return std::bit_cast<float>(0x7FC00000u);
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u);
}

const std::vector<Parameter>& Parameters() {
  static const auto* const parameters =
      new std::vector<Parameter>{{"layer.weight", 9000, DType::kF32, 0},
                                 {"layer.bias", 77, DType::kF32, 0},
                                 {"head.weight", 3000, DType::kBF16, 1}};
  return *parameters;
}

Layout ModelLayout() {
  std::vector<LayoutTensor> tensors;
  for (const Parameter& parameter : Parameters()) {
    tensors.push_back(
        {static_cast<uint64_t>(parameter.elements), parameter.dtype, parameter.group});
  }
  absl::StatusOr<Layout> layout = Layout::Build(tensors, kTileElements, kExtentElements);
  BALLAST_CHECK(layout.ok());
  return *std::move(layout);
}

Reference::Reference(uint64_t seed, uint32_t world, std::optional<OptimizerKind> kind)
    : seed_(Mix(seed)),
      world_(world),
      layout_(ModelLayout()),
      spec_(DrawSpec(seed, kind)),
      policy_(StartPolicy(spec_)) {
  tensor_step_.assign(layout_.tensors().size(), 0);
  for (uint32_t e = 0; e < layout_.extents().size(); ++e) {
    const Extent& extent = layout_.extents()[e];
    ExtentState state;
    for (uint32_t a = 0; a < StateArrayCount(spec_); ++a) {
      state.arrays.emplace_back(extent.elements, InitialValue(spec_, a));
    }
    for (uint32_t i = 0; i < extent.elements; ++i) {
      state.arrays[0][i] = RoundTo(extent.dtype, Noise(seed_ ^ uint64_t{e} << 32 ^ i));
    }
    state.weight = state.arrays[0];
    extents_.push_back(std::move(state));
  }
}

// --- Trainers' gradients ------------------------------------------------------------------------

Hyper Reference::HyperOf(uint32_t group) const {
  const double lr = (group == 0 ? 1e-2 : 3e-3) / (1 + static_cast<double>(round_ % 100));
  return sim::HyperFor(OptimizerOf(spec_), lr, group);
}

bool Reference::Present(uint64_t round, uint32_t slot, uint32_t tensor) const {
  // Now and then the whole job leaves a tensor out.
  if (Mix(seed_ ^ round << 8 ^ tensor) % (3 * kAbsentOneIn) == 0) return false;
  return Mix(~seed_ ^ round << 16 ^ uint64_t{tensor} << 8 ^ slot) % kAbsentOneIn != 0;
}

bool Reference::PresentAnywhere(uint32_t tensor) const {
  for (uint32_t slot = 0; slot < world_; ++slot) {
    if (Present(round_, slot, tensor)) return true;
  }
  return false;
}

bool Reference::Poisoned(uint32_t slot, uint32_t extent, uint32_t element) const {
  const uint64_t key = Mix(seed_ + 3 * round_);
  return key % kPoisonedOneIn == 0 && (key >> 20) % world_ == slot &&
         (key >> 32) % layout_.extents().size() == extent &&
         (key >> 44) % layout_.extents()[extent].elements == element;
}

std::vector<float> Reference::Gradient(uint64_t life, uint32_t slot, uint32_t extent_id) const {
  const Extent& extent = layout_.extents()[extent_id];
  const uint64_t key = Mix(Mix(seed_ + round_) ^ life << 32 ^ uint64_t{slot} << 16 ^ extent_id);
  std::vector<float> grad(extent.elements);
  for (uint32_t i = 0; i < extent.elements; ++i) {
    const float g = Noise(key + i) + 0.1f * extents_[extent_id].weight[i];
    const bool poisoned = Poisoned(slot, extent_id, i);
    grad[i] = RoundTo(extent.dtype, poisoned ? std::numeric_limits<float>::quiet_NaN() : g);
  }
  return grad;
}

bool Reference::Uploads(uint64_t round) const {
  return round > 1 && Mix(seed_ ^ (7 * round + 1)) % kUploadOneIn == 0;
}

std::vector<float> Reference::Edited(uint32_t extent_id) const {
  const Extent& extent = layout_.extents()[extent_id];
  const uint64_t key = Mix(~seed_ + round_) ^ uint64_t { extent_id } << 40;
  std::vector<float> edited(extent.elements);
  for (uint32_t i = 0; i < extent.elements; ++i) {
    edited[i] = RoundTo(extent.dtype, 0.5f * extents_[extent_id].weight[i] + Noise(key + i));
  }
  return edited;
}

// --- Their results ------------------------------------------------------------------------------

std::vector<float> Reference::Sum(const std::vector<uint64_t>& lives, uint32_t extent_id) const {
  const Extent& extent = layout_.extents()[extent_id];
  std::vector<float> sum(extent.elements);
  for (uint32_t slot = 0; slot < world_; ++slot) {
    const std::vector<float> grad = Gradient(lives[slot], slot, extent_id);
    for (uint32_t r = 0; r < extent.run_count; ++r) {
      const Run& run = layout_.runs()[extent.first_run + r];
      const bool present = Present(round_, slot, run.tensor);
      for (uint32_t i = run.extent_offset; i < run.extent_offset + run.elements; ++i) {
        const float g = present ? grad[i] : 0.0f;
        sum[i] = slot == 0 ? g : sum[i] + g;
      }
    }
  }
  return sum;
}

// The vote of one server that owns everything.
Decision Reference::Decide(const std::vector<std::vector<float>>& sums) {
  const reduce::NormTileFn norm = reduce::Kernels(simd::Isa::kScalar).norm_tile[0];
  DecideInput input = DecideInputOf(spec_);
  input.policy = policy_;
  input.divisor.assign(2, static_cast<double>(world_));
  Vote vote;
  for (uint32_t e = 0; e < sums.size(); ++e) {
    input.extent_group.push_back(layout_.extents()[e].group);
    reduce::TileNormSum total;
    for (size_t at = 0; at < sums[e].size(); at += kTileElements) {
      const size_t count = std::min<size_t>(kTileElements, sums[e].size() - at);
      total.Add(norm(sums[e].data() + at, count));
    }
    vote.norms.push_back({e, total.sumsq});
    vote.nonfinite += total.nonfinite;
  }
  hyper_ = {HyperOf(0), HyperOf(1)};
  if (spec_.policy.active()) {
    vote.rates = RatesOf(spec_, policy_, hyper_);
    hyper_ = WithRates(spec_, hyper_, vote.rates);
  }
  absl::StatusOr<Decision> decision = ::ballast::Decide(input, {vote});
  BALLAST_CHECK(decision.ok());
  return *std::move(decision);
}

Decision Reference::Step(const std::vector<uint64_t>& lives) {
  if (Uploads(round_)) {
    for (uint32_t e = 0; e < extents_.size(); ++e) {
      extents_[e].arrays[0] = extents_[e].weight = Edited(e);
    }
    ++round_;
    Decision decision;
    decision.applied = true;
    decision.upload = UploadPlane::kWeights;
    decision.policy = policy_;
    return decision;
  }
  std::vector<std::vector<float>> sums;
  for (uint32_t e = 0; e < extents_.size(); ++e) sums.push_back(Sum(lives, e));
  Decision decision = Decide(sums);
  policy_ = decision.policy;
  if (decision.applied) {
    const bool lamb = spec_.optimizer == OptimizerKind::kLamb;
    if (lamb) StepLamb(decision, sums);
    for (uint32_t e = 0; e < sums.size() && !lamb; ++e) {
      StepExtent(e, sums[e], decision.grad_scale[layout_.extents()[e].group]);
    }
    for (uint32_t t = 0; t < tensor_step_.size(); ++t) {
      if (PresentAnywhere(t)) ++tensor_step_[t];
    }
  }
  ++round_;
  return decision;
}

void Reference::StepExtent(uint32_t extent_id, const std::vector<float>& sum, float scale) {
  const Extent& extent = layout_.extents()[extent_id];
  const Optimizer optimizer = OptimizerOf(spec_);
  ExtentState& state = extents_[extent_id];
  for (uint32_t r = 0; r < extent.run_count; ++r) {
    const Run& run = layout_.runs()[extent.first_run + r];
    if (!PresentAnywhere(run.tensor)) continue;
    const optim::Scalars k = optim::MakeScalars(optimizer.kind, optimizer.options,
                                                hyper_[extent.group], tensor_step_[run.tensor] + 1);
    sim::StepRun(optimizer, k, run, sum, scale, &state.arrays);
    RoundWeights(extent.dtype, run, &state);
  }
}

void Reference::StepLamb(const Decision& decision, std::vector<std::vector<float>> values) {
  std::vector<sim::LambSquares> squares(layout_.tensors().size());
  const auto for_each_run = [this](const auto& run_of) {
    for (uint32_t e = 0; e < extents_.size(); ++e) {
      const Extent& extent = layout_.extents()[e];
      for (uint32_t r = 0; r < extent.run_count; ++r) {
        const Run& run = layout_.runs()[extent.first_run + r];
        if (!PresentAnywhere(run.tensor)) continue;
        run_of(e, run, sim::LambStep(hyper_[extent.group], tensor_step_[run.tensor] + 1));
      }
    }
  };
  for_each_run([&](uint32_t e, const Run& run, const sim::LambStep& k) {
    const float scale = decision.grad_scale[layout_.extents()[e].group];
    sim::MeasureLamb(k, run, kTileElements, scale, &values[e], &extents_[e].arrays,
                     &squares[run.tensor]);
  });
  for_each_run([&](uint32_t e, const Run& run, const sim::LambStep& k) {
    sim::ApplyLamb(k, run, squares[run.tensor], values[e], &extents_[e].arrays);
    RoundWeights(layout_.extents()[e].dtype, run, &extents_[e]);
  });
}

// --- On disk ------------------------------------------------------------------------------------

absl::Status Reference::Save(const std::string& path) const {
  const std::string unfinished = path + ".tmp";
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  Write(std::vector<uint64_t>{round_, policy_.opt_step, policy_.consecutive_skips,
                              std::bit_cast<uint64_t>(policy_.loss_scale),
                              static_cast<uint64_t>(policy_.scaler_iteration),
                              static_cast<uint64_t>(policy_.last_overflow),
                              static_cast<uint64_t>(policy_.hysteresis_left), policy_.skipped,
                              static_cast<uint64_t>(policy_.schedule_index)},
        &file);
  Write(tensor_step_, &file);
  for (const ExtentState& state : extents_) {
    for (const std::vector<float>& array : state.arrays) Write(array, &file);
    Write(state.weight, &file);
  }
  file.close();
  if (file && std::rename(unfinished.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot write ", path));
}

absl::Status Reference::Load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(path);
  std::vector<uint64_t> counts(9);
  Read(&counts, &file);
  Read(&tensor_step_, &file);
  for (ExtentState& state : extents_) {
    for (std::vector<float>& array : state.arrays) Read(&array, &file);
    Read(&state.weight, &file);
  }
  if (!file) return absl::InternalError(absl::StrCat(path, " is too short"));
  round_ = counts[0];
  policy_.opt_step = counts[1];
  policy_.consecutive_skips = counts[2];
  policy_.loss_scale = std::bit_cast<double>(counts[3]);
  policy_.scaler_iteration = static_cast<int64_t>(counts[4]);
  policy_.last_overflow = static_cast<int64_t>(counts[5]);
  policy_.hysteresis_left = static_cast<int64_t>(counts[6]);
  policy_.skipped = counts[7];
  policy_.schedule_index = static_cast<int64_t>(counts[8]);
  return absl::OkStatus();
}

}  // namespace ballast::fault
