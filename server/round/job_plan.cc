// Checks plans and their cost in memory before any allocation. See job_plan.h.
#include "server/round/job_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/io/buffer_pools.h"
#include "common/io/file.h"
#include "common/job/contributors.h"
#include "common/text/units.h"
#include "server/round/weights.h"
#include "server/tier/nvme_tier.h"
#include "server/tier/tier.h"

namespace ballast::server {

absl::StatusOr<Layout> LayoutOfSpec(const JobSpec& spec) {
  return Layout::Build(LayoutTensors(spec.tensors), spec.tile_elements, spec.extent_elements);
}

namespace {

std::vector<uint32_t> SlotsOf(const std::vector<Member>& members) {
  std::vector<uint32_t> slots;
  for (const Member& member : members) slots.push_back(member.slot);
  return slots;
}

}  // namespace

uint64_t GradientBufferBytes(const Layout& layout, uint32_t extent, DType dtype) {
  const uint64_t width = DTypeBytes(dtype);
  return BufferPools::ClassOf(layout.extents()[extent].elements * width,
                              layout.extent_elements() * width, kPageBytes);
}

std::vector<ContributorSet> ContributorsOf(const JobSpec& spec,
                                           const std::vector<Member>& members) {
  return ContributorsBy(spec.gradients, SlotsOf(members), spec.group_count);
}

std::vector<ContributorSet> AllContribute(const std::vector<Member>& members, uint32_t groups) {
  return ContributorsBy(Gradients::kLocal, SlotsOf(members), groups);
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

// Memory demand of a job with `world` trainers at a server, before the choices of a plan.
struct Demand {
  uint32_t owned = 0;
  uint32_t contributors = 0;               // slots whose gradients have registers
  std::map<uint64_t, uint32_t> registers;  // of one contributor: how many, by their bytes
  uint64_t state_bytes = 0;                // all of it
  uint64_t extent_bytes = 0;               // room for the state of one extent in memory, on NVMe
  uint64_t cell_bytes = 0;
  uint64_t sum_bytes = 0;
  uint64_t weight_bytes = 0;
};

Demand DemandOf(const JobPlan& plan, const Layout& layout, uint32_t self, uint32_t world) {
  // Bookkeeping of a round per extent and slot: about a cell and one entry.
  constexpr uint64_t kRegisterCellBytes = 64;
  const StateShape shape = StateShapeOf(plan.spec);
  Demand demand{.contributors = ContributorCount(plan.spec.gradients, world)};
  for (uint32_t e = 0; e < layout.extents().size(); ++e) {
    if (plan.owner[e] != self) continue;
    ++demand.owned;
    const Extent& extent = layout.extents()[e];
    ++demand.registers[GradientBufferBytes(layout, e, extent.dtype)];
    demand.state_bytes += DramExtentBytes(extent.elements, shape);
    demand.weight_bytes += 2 * Weights::BufferBytes(layout, e);
    if (demand.contributors > 1) demand.sum_bytes += GradientBufferBytes(layout, e, DType::kF32);
  }
  demand.extent_bytes = DramExtentBytes(LargestExtent(layout), shape);
  demand.cell_bytes = uint64_t{demand.owned} * world * kRegisterCellBytes;
  return demand;
}

// Upper bound of Contributions' registers for a window of `window` extents: a register is reused
// for others of its size only.
uint64_t RegisterBytes(const Demand& demand, uint32_t window) {
  uint64_t bytes = 0;
  for (const auto& [each, count] : demand.registers) bytes += std::min(count, window) * each;
  return bytes * demand.contributors;
}

// The largest window whose registers fit `bytes`; 0 when not even one extent fits.
uint32_t WindowIn(const Demand& demand, uint64_t bytes) {
  uint32_t fits = 0;
  for (uint32_t too_many = demand.owned + 1; fits + 1 < too_many;) {
    const uint32_t window = fits + (too_many - fits) / 2;
    (RegisterBytes(demand, window) <= bytes ? fits : too_many) = window;
  }
  return fits;
}

// With `state_bytes` of state in memory, at least `window_extents_min` extents of registers are
// kept, as much as fits `room_bytes` of them.
MemoryPlan PlanOf(const Demand& demand, uint64_t state_bytes, uint64_t room_bytes,
                  uint32_t window_extents_min) {
  MemoryPlan memory;
  memory.state_bytes = state_bytes;
  memory.register_bytes = demand.cell_bytes;
  memory.sum_bytes = demand.sum_bytes;
  memory.weight_bytes = demand.weight_bytes;
  const uint64_t fixed = memory.total();
  // The step reads a single contributor's registers, so all of them stay until then.
  const uint32_t least =
      demand.contributors == 1 ? demand.owned : std::min(demand.owned, window_extents_min);
  const uint32_t window = WindowIn(demand, room_bytes > fixed ? room_bytes - fixed : 0);
  memory.window_extents = std::max({window, least, uint32_t{1}});
  memory.register_bytes += RegisterBytes(demand, memory.window_extents);
  return memory;
}

// With the state on NVMe: `extents` of it in memory, and if `more`, as many more as fit.
MemoryPlan PlanOnNvme(const Demand& demand, uint32_t extents, bool more, const MemoryRoom& room,
                      uint32_t window_extents_min) {
  MemoryPlan memory = PlanOf(demand, extents * demand.extent_bytes, room.bytes, window_extents_min);
  if (more && room.bytes > memory.total() && room.state_bytes > memory.state_bytes) {
    const uint64_t left =
        std::min(room.bytes - memory.total(), room.state_bytes - memory.state_bytes);
    const uint64_t others = demand.owned > extents ? demand.owned - extents : 0;
    const auto added = static_cast<uint32_t>(std::min(left / demand.extent_bytes, others));
    extents += added;
    memory.state_bytes += added * demand.extent_bytes;
  }
  memory.nvme_extents = extents;
  memory.nvme_bytes = demand.state_bytes;
  return memory;
}

bool Fits(const MemoryPlan& memory, const MemoryRoom& room) {
  return memory.total() <= room.bytes && memory.state_bytes <= room.state_bytes;
}

// The plan for a running job, or for the best tier of a new one; it may not fit.
MemoryPlan BestPlan(const JobPlan& plan, const Demand& demand, const MemoryRoom& room,
                    uint32_t window_extents_min) {
  if (room.nvme_extents.value_or(0) > 0) {
    return PlanOnNvme(demand, *room.nvme_extents, false, room, window_extents_min);
  }
  const MemoryPlan dram = PlanOf(demand, demand.state_bytes, room.bytes, window_extents_min);
  const bool may_choose = !room.nvme_extents.has_value() && demand.owned > 0 && IsDurable(plan) &&
                          plan.spec.device != Device::kCpu;
  if (!may_choose || (Fits(dram, room) && plan.spec.device == Device::kAuto)) return dram;
  const MemoryPlan nvme = PlanOnNvme(demand, kNvmeBuffersMin, true, room, window_extents_min);
  // A state of few extents takes less memory in DRAM.
  return Fits(nvme, room) && (nvme.state_bytes <= dram.state_bytes || !Fits(dram, room)) ? nvme
                                                                                         : dram;
}

absl::Status OverBudget(const JobPlan& plan, uint32_t self, const MemoryPlan& memory,
                        const MemoryRoom& room, const Demand& demand) {
  const bool durable = IsDurable(plan);
  std::string step = "Raise storage.memory_budget or add servers";
  if (memory.state_bytes > room.state_bytes) {
    step =
        absl::StrCat("Raise storage.dram_budget, add servers",
                     !durable ? ", or give the job durability, so that its state can live on NVMe"
                     : plan.spec.device == Device::kCpu
                         ? ", or let its state live on NVMe (device \"nvme\")"
                         : absl::StrCat("; on NVMe it would need ",
                                        kNvmeBuffersMin * demand.extent_bytes, " bytes of it"));
  }
  return ReasonedError(
      absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
      absl::StrCat("job \"", plan.spec.name, "\" needs ", memory.total(), " bytes at server ", self,
                   " (state ", memory.state_bytes, ", registers ", memory.register_bytes, ", sums ",
                   memory.sum_bytes, ", weights ", memory.weight_bytes, "); ", room.bytes,
                   " are free (storage.memory_budget), ", std::min(room.bytes, room.state_bytes),
                   " of them for state (storage.dram_budget). ", step),
      {.job = plan.spec.name, .server = static_cast<int>(self)});
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const JobPlan& plan, uint32_t self, const MemoryRoom& room,
                                      uint32_t window_extents_min) {
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  const Demand demand = DemandOf(plan, layout, self, plan.epoch.world());
  const MemoryPlan memory = BestPlan(plan, demand, room, window_extents_min);
  if (Fits(memory, room)) return memory;
  return OverBudget(plan, self, memory, room, demand);
}

MemoryPlan LeastMemory(const JobPlan& plan, uint32_t self, uint32_t window_extents_min) {
  const absl::StatusOr<Layout> layout = LayoutOfSpec(plan.spec);
  if (!layout.ok()) return {};
  const Demand demand = DemandOf(plan, *layout, self, plan.epoch.world());
  uint64_t state = demand.state_bytes;
  if (IsDurable(plan) && plan.spec.device != Device::kCpu) {
    state = std::min(state, kNvmeBuffersMin * demand.extent_bytes);
  }
  return PlanOf(demand, state, 0, window_extents_min);
}

std::string MemoryText(const MemoryPlan& memory, const MemoryRoom& room, uint64_t disk_bytes) {
  std::string text =
      absl::StrCat("memory plan: needs ", FormatBytes(memory.total()), " RAM (state ",
                   FormatBytes(memory.state_bytes), ", registers ",
                   FormatBytes(memory.register_bytes), ", sums ", FormatBytes(memory.sum_bytes),
                   ", weights ", FormatBytes(memory.weight_bytes), ")");
  if (disk_bytes > 0) absl::StrAppend(&text, ", ", FormatBytes(disk_bytes), " of disk");
  absl::StrAppend(&text, "; has ", FormatBytes(room.bytes), " RAM, ",
                  FormatBytes(std::min(room.bytes, room.state_bytes)), " of it for state");
  if (memory.nvme_extents > 0) {
    absl::StrAppend(&text, "; the state of ", FormatBytes(memory.nvme_bytes), " lives on NVMe, ",
                    memory.nvme_extents, " extents at a time in memory");
  }
  return text;
}

uint32_t WorldMax(const JobPlan& plan, uint32_t self, const MemoryRoom& room,
                  uint32_t window_extents_min) {
  const absl::StatusOr<Layout> layout = LayoutOfSpec(plan.spec);
  if (!layout.ok()) return plan.epoch.world();
  const auto fits = [&](uint32_t world) {
    const Demand demand = DemandOf(plan, *layout, self, world);
    return Fits(BestPlan(plan, demand, room, window_extents_min), room);
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
