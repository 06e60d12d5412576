#include "client/cpp/job/attach.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cpp/job/arguments.h"
#include "client/cpp/job/policy_view.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "common/text/address.h"
#include "common/types/enum_names.h"

namespace ballast::client {
namespace {

using std::chrono::milliseconds;

absl::Status CheckEndpoints(const JobOptions& options) {
  if (options.endpoints.empty()) {
    return BadArgument("no endpoints given; name at least one state server as host:port");
  }
  for (const std::string& endpoint : options.endpoints) {
    const absl::Status status = ParseEndpoint(endpoint).status();
    if (!status.ok()) return BadArgument(absl::StrCat("endpoints: ", status.message()));
  }
  return absl::OkStatus();
}

absl::Status CheckTimes(const JobOptions& options) {
  if (options.attach_timeout <= milliseconds(0)) {
    return BadArgument(absl::StrCat("attach_timeout is ", options.attach_timeout.count(),
                                    " ms; it must be positive"));
  }
  if (options.reconnect_timeout <= milliseconds(0)) {
    return BadArgument(absl::StrCat("reconnect_timeout is ", options.reconnect_timeout.count(),
                                    " ms; it must be positive"));
  }
  return absl::OkStatus();
}

absl::Status CheckDurability(const JobOptions& options) {
  BALLAST_RETURN_IF_ERROR(CheckKnown("durability", options.durability));
  BALLAST_RETURN_IF_ERROR(CheckKnown("resume", options.resume));
  if (options.resume == Resume::kMust && !IsDurable(options)) {
    return BadArgument(
        "resume is must, but a job of durability none cannot be continued; give the durability "
        "that the job was started with");
  }
  return absl::OkStatus();
}

absl::Status CheckWorld(const JobOptions& options) {
  if (options.variable_world && !IsDurable(options)) {
    return BadArgument(
        "variable_world needs durability power or process: a job of durability none ends with its "
        "first lost trainer");
  }
  if (options.min_world == 0 || options.min_world > options.world) {
    return BadArgument(absl::StrCat("min_world is ", options.min_world, "; it must be in 1..",
                                    options.world, " (the world)"));
  }
  if (options.min_world > 1 && !options.variable_world) {
    return BadArgument(absl::StrCat("min_world is ", options.min_world,
                                    ", but a world that is not variable is never smaller"));
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const JobOptions& options) {
  BALLAST_RETURN_IF_ERROR(CheckKnown("device", options.device));
  if (options.device == Device::kNvme && !IsDurable(options)) {
    return BadArgument(
        "device nvme needs durability power or process: what lives on disk is what survives");
  }
  return absl::OkStatus();
}

// The optimizer of a job, by name. Options with their initial values are left out.
absl::Status SetOptimizer(const JobOptions& options, JobSpec* spec) {
  const OptimizerRow* const row = FindOptimizer(options.optimizer);
  if (row == nullptr) {
    return BadArgument(absl::StrCat("optimizer is \"", options.optimizer, "\"; ",
                                    absl::StrJoin(OptimizerNames(), ", "), " are known"));
  }
  spec->optimizer = row->kind;
  spec->formula_id = row->formula_id;
  Options values = OptimizerOf(*spec).options;
  const Options initial = values;
  for (const auto& [name, value] : options.optimizer_options) {
    const auto key =
        std::find_if(row->options.begin(), row->options.end(),
                     [&wanted = name](const OptionKey& option) { return option.name == wanted; });
    if (key == row->options.end()) {
      return BadArgument(absl::StrCat(row->name, " has no option \"", name, "\""));
    }
    values[static_cast<size_t>(key - row->options.begin())] = value;
  }
  if (values != initial) spec->options = values;
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateOptions(const JobOptions& options) {
  BALLAST_RETURN_IF_ERROR(CheckEndpoints(options));
  if (options.slot >= options.world) {
    return BadArgument(absl::StrCat("slot ", options.slot, " is outside the world of ",
                                    options.world, " trainers (0..world-1)"));
  }
  BALLAST_RETURN_IF_ERROR(CheckTimes(options));
  BALLAST_RETURN_IF_ERROR(CheckDurability(options));
  BALLAST_RETURN_IF_ERROR(CheckWorld(options));
  BALLAST_RETURN_IF_ERROR(CheckDevice(options));
  BALLAST_RETURN_IF_ERROR(CheckKnown("gradients", options.gradients));
  BALLAST_RETURN_IF_ERROR(CheckKnown("init", options.init));
  if (!(options.time_scale > 0) || options.time_scale > 1000) {
    return BadArgument(
        absl::StrCat("time_scale is ", options.time_scale, "; give a number in (0, 1000]"));
  }
  return absl::OkStatus();
}

bool MayResume(const JobOptions& options) {
  return options.resume != Resume::kNever && IsDurable(options);
}

absl::StatusOr<std::vector<TensorSpec>> ToTensorSpecs(const std::vector<Tensor>& tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    TensorSpec spec;
    spec.name = tensor.name;
    spec.shape = tensor.shape;
    spec.dtype = tensor.dtype;
    spec.group = tensor.group;
    spec.aliases = tensor.aliases;
    if (DTypeBytes(spec.dtype) == 0) {
      return BadArgument(absl::StrCat("tensor \"", tensor.name, "\" has dtype number ",
                                      static_cast<int>(tensor.dtype),
                                      "; fp32 (1), bf16 (2) and fp16 (3) are known"));
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

absl::Status CheckJobSpec(const JobSpec& spec) {
  JobSpec offered = spec;
  offered.durability = Durability::kNone;
  offered.variable_world = false;  // Goes with the durability.
  return ValidateJobSpec(offered, JobLimits{});
}

absl::StatusOr<JobSpec> MakeJobSpec(const JobOptions& options, const std::vector<Tensor>& tensors) {
  JobSpec spec;
  static_cast<JobSettings&>(spec) = options;
  BALLAST_RETURN_IF_ERROR(SetOptimizer(options, &spec));
  spec.name = options.job;
  spec.group_count = 1;
  for (const Tensor& tensor : tensors) {
    if (tensor.group != UINT32_MAX) spec.group_count = std::max(spec.group_count, tensor.group + 1);
  }
  BALLAST_ASSIGN_OR_RETURN(spec.tensors, ToTensorSpecs(tensors));
  BALLAST_ASSIGN_OR_RETURN(spec.policy, PolicySpecOf(options.policy));
  BALLAST_RETURN_IF_ERROR(CheckJobSpec(spec));
  return spec;
}

}  // namespace ballast::client
