#include "common/job/job_spec.h"

#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/planted.h"
#include "common/job/hyper.h"
#include "common/text/names.h"
#include "common/types/enum_names.h"

namespace ballast {
namespace {

absl::Status BadSpec(absl::string_view message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadSpec, message, {});
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// A name in a message: escaped, and shortened where it is long.
std::string Shown(absl::string_view name) {
  constexpr size_t kShownBytes = 60;
  return absl::StrCat("\"", absl::CEscape(name.substr(0, kShownBytes)),
                      name.size() > kShownBytes ? "..." : "", "\"");
}

// `what` has the name: "tensor 3", "an alias of tensor 3".
absl::Status CheckTensorName(absl::string_view what, const std::string& name,
                             const JobLimits& limits) {
  if (name.empty() || name.size() > limits.name_bytes_max) {
    return BadSpec(absl::StrCat("the name ", Shown(name), " of ", what, " has ", name.size(),
                                " bytes; 1 to ", limits.name_bytes_max,
                                " are allowed (limits.max_name_bytes)"));
  }
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return BadSpec(absl::StrCat("the name ", Shown(name), " of ", what,
                                  " contains a control character; rename it"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const JobSpec& spec) {
  const OptimizerRow& row = OptimizerRowOf(spec);
  if (!spec.options.empty() && spec.options.size() != row.options.size()) {
    return BadSpec(absl::StrCat("the job has ", spec.options.size(), " options; ", row.name,
                                " has ", row.options.size()));
  }
  const Options options = OptimizerOf(spec).options;
  for (size_t i = 0; i < options.size(); ++i) {
    const OptionKey& key = row.options[i];
    if (key.is_flag && options[i] != 0 && options[i] != 1) {
      return BadSpec(absl::StrCat("option ", key.name, " is ", options[i], "; it must be 0 or 1"));
    }
    if (!std::isfinite(options[i]) || options[i] < 0) {
      return BadSpec(absl::StrCat("option ", key.name, " is ", options[i],
                                  "; it must be finite and at least 0"));
    }
    if (key.needs != kNoOption && options[i] != 0 && options[key.needs] == 0) {
      return BadSpec(absl::StrCat("option ", key.name, " needs ", row.options[key.needs].name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckScalars(const JobSpec& spec) {
  if (!std::isfinite(spec.max_grad_norm) || spec.max_grad_norm < 0) {
    return BadSpec(absl::StrCat("max_grad_norm is ", spec.max_grad_norm,
                                "; it must be finite and at least 0 (0 switches clipping off)"));
  }
  // Beyond these, unscaling could overflow fp32 by itself.
  constexpr double kLossScaleMin = 1.0 / (1 << 20);
  constexpr double kLossScaleMax = 1e18;
  if (!(spec.loss_scale >= kLossScaleMin && spec.loss_scale <= kLossScaleMax)) {
    return BadSpec(absl::StrCat("loss_scale is ", spec.loss_scale, "; it must be from ",
                                kLossScaleMin, " to ", kLossScaleMax));
  }
  BALLAST_RETURN_IF_ERROR(CheckOptimizerKind(static_cast<int>(spec.optimizer)));
  BALLAST_RETURN_IF_ERROR(CheckOptions(spec));
  const uint32_t formula = OptimizerRowOf(spec).formula_id;
  if (spec.reduction_id != kReductionSlotOrderFp32 || spec.formula_id != formula) {
    return BadSpec(absl::StrCat("reduction_id ", spec.reduction_id, " with formula_id ",
                                spec.formula_id, " is not known; this version offers ",
                                kReductionSlotOrderFp32, " and ", formula));
  }
  if (!IsKnown(spec.nonfinite)) {
    return BadSpec(NotKnown<NonfinitePolicy>("nonfinite policy", static_cast<int>(spec.nonfinite)));
  }
  if (!IsKnown(spec.durability)) {
    return BadSpec(NotKnown<Durability>("durability level", static_cast<int>(spec.durability)));
  }
  if (spec.variable_world && !IsDurable(spec)) {
    return BadSpec(
        "variable_world needs durability power or process; a job of durability none ends with "
        "its first lost trainer");
  }
  return absl::OkStatus();
}

absl::Status CheckPolicyOf(const JobSpec& spec) {
  const PolicySpec& policy = spec.policy;
  BALLAST_RETURN_IF_ERROR(CheckPolicy(policy, OptimizerRowOf(spec), spec.group_count));
  if (!policy.loss_scaler.has_value()) return absl::OkStatus();
  if (spec.loss_scale != 1) {
    return BadSpec(absl::StrCat("loss_scale is ", spec.loss_scale,
                                " in a job with a dynamic loss scale; leave one of them out"));
  }
  if (spec.nonfinite != NonfinitePolicy::kHalt) return absl::OkStatus();
  return BadSpec(
      "nonfinite is halt in a job with a dynamic loss scale, which finds its value by rounds that "
      "overflow; use skip, or a static loss_scale");
}

absl::Status CheckCounts(const JobSpec& spec, const JobLimits& limits) {
  if (spec.world == 0 || spec.world > limits.slots_max) {
    return BadSpec(absl::StrCat("world is ", spec.world, "; 1 to ", limits.slots_max,
                                " are allowed (limits.max_slots)"));
  }
  if (spec.tensors.empty()) return BadSpec("the job has no tensors");
  if (spec.tensors.size() > limits.tensors_max) {
    return BadSpec(absl::StrCat(spec.tensors.size(), " tensors; at most ", limits.tensors_max,
                                " are allowed (limits.max_tensors)"));
  }
  if (spec.group_count == 0 || spec.group_count > limits.groups_max) {
    return BadSpec(absl::StrCat("group_count is ", spec.group_count, "; 1 to ", limits.groups_max,
                                " are allowed (limits.max_groups)"));
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(size_t number, const JobSpec& spec, const JobLimits& limits,
                         std::set<std::string>* names) {
  const TensorSpec& tensor = spec.tensors[number];
  BALLAST_RETURN_IF_ERROR(CheckTensorName(absl::StrCat("tensor ", number), tensor.name, limits));
  if (DTypeBytes(tensor.dtype) == 0) {
    return BadSpec(absl::StrCat("tensor \"", tensor.name, "\" has dtype ",
                                static_cast<int>(tensor.dtype), "; fp32, bf16 and fp16 are known"));
  }
  if (tensor.group >= spec.group_count) {
    return BadSpec(absl::StrCat("tensor \"", tensor.name, "\" is in group ", tensor.group,
                                "; the job has ", spec.group_count));
  }
  BALLAST_RETURN_IF_ERROR(ElementCount(tensor, limits).status());
  std::vector<std::string> all = tensor.aliases;
  all.push_back(tensor.name);
  for (const std::string& name : all) {
    BALLAST_RETURN_IF_ERROR(CheckTensorName(
        absl::StrCat("an alias of tensor ", number, " (\"", tensor.name, "\")"), name, limits));
    if (!names->insert(name).second) {
      return BadSpec(absl::StrCat("tensor name \"", name, "\" appears twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOptimizerKind(int number) {
  std::vector<std::string> offered;
  for (const OptimizerRow& row : kOptimizers) {
    if (static_cast<int>(row.kind) == number) return absl::OkStatus();
    offered.push_back(absl::StrCat(row.name, " (", static_cast<int>(row.kind), ")"));
  }
  return BadSpec(absl::StrCat("optimizer kind ", number, " is not known; this version offers ",
                              absl::StrJoin(offered, ", ")));
}

absl::StatusOr<uint64_t> ElementCount(const TensorSpec& tensor, const JobLimits& limits) {
  if (tensor.shape.size() > limits.rank_max) {
    return BadSpec(absl::StrCat("tensor \"", tensor.name, "\" has ", tensor.shape.size(),
                                " dimensions; at most ", limits.rank_max,
                                " are allowed (limits.max_rank)"));
  }
  bool empty = false;
  for (const int64_t dim : tensor.shape) {
    if (dim < 0) {
      return BadSpec(absl::StrCat("tensor \"", tensor.name, "\" has shape ",
                                  ShapeText(tensor.shape), " with a negative dimension"));
    }
    empty = empty || dim == 0;
  }
  if (empty) return 0;
  constexpr uint64_t kElementsMax = uint64_t{1} << 44;
  uint64_t count = 1;
  for (const int64_t dim : tensor.shape) {
    if (static_cast<uint64_t>(dim) > kElementsMax / count && !BALLAST_PLANTED) {
      return BadSpec(absl::StrCat("tensor \"", tensor.name, "\" has shape ",
                                  ShapeText(tensor.shape), ": more than ", kElementsMax,
                                  " elements"));
    }
    count *= static_cast<uint64_t>(dim);
  }
  return count;
}

absl::Status ValidateJobSpec(const JobSpec& spec, const JobLimits& limits) {
  if (absl::Status st = ValidateName("job name", spec.name); !st.ok()) return BadSpec(st.message());
  BALLAST_RETURN_IF_ERROR(CheckCounts(spec, limits));
  BALLAST_RETURN_IF_ERROR(CheckScalars(spec));
  BALLAST_RETURN_IF_ERROR(CheckPolicyOf(spec));
  std::set<std::string> names;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    BALLAST_RETURN_IF_ERROR(CheckTensor(i, spec, limits, &names));
  }
  const auto layout =
      Layout::Build(LayoutTensors(spec.tensors), spec.tile_elements, spec.extent_elements);
  if (!layout.ok()) return BadSpec(layout.status().message());
  return absl::OkStatus();
}

const OptimizerRow& OptimizerRowOf(const JobSpec& spec) {
  const OptimizerRow* const row = FindOptimizer(spec.optimizer);
  BALLAST_CHECK(row != nullptr);
  return *row;
}

Optimizer OptimizerOf(const JobSpec& spec) {
  Optimizer optimizer{spec.optimizer, spec.options};
  if (!spec.options.empty()) return optimizer;
  for (const OptionKey& key : OptimizerRowOf(spec).options) {
    optimizer.options.push_back(key.initial);
  }
  return optimizer;
}

std::span<const StateArray> StateArraysOf(const JobSpec& spec) {
  return OptimizerRowOf(spec).arrays.first(StateArrayCount(spec) - 1);
}

uint32_t StateArrayCount(const JobSpec& spec) { return StateArrayCount(OptimizerOf(spec)); }

float InitialValue(const JobSpec& spec, uint32_t array) {
  if (array == 0) return 0;
  const size_t option = StateArraysOf(spec)[array - 1].filled_from;
  return option == kNoOption ? 0 : static_cast<float>(OptimizerOf(spec).options[option]);
}

std::vector<LayoutTensor> LayoutTensors(const std::vector<TensorSpec>& tensors) {
  std::vector<LayoutTensor> out;
  out.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) {
    uint64_t count = 1;
    for (const int64_t dim : tensor.shape) count *= static_cast<uint64_t>(dim);
    out.push_back({count, tensor.dtype, tensor.group});
  }
  return out;
}

namespace {

std::string TensorDifference(const TensorSpec& ours, const TensorSpec& theirs, size_t index) {
  const std::string who = absl::StrCat("tensor ", index, " (\"", ours.name, "\") ");
  if (ours.name != theirs.name) return absl::StrCat(who, "is named \"", theirs.name, "\" here");
  if (ours.shape != theirs.shape) {
    return absl::StrCat(who, "has shape ", ShapeText(theirs.shape), ", the job has ",
                        ShapeText(ours.shape));
  }
  if (ours.dtype != theirs.dtype) {
    return absl::StrCat(who, "has dtype ", DTypeName(theirs.dtype), ", the job has ",
                        DTypeName(ours.dtype));
  }
  if (ours.group != theirs.group) {
    return absl::StrCat(who, "is in group ", theirs.group, ", the job has it in ", ours.group);
  }
  return absl::StrCat(who, "has other aliases");
}

template <typename T>
bool Differs(absl::string_view field, const T& ours, const T& theirs, std::string* text) {
  if (ours == theirs) return false;
  *text = absl::StrCat(field, " is ", theirs, ", the job has ", ours);
  return true;
}

absl::string_view KindName(const JobSpec& spec) { return OptimizerRowOf(spec).name; }

// The first option that differs; the kinds are equal.
bool OptionsDiffer(const JobSpec& ours, const JobSpec& theirs, std::string* text) {
  const Options mine = OptimizerOf(ours).options;
  const Options other = OptimizerOf(theirs).options;
  const auto state = [](double flag) { return absl::string_view(flag != 0 ? "on" : "off"); };
  for (size_t i = 0; i < mine.size(); ++i) {
    const OptionKey& key = OptimizerRowOf(ours).options[i];
    const bool differs = key.is_flag ? Differs(key.name, state(mine[i]), state(other[i]), text)
                                     : Differs(key.name, mine[i], other[i], text);
    if (differs) return true;
  }
  return false;
}

// The first field of the policies that differs.
bool PoliciesDiffer(const PolicySpec& ours, const PolicySpec& theirs, std::string* text) {
  if (ours == theirs) return false;
  const auto mine = PolicyFields(ours);
  const auto other = PolicyFields(theirs);
  const auto [here, there] = std::mismatch(mine.begin(), mine.end(), other.begin(), other.end());
  const auto shown = [](const auto& field, const auto& end) {
    return field == end ? "no more" : absl::StrCat(field->first, " ", field->second);
  };
  if (here != mine.end() && there != other.end() && here->first == there->first) {
    *text = absl::StrCat(here->first, " is ", there->second, ", the job has ", here->second);
  } else {
    *text = absl::StrCat("the policy has ", shown(there, other.end()), ", the job's has ",
                         shown(here, mine.end()));
  }
  return true;
}

}  // namespace

std::string FirstDifference(const JobSpec& ours, const JobSpec& theirs) {
  std::string text;
  if (Differs("name", ours.name, theirs.name, &text) ||
      Differs("variable_world", ours.variable_world, theirs.variable_world, &text) ||
      (!ours.variable_world && Differs("world", ours.world, theirs.world, &text)) ||
      Differs("optimizer", KindName(ours), KindName(theirs), &text) ||
      OptionsDiffer(ours, theirs, &text) ||
      Differs("gradients", NameOf(ours.gradients), NameOf(theirs.gradients), &text) ||
      Differs("max_grad_norm", ours.max_grad_norm, theirs.max_grad_norm, &text) ||
      Differs("loss_scale", ours.loss_scale, theirs.loss_scale, &text) ||
      PoliciesDiffer(ours.policy, theirs.policy, &text) ||
      Differs("durability", NameOf(ours.durability), NameOf(theirs.durability), &text) ||
      Differs("tile_elements", ours.tile_elements, theirs.tile_elements, &text) ||
      Differs("extent_elements", ours.extent_elements, theirs.extent_elements, &text) ||
      Differs("reduction_id", ours.reduction_id, theirs.reduction_id, &text) ||
      Differs("formula_id", ours.formula_id, theirs.formula_id, &text) ||
      Differs("nonfinite", static_cast<int>(ours.nonfinite), static_cast<int>(theirs.nonfinite),
              &text) ||
      Differs("max_consecutive_skips", ours.max_consecutive_skips, theirs.max_consecutive_skips,
              &text) ||
      Differs("number of groups", ours.group_count, theirs.group_count, &text) ||
      Differs("number of tensors", ours.tensors.size(), theirs.tensors.size(), &text)) {
    return text;
  }
  for (size_t i = 0; i < ours.tensors.size(); ++i) {
    if (!(ours.tensors[i] == theirs.tensors[i])) {
      return TensorDifference(ours.tensors[i], theirs.tensors[i], i);
    }
  }
  return "";
}

absl::Status ValidateHyper(const JobSpec& spec, const std::vector<Hyper>& hyper) {
  const auto bad = [](absl::string_view message) {
    return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadHyperparam, message, {});
  };
  if (hyper.size() != spec.group_count) {
    return bad(absl::StrCat("hyper-parameters for ", hyper.size(), " groups; the job has ",
                            spec.group_count));
  }
  const OptimizerRow& row = OptimizerRowOf(spec);
  const Options options = OptimizerOf(spec).options;
  for (size_t g = 0; g < hyper.size(); ++g) {
    const std::string why = HyperRefusal(row, options, hyper[g]);
    if (!why.empty()) return bad(absl::StrCat("group ", g, why));
  }
  return absl::OkStatus();
}

}  // namespace ballast
