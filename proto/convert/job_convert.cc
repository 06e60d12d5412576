#include "proto/convert/job_convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/types/enum_names.h"
#include "proto/convert/policy_convert.h"

namespace ballast {
namespace {

static_assert(static_cast<int>(NonfiniteKind::kGradient) == v1::NONFINITE_KIND_GRADIENT);
static_assert(static_cast<int>(NonfiniteKind::kSum) == v1::NONFINITE_KIND_SUM);
static_assert(static_cast<int>(NonfiniteKind::kNorm) == v1::NONFINITE_KIND_NORM);
static_assert(static_cast<int>(OptimizerKind::kAdamW) == v1::OPTIMIZER_KIND_ADAMW);
static_assert(static_cast<int>(OptimizerKind::kApplyDelta) == v1::OPTIMIZER_KIND_APPLY_DELTA);

absl::Status BadSpec(absl::string_view message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadSpec, message);
}

// A trainer may know more than this server.
absl::Status CheckEnums(const v1::JobSpec& spec) {
  if (!FromNumber<Durability>(spec.durability()).has_value()) {
    return BadSpec(absl::StrCat("durability number ", static_cast<int>(spec.durability()),
                                " is not known; use none (3)"));
  }
  if (!FromNumber<NonfinitePolicy>(spec.nonfinite()).has_value()) {
    return BadSpec(NotKnown<NonfinitePolicy>("nonfinite policy number", spec.nonfinite()));
  }
  if (!FromNumber<Gradients>(spec.gradients()).has_value()) {
    return BadSpec(absl::StrCat(NotKnown<Gradients>("gradients number", spec.gradients()),
                                ". Use the same release of Ballast on both sides"));
  }
  return absl::OkStatus();
}

// Each setting has one line in each of the next two functions.
void SettingsToProto(const JobSettings& settings, v1::JobSpec* out) {
  out->set_world(settings.world);
  out->set_variable_world(settings.variable_world);
  out->set_max_grad_norm(settings.max_grad_norm);
  out->set_loss_scale(settings.loss_scale);
  out->set_nonfinite(static_cast<v1::NonfinitePolicy>(settings.nonfinite));
  out->set_max_consecutive_skips(settings.max_consecutive_skips);
  out->set_gradients(static_cast<v1::Gradients>(settings.gradients));
  out->set_tile_elements(settings.tile_elements);
  out->set_extent_elements(settings.extent_elements);
  out->set_durability(static_cast<v1::Durability>(settings.durability));
  out->set_device(static_cast<v1::Device>(settings.device));
}

// After CheckEnums.
void SettingsFromProto(const v1::JobSpec& spec, JobSettings* out) {
  out->world = spec.world();
  out->variable_world = spec.variable_world();
  out->max_grad_norm = spec.max_grad_norm();
  out->loss_scale = spec.loss_scale();
  out->nonfinite = static_cast<NonfinitePolicy>(spec.nonfinite());
  out->max_consecutive_skips = spec.max_consecutive_skips();
  out->gradients = static_cast<Gradients>(spec.gradients());
  out->tile_elements = spec.tile_elements();
  out->extent_elements = spec.extent_elements();
  out->durability = static_cast<Durability>(spec.durability());
  // A device that a newer trainer knows is left to this server.
  out->device = FromNumber<Device>(spec.device()).value_or(Device::kAuto);
}

}  // namespace

v1::ProtocolRange OwnProtocolRange() {
  v1::ProtocolRange range;
  range.set_min(kProtocolMin);
  range.set_max(kProtocolMax);
  return range;
}

absl::StatusOr<uint32_t> ChooseProtocol(const v1::ProtocolRange& theirs, absl::string_view who) {
  const uint32_t newest = std::min(theirs.max(), kProtocolMax);
  if (theirs.min() <= theirs.max() && newest >= std::max(theirs.min(), kProtocolMin)) return newest;
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kProtocolMismatch,
      absl::StrCat("no common protocol version: ", who, " speaks ", theirs.min(), " to ",
                   theirs.max(), ", this server ", kProtocolMin, " to ", kProtocolMax,
                   "; use the same release of Ballast on both sides"));
}

void ToProto(const TensorSpec& tensor, v1::TensorSpec* out) {
  out->Clear();
  out->set_name(tensor.name);
  out->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  out->set_dtype(static_cast<v1::DType>(tensor.dtype));
  out->set_group(tensor.group);
  for (const std::string& alias : tensor.aliases) out->add_aliases(alias);
}

absl::StatusOr<TensorSpec> TensorFromProto(const v1::TensorSpec& tensor) {
  if (tensor.dtype() < v1::DTYPE_F32 || tensor.dtype() > v1::DTYPE_F16) {
    return BadSpec(absl::StrCat("tensor \"", tensor.name(), "\" has dtype number ",
                                static_cast<int>(tensor.dtype()),
                                "; fp32 (1), bf16 (2) and fp16 (3) are known"));
  }
  TensorSpec out;
  out.name = tensor.name();
  out.shape.assign(tensor.shape().begin(), tensor.shape().end());
  out.dtype = static_cast<DType>(tensor.dtype());
  out.group = tensor.group();
  out.aliases.assign(tensor.aliases().begin(), tensor.aliases().end());
  return out;
}

absl::StatusOr<std::vector<TensorSpec>> TensorsFromProto(
    const google::protobuf::RepeatedPtrField<v1::TensorSpec>& tensors) {
  std::vector<TensorSpec> out;
  out.reserve(static_cast<size_t>(tensors.size()));
  for (const v1::TensorSpec& tensor : tensors) {
    BALLAST_ASSIGN_OR_RETURN(TensorSpec spec, TensorFromProto(tensor));
    out.push_back(std::move(spec));
  }
  return out;
}

void ToProto(const JobSpec& spec, v1::JobSpec* out) {
  out->Clear();
  SettingsToProto(spec, out);
  out->set_name(spec.name);
  out->set_optimizer(static_cast<v1::OptimizerKind>(spec.optimizer));
  out->mutable_options()->Assign(spec.options.begin(), spec.options.end());
  out->set_group_count(spec.group_count);
  for (const TensorSpec& tensor : spec.tensors) ToProto(tensor, out->add_tensors());
  out->set_reduction_id(spec.reduction_id);
  out->set_formula_id(spec.formula_id);
  ToProto(spec.policy, out);
}

absl::StatusOr<JobSpec> JobSpecFromProto(const v1::JobSpec& spec) {
  BALLAST_RETURN_IF_ERROR(CheckOptimizerKind(static_cast<int>(spec.optimizer())));
  BALLAST_RETURN_IF_ERROR(CheckEnums(spec));
  JobSpec out;
  SettingsFromProto(spec, &out);
  out.name = spec.name();
  out.optimizer = static_cast<OptimizerKind>(spec.optimizer());
  out.options.assign(spec.options().begin(), spec.options().end());
  out.group_count = spec.group_count();
  BALLAST_ASSIGN_OR_RETURN(out.tensors, TensorsFromProto(spec.tensors()));
  out.reduction_id = spec.reduction_id();
  out.formula_id = spec.formula_id();
  BALLAST_ASSIGN_OR_RETURN(out.policy, PolicySpecFromProto(spec));
  return out;
}

void ToProto(const Nonfinite& nonfinite, v1::Nonfinite* out) {
  out->set_kind(static_cast<v1::NonfiniteKind>(nonfinite.kind));
  out->set_extent(nonfinite.extent);
  out->set_element(nonfinite.element);
  out->set_slot(nonfinite.slot);
  out->set_value_bits(nonfinite.value_bits);
}

Nonfinite NonfiniteFromProto(const v1::Nonfinite& nonfinite) {
  // A newer peer's kind is read as the least specific one.
  const bool known = v1::NonfiniteKind_IsValid(nonfinite.kind());
  return {.kind = known ? static_cast<NonfiniteKind>(nonfinite.kind()) : NonfiniteKind::kGradient,
          .extent = nonfinite.extent(),
          .element = nonfinite.element(),
          .slot = nonfinite.slot(),
          .value_bits = nonfinite.value_bits()};
}

void ToProto(const RoundResult& result, v1::RoundResult* out) {
  out->Clear();
  out->set_round(result.round);
  out->set_applied(result.applied);
  out->set_grad_norm(result.grad_norm);
  out->set_clip_coef(result.clip_coef);
  out->set_opt_step(result.opt_step);
  out->set_nonfinite(result.nonfinite);
  out->set_weight_bytes(result.weight_bytes);
  out->set_collect_ns(result.collect_ns);
  out->set_vote_ns(result.vote_ns);
  out->set_loss_scale(result.loss_scale);
  out->set_halted(result.halted);
  out->set_consecutive_skips(result.consecutive_skips);
  if (result.first_nonfinite.kind != NonfiniteKind::kNone) {
    ToProto(result.first_nonfinite, out->mutable_first_nonfinite());
  }
  if (result.policy.has_value()) ToProto(*result.policy, out->mutable_policy());
}

RoundResult RoundResultFromProto(const v1::RoundResult& result) {
  return {.round = result.round(),
          .applied = result.applied(),
          .grad_norm = result.grad_norm(),
          .clip_coef = result.clip_coef(),
          .loss_scale = result.loss_scale(),
          .opt_step = result.opt_step(),
          .nonfinite = result.nonfinite(),
          .halted = result.halted(),
          .consecutive_skips = result.consecutive_skips(),
          .first_nonfinite = NonfiniteFromProto(result.first_nonfinite()),
          .policy =
              result.has_policy() ? std::optional(PolicyFromProto(result.policy())) : std::nullopt,
          .weight_bytes = result.weight_bytes(),
          .collect_ns = result.collect_ns(),
          .vote_ns = result.vote_ns()};
}

void ToProto(const Vote& vote, v1::Prepare* out) {
  out->set_server(vote.server);
  out->clear_norms();
  out->mutable_norms()->Reserve(static_cast<int>(vote.norms.size()));
  for (const ExtentNorm& norm : vote.norms) {
    v1::ExtentNorm* added = out->add_norms();
    added->set_extent(norm.extent);
    added->set_sumsq(norm.sumsq);
  }
  out->set_nonfinite(vote.nonfinite);
  out->clear_first_nonfinite();
  if (vote.first_nonfinite.kind != NonfiniteKind::kNone) {
    ToProto(vote.first_nonfinite, out->mutable_first_nonfinite());
  }
  out->set_contributor_digest(vote.contributor_digest);
  out->clear_scalars();
  for (const ScalarSet& scalars : vote.scalars) {
    v1::ScalarSet* added = out->add_scalars();
    added->set_group(scalars.group);
    added->set_step(scalars.step);
    added->mutable_bits()->Assign(scalars.bits.begin(), scalars.bits.end());
  }
  out->clear_rates();
  for (const GroupRates& rates : vote.rates) ToProto(rates, out->add_rates());
  out->clear_squares();
  if (!vote.squares.has_value()) return;
  v1::Squares* squares = out->mutable_squares();
  for (const RunSquares& run : *vote.squares) {
    v1::RunSquares* added = squares->add_runs();
    added->set_extent(run.extent);
    added->set_tensor(run.tensor);
    added->set_p(run.p);
    added->set_u(run.u);
  }
}

absl::StatusOr<Vote> VoteFromProto(const v1::Prepare& prepare) {
  Vote out;
  out.server = prepare.server();
  out.norms.reserve(static_cast<size_t>(prepare.norms_size()));
  for (const v1::ExtentNorm& norm : prepare.norms()) {
    if (!out.norms.empty() && norm.extent() <= out.norms.back().extent) {
      return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadFrame,
                           absl::StrCat("vote of server ", prepare.server(), ": extent ",
                                        norm.extent(), " is out of order"));
    }
    out.norms.push_back({norm.extent(), norm.sumsq()});
  }
  out.nonfinite = prepare.nonfinite();
  out.first_nonfinite = NonfiniteFromProto(prepare.first_nonfinite());
  out.contributor_digest = prepare.contributor_digest();
  for (const v1::GroupRates& rates : prepare.rates()) out.rates.push_back(RatesFromProto(rates));
  for (const v1::ScalarSet& scalars : prepare.scalars()) {
    out.scalars.push_back(
        {scalars.group(), scalars.step(), {scalars.bits().begin(), scalars.bits().end()}});
  }
  if (prepare.has_squares()) {
    out.squares.emplace();
    for (const v1::RunSquares& run : prepare.squares().runs()) {
      out.squares->push_back({run.extent(), run.tensor(), run.p(), run.u()});
    }
  }
  return out;
}

}  // namespace ballast
