#include "tools/host/size.h"

#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/job/contributors.h"
#include "common/text/names.h"
#include "server/config/load.h"
#include "server/durability/job_storage.h"
#include "server/recovery/recovery.h"
#include "server/round/job_plan.h"

namespace ballast::tools {
namespace {

using server::JobPlan;

constexpr uint64_t kTensorElements = uint64_t{64} << 20;
// Far above today's models; a larger plan takes memory and minutes here.
constexpr uint64_t kParametersMax = 2'000'000'000'000;
constexpr uint32_t kServersMax = 1024;

absl::StatusOr<DType> DTypeOf(const std::string& name) {
  const std::map<std::string, DType> known = {
      {"", DType::kBF16}, {"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}};
  const auto one = known.find(name);
  if (one != known.end()) return one->second;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype takes fp32, bf16 or fp16 here, not ", Quoted(name)));
}

absl::StatusOr<JobSpec> SpecOf(const SizeQuestion& question) {
  JobSpec spec;
  spec.name = "size";
  spec.world = question.trainers;
  spec.durability = Durability::kPower;
  if (question.collective) spec.gradients = Gradients::kScattered;
  spec.device = Device::kCpu;  // the state's share of memory, or less of it with NVMe
  BALLAST_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(question.dtype));
  const std::string name = question.optimizer.empty() ? "AdamW" : question.optimizer;
  const OptimizerRow* const row = FindOptimizer(std::string_view(name));
  if (row == nullptr) {
    std::vector<std::string> names;
    for (const OptimizerRow& known : kOptimizers) names.emplace_back(known.name);
    const std::string near = DidYouMean(name, names);
    return absl::InvalidArgumentError(
        absl::StrCat("no optimizer ", Quoted(name),
                     near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
  }
  spec.optimizer = row->kind;
  spec.formula_id = row->formula_id;
  for (uint64_t left = question.parameters; left > 0;) {
    const uint64_t elements = std::min(left, kTensorElements);
    spec.tensors.push_back({.name = absl::StrCat("tensor.", spec.tensors.size()),
                            .shape = {static_cast<int64_t>(elements)},
                            .dtype = dtype});
    left -= elements;
  }
  BALLAST_RETURN_IF_ERROR(ValidateJobSpec(spec, JobLimits()));
  return spec;
}

absl::StatusOr<JobPlan> PlanOf(const SizeQuestion& question, const Layout& layout, JobSpec spec) {
  JobPlan plan;
  plan.job = 1;
  plan.spec = std::move(spec);
  plan.epoch.epoch = 1;
  for (uint32_t slot = 0; slot < question.trainers; ++slot) {
    plan.epoch.members.push_back({.slot = slot, .incarnation = slot + 1});
  }
  std::vector<uint32_t> slots;
  for (const auto& member : plan.epoch.members) slots.push_back(member.slot);
  plan.epoch.contributors = ContributorsBy(plan.spec.gradients, slots, plan.spec.group_count);
  for (uint32_t id = 0; id < question.servers; ++id) plan.servers.push_back(id);
  plan.owner = ballast::PlanOwners(layout, question.servers);
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  return plan;
}

}  // namespace

absl::StatusOr<uint64_t> ParseParameters(const std::string& text) {
  const std::map<char, double> units = {{'k', 1e3}, {'m', 1e6}, {'b', 1e9}, {'t', 1e12}};
  std::string digits = text;
  double factor = 1;
  const char last = text.empty() ? '\0' : text.back();
  if (const auto unit = units.find(absl::ascii_tolower(static_cast<unsigned char>(last)));
      unit != units.end()) {
    factor = unit->second;
    digits.pop_back();
  }
  double number = 0;
  const bool read = absl::SimpleAtod(digits, &number) && number * factor >= 1;
  if (!read || number * factor > static_cast<double>(kParametersMax)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "size takes a number of parameters from 1 to 2T, such as 7e9, 350M or 7B, not ",
        Quoted(text)));
  }
  return static_cast<uint64_t>(number * factor);
}

absl::StatusOr<std::vector<SizeAnswer>> SizeOf(const SizeQuestion& question) {
  if (question.servers == 0 || question.servers > kServersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--servers ", question.servers, " is not in 1 to ", kServersMax));
  }
  BALLAST_ASSIGN_OR_RETURN(JobSpec spec, SpecOf(question));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, server::LayoutOfSpec(spec));
  BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, PlanOf(question, layout, std::move(spec)));
  const config::ServerConfig defaults = config::DefaultConfig();
  const auto window_min = static_cast<uint32_t>(defaults.rounds().window_extents_min());
  const auto checkpoint_rounds = static_cast<uint32_t>(defaults.storage().checkpoint_rounds());
  std::vector<SizeAnswer> answers;
  for (const uint32_t id : plan.servers) {
    BALLAST_ASSIGN_OR_RETURN(const server::MemoryPlan most,
                             PlanMemory(plan, id, {.bytes = UINT64_MAX}, window_min));
    const server::MemoryPlan least = LeastMemory(plan, id, window_min);
    answers.push_back({.server = id,
                       .state = most.state_bytes,
                       .gradients_min = least.register_bytes,
                       .gradients_max = most.register_bytes,
                       .sums = most.sum_bytes,
                       .weights = most.weight_bytes,
                       .disk = server::JobStorage::DiskBytes(
                           server::StorageOptionsOf(plan, layout, id, checkpoint_rounds))});
  }
  return answers;
}

absl::StatusOr<TrainerSize> TrainerSizeOf(const SizeQuestion& question) {
  BALLAST_ASSIGN_OR_RETURN(const JobSpec spec, SpecOf(question));
  if (!question.collective) return TrainerSize();
  const uint64_t element_bytes = DTypeBytes(spec.tensors.front().dtype);
  const uint64_t part = std::min<uint64_t>(spec.extent_elements, question.parameters);
  const uint64_t extents = (question.parameters + part - 1) / part;
  const uint64_t own = (extents + question.trainers - 1) / question.trainers * part;
  return TrainerSize{.buckets = (question.trainers + uint64_t{1}) * part * element_bytes,
                     .sums_host = std::min(own, question.parameters) * element_bytes,
                     .sums_gpu = question.parameters * element_bytes};
}

}  // namespace ballast::tools
