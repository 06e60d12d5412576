// Plans and what they cost, checked before anything is allocated. See job_plan.h.
#include "server/round/job_plan.h"

#include <algorithm>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "server/tier/tier.h"

namespace ballast::server {

absl::StatusOr<Layout> LayoutOfSpec(const JobSpec& spec) {
  return Layout::Build(LayoutTensors(spec.tensors), spec.tile_elements, spec.extent_elements);
}

std::vector<ContributorSet> AllContribute(const std::vector<Member>& members, uint32_t groups) {
  ContributorSet all;
  all.divisor = static_cast<double>(members.size());
  for (const Member& member : members) all.slots.push_back(member.slot);
  return std::vector<ContributorSet>(groups, all);
}

namespace {

absl::Status BadPlan(const JobPlan& plan, const std::string& message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
                       absl::StrCat("plan of job \"", plan.spec.name, "\": ", message),
                       {.job = plan.spec.name});
}

bool Ascending(const std::vector<uint32_t>& ids) {
  return std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
}

absl::Status CheckEpoch(const JobPlan& plan) {
  const std::vector<Member>& members = plan.epoch.members;
  const bool ascending =
      std::adjacent_find(members.begin(), members.end(), [](const Member& a, const Member& b) {
        return a.slot >= b.slot;
      }) == members.end();
  if (members.empty() || !ascending || plan.epoch.seats() > kSeatsMax) {
    return BadPlan(plan, "members are missing, out of order or in seats that are too high");
  }
  if (!plan.spec.variable_world &&
      (plan.epoch.world() != plan.spec.world || plan.epoch.seats() != plan.spec.world)) {
    return BadPlan(plan, "members do not fill the world");
  }
  if (plan.epoch.contributors.size() != plan.spec.group_count) {
    return BadPlan(plan, absl::StrCat(plan.epoch.contributors.size(), " contributor sets of ",
                                      plan.spec.group_count, " groups"));
  }
  for (const ContributorSet& set : plan.epoch.contributors) {
    const bool seated = std::all_of(set.slots.begin(), set.slots.end(), [&](uint32_t slot) {
      return plan.epoch.Find(slot) != nullptr;
    });
    if (set.slots.empty() || !Ascending(set.slots) || !seated || !(set.divisor > 0)) {
      return BadPlan(plan,
                     "a contributor set is empty, out of order, not of members or without a "
                     "divisor");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlan(const JobPlan& plan) {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  if (plan.servers.empty() || !Ascending(plan.servers)) {
    return BadPlan(plan, "server ids do not ascend");
  }
  if (plan.owner.size() != layout.extents().size()) {
    return BadPlan(
        plan, absl::StrCat(plan.owner.size(), " owners of ", layout.extents().size(), " extents"));
  }
  for (const uint32_t owner : plan.owner) {
    if (!std::binary_search(plan.servers.begin(), plan.servers.end(), owner)) {
      return BadPlan(plan, absl::StrCat("owner ", owner, " is not among its servers"));
    }
  }
  return CheckEpoch(plan);
}

namespace {

// What a job with `world` trainers takes at `self` when at least `window_extents_min` extents of
// registers are kept, as much as fits `budget_bytes` of them.
MemoryPlan MemoryOf(const JobPlan& plan, const Layout& layout, uint32_t self, uint32_t world,
                    uint64_t budget_bytes, uint32_t window_extents_min) {
  MemoryPlan memory;
  uint32_t owned = 0;
  uint64_t widest = 0;
  for (uint32_t e = 0; e < layout.extents().size(); ++e) {
    if (plan.owner[e] != self) continue;
    ++owned;
    const Extent& extent = layout.extents()[e];
    const uint64_t buffer = uint64_t{layout.extent_elements()} * DTypeBytes(extent.dtype);
    widest = std::max(widest, buffer);
    memory.state_bytes += DramExtentBytes(extent.elements, layout.tile_elements());
    memory.weight_bytes += 2 * buffer;
    if (world > 1) memory.sum_bytes += uint64_t{layout.extent_elements()} * 4;
  }
  // What the round keeps per extent and slot beside the bytes: about a cell and one entry.
  constexpr uint64_t kRegisterCellBytes = 64;
  memory.state_bytes += uint64_t{owned} * world * kRegisterCellBytes;
  const uint64_t fixed = memory.total();
  const uint64_t per_extent = widest * world;
  // One contributor's registers are what the step reads, so all of them stay until it.
  const uint32_t least = world == 1 ? owned : std::min(owned, window_extents_min);
  uint32_t window = owned;
  if (fixed + window * per_extent > budget_bytes && per_extent > 0 && budget_bytes > fixed) {
    window = static_cast<uint32_t>((budget_bytes - fixed) / per_extent);
  }
  memory.window_extents = std::max({window, least, uint32_t{1}});
  memory.register_bytes = uint64_t{std::min(memory.window_extents, owned)} * per_extent;
  return memory;
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const JobPlan& plan, uint32_t self, uint64_t budget_bytes,
                                      uint32_t window_extents_min) {
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  const MemoryPlan memory =
      MemoryOf(plan, layout, self, plan.epoch.world(), budget_bytes, window_extents_min);
  if (memory.total() <= budget_bytes) return memory;
  return ReasonedError(
      absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
      absl::StrCat("job \"", plan.spec.name, "\" needs ", memory.total(), " bytes at server ", self,
                   " (state ", memory.state_bytes, ", registers ", memory.register_bytes, ", sums ",
                   memory.sum_bytes, ", weights ", memory.weight_bytes, "); ", budget_bytes,
                   " are free. Raise storage.dram_budget (--dram-budget) or add servers"),
      {.job = plan.spec.name, .server = static_cast<int>(self)});
}

uint32_t WorldMax(const JobPlan& plan, uint32_t self, uint64_t budget_bytes,
                  uint32_t window_extents_min) {
  const absl::StatusOr<Layout> layout = LayoutOfSpec(plan.spec);
  if (!layout.ok()) return plan.epoch.world();
  const auto fits = [&](uint32_t world) {
    return MemoryOf(plan, *layout, self, world, budget_bytes, window_extents_min).total() <=
           budget_bytes;
  };
  uint32_t most = plan.epoch.world();
  uint32_t too_many = kSeatsMax + 1;
  while (most + 1 < too_many) {
    const uint32_t world = most + (too_many - most) / 2;
    (fits(world) ? most : too_many) = world;
  }
  return most;
}

}  // namespace ballast::server
