#include "server/jobs/memory_book.h"

#include <algorithm>
#include <optional>

#include "absl/algorithm/container.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/text/units.h"

namespace ballast::server {
namespace {

Holding Open(const JobPlan& plan) { return {Holding::Kind::kOpen, plan.job}; }

// `plan` with a world of `world` trainers, at least its own: for its size only, because which seats
// the others will have is not settled.
JobPlan PlanOfWorld(JobPlan plan, uint32_t world) {
  std::vector<Member>& members = plan.epoch.members;
  for (uint32_t slot = 0; members.size() < world; ++slot) {
    const auto at = absl::c_lower_bound(
        members, slot, [](const Member& member, uint32_t one) { return member.slot < one; });
    if (at == members.end() || at->slot != slot) members.insert(at, Member{.slot = slot});
  }
  return plan;
}

uint64_t Sum(uint64_t a, uint64_t b) { return a + std::min(b, UINT64_MAX - a); }

// `room`, limited by the tenant's quotas.
MemoryRoom Within(uint64_t bytes, MemoryRoom room) {
  room.bytes = std::min(room.bytes, bytes);
  room.state_bytes = std::min(room.state_bytes, bytes);
  return room;
}

}  // namespace

MemoryBook::MemoryBook(const Budget& budget, std::shared_ptr<Quotas> quotas, ServerMetrics* metrics)
    : budget_(budget), quotas_(std::move(quotas)), metrics_(metrics) {
  if (metrics_ == nullptr) return;
  metrics_->memory_budget()->Set(static_cast<double>(budget_.bytes));
  metrics_->dram_capacity()->Set(static_cast<double>(budget_.state_bytes));
}

// --- Room ---------------------------------------------------------------------------------------

MemoryRoom MemoryBook::Free() const {
  const uint64_t used = used_bytes() + reserved_bytes_;
  const uint64_t state = state_bytes_ + reserved_state_bytes_;
  return {.bytes = budget_.bytes - std::min(budget_.bytes, used),
          .state_bytes = budget_.state_bytes - std::min(budget_.state_bytes, state),
          .nvme_extents = std::nullopt};
}

MemoryRoom MemoryBook::FreeBeside(const MemoryPlan& held) const {
  MemoryRoom room = Free();
  room.bytes = Sum(room.bytes, held.total());
  room.state_bytes = Sum(room.state_bytes, held.state_bytes);
  room.nvme_extents = held.nvme_extents;
  return room;
}

MemoryRoom MemoryBook::RoomOf(const JobPlan& plan, const MemoryPlan& held) const {
  return Within(Sum(quotas_->FreeOf(plan.tenant).dram_bytes, held.total()), FreeBeside(held));
}

// --- Plans --------------------------------------------------------------------------------------

Amounts MemoryBook::AmountsOf(const JobPlan& plan, const MemoryPlan& memory) const {
  const uint64_t seats = plan.epoch.world();
  // The record of a durable job is counted with its files.
  return {.jobs = IsDurable(plan) ? 0u : 1u,
          .seats = seats,
          .dram_bytes = memory.total(),
          .in_flight_bytes = seats * budget_.credit_bytes};
}

absl::StatusOr<MemoryPlan> MemoryBook::Plan(const JobPlan& plan) const {
  BALLAST_RETURN_IF_ERROR(PlanIn(plan, Free()).status());
  const absl::StatusOr<MemoryPlan> memory =
      PlanIn(plan, Within(quotas_->FreeOf(plan.tenant).dram_bytes, Free()));
  BALLAST_RETURN_IF_ERROR(
      quotas_->Check(plan.tenant, AmountsOf(plan, memory.ok() ? *memory : Least(plan))));
  return memory;
}

bool MemoryBook::FitsAlone(const JobPlan& plan) const {
  const Amounts limits = quotas_->UseOf(plan.tenant).limits;
  const MemoryRoom all{.bytes = budget_.bytes, .state_bytes = budget_.state_bytes};
  const absl::StatusOr<MemoryPlan> memory = PlanIn(plan, Within(limits.dram_bytes, all));
  if (!memory.ok()) return false;
  const Amounts takes = AmountsOf(plan, *memory);
  return absl::c_all_of(Resources(), [&](const Resource& resource) {
    return takes.*resource.amount <= limits.*resource.amount;
  });
}

absl::StatusOr<MemoryPlan> MemoryBook::PlanRecovered(const JobPlan& plan) const {
  const absl::StatusOr<MemoryPlan> fits = Plan(plan);
  const MemoryPlan least = Least(plan);
  const Reason reason = ReasonOf(fits.status());
  if (reason == Reason::kOverQuota) return PlanIn(plan, Within(least.total(), Free()));
  const uint64_t planned = used_bytes() + reserved_bytes_;
  const uint64_t left = budget_.machine_bytes - std::min(budget_.machine_bytes, planned);
  if (reason != Reason::kOverBudget || least.total() > left) return fits;
  return PlanIn(plan, {.bytes = least.total(), .state_bytes = least.state_bytes});
}

absl::StatusOr<MemoryPlan> MemoryBook::PlanGrown(const JobPlan& plan, const MemoryPlan& held,
                                                 uint32_t window_extents) const {
  const auto in = [&](const MemoryRoom& room) {
    return PlanMemory(plan, budget_.self, room, window_extents);
  };
  BALLAST_ASSIGN_OR_RETURN(const MemoryPlan grown, in(FreeBeside(held)));
  absl::StatusOr<MemoryPlan> memory = in(RoomOf(plan, held));
  if (memory.ok()) return memory;
  const uint64_t more = grown.total() - std::min(grown.total(), held.total());
  BALLAST_RETURN_IF_ERROR(quotas_->Check(plan.tenant, {.dram_bytes = more}));
  return memory;
}

uint32_t MemoryBook::WorldMaxOf(const JobPlan& plan, const MemoryPlan& held) const {
  const uint32_t world = plan.epoch.world();
  const Amounts free = quotas_->FreeOf(plan.tenant);
  uint64_t more = free.seats;
  if (budget_.credit_bytes > 0) more = std::min(more, free.in_flight_bytes / budget_.credit_bytes);
  const uint32_t fits =
      WorldMax(plan, budget_.self, RoomOf(plan, held), budget_.window_extents_min);
  return static_cast<uint32_t>(std::min(uint64_t{fits}, Sum(more, world)));
}

// --- Promises -----------------------------------------------------------------------------------

MemoryBook::Grant MemoryBook::Promise(const JobPlan& plan, uint32_t wanted, MemoryPlan* held,
                                      Promised* promised) {
  const uint32_t world = plan.epoch.world();
  const JobPlan now = PlanOfWorld(plan, std::max(world, promised->world));
  const uint32_t most = WorldMaxOf(now, *held);
  if (wanted == 0) return {.world = most, .refusal = {}};
  wanted = std::clamp(wanted, world, std::max(world, kSeatsMax));
  const MemoryPlan before = promised->world == 0 ? *held : promised->before;
  const JobPlan next = PlanOfWorld(plan, std::min(wanted, most));
  const absl::StatusOr<MemoryPlan> memory =
      next.epoch.world() == world ? before : PlanIn(next, RoomOf(plan, *held));
  if (!memory.ok()) return {.world = now.epoch.world(), .refusal = {}};
  // Until the next epoch has come, the job keeps its present memory.
  const MemoryPlan to = memory->total() > before.total() ? *memory : before;
  absl::Status refusal = quotas_->Take(Open(plan), plan.tenant, AmountsOf(next, to));
  if (!refusal.ok()) return {.world = now.epoch.world(), .refusal = std::move(refusal)};
  Count(held, to);
  *promised = {.world = next.epoch.world(), .before = before};
  if (next.epoch.world() < wanted) refusal = WhyNot(next, *held, wanted);
  return {.world = next.epoch.world(), .refusal = std::move(refusal)};
}

absl::Status MemoryBook::WhyNot(const JobPlan& plan, const MemoryPlan& held,
                                uint32_t wanted) const {
  const uint64_t seats = wanted - plan.epoch.world();
  Amounts more{.seats = seats, .in_flight_bytes = seats * budget_.credit_bytes};
  const absl::StatusOr<MemoryPlan> memory = PlanIn(PlanOfWorld(plan, wanted), FreeBeside(held));
  if (memory.ok()) more.dram_bytes = memory->total() - std::min(memory->total(), held.total());
  return quotas_->Check(plan.tenant, more);
}

void MemoryBook::TakeBack(const JobPlan& plan, MemoryPlan* held, Promised* promised) {
  if (promised->world == 0) return;
  Change(plan, held, promised->before);
  *promised = {};
}

// --- Memory of jobs ------------------------------------------------------------------------------

void MemoryBook::Count(MemoryPlan* held, const MemoryPlan& to) {
  used_bytes_.fetch_add(to.total() - held->total(), std::memory_order_relaxed);
  state_bytes_ += to.state_bytes - held->state_bytes;
  nvme_bytes_ += to.nvme_bytes - held->nvme_bytes;
  *held = to;
  Report();
}

absl::StatusOr<MemoryPlan> MemoryBook::Begin(const JobPlan& plan,
                                             const absl::StatusOr<MemoryPlan>& planned) {
  BALLAST_ASSIGN_OR_RETURN(const MemoryPlan memory, planned);
  BALLAST_RETURN_IF_ERROR(quotas_->Take(Open(plan), plan.tenant, AmountsOf(plan, memory)));
  MemoryPlan held;
  Count(&held, memory);
  return held;
}

absl::StatusOr<MemoryPlan> MemoryBook::BeginRecovered(const JobPlan& plan,
                                                      const absl::StatusOr<MemoryPlan>& planned) {
  BALLAST_ASSIGN_OR_RETURN(const MemoryPlan memory, planned);
  MemoryPlan held;
  Change(plan, &held, memory);
  return held;
}

void MemoryBook::Change(const JobPlan& plan, MemoryPlan* held, const MemoryPlan& to) {
  quotas_->Note(Open(plan), plan.tenant, AmountsOf(plan, to));
  Count(held, to);
}

void MemoryBook::End(const JobPlan& plan, MemoryPlan* held) {
  Count(held, MemoryPlan());
  quotas_->Give(Open(plan));
}

void MemoryBook::Reserve(const JobPlan& plan) {
  const MemoryPlan least = Least(plan);
  reserved_bytes_ += least.total();
  reserved_state_bytes_ += least.state_bytes;
  quotas_->Note({Holding::Kind::kReserved, plan.job}, plan.tenant, AmountsOf(plan, least));
}

void MemoryBook::Unreserve(const JobPlan& plan) {
  const MemoryPlan least = Least(plan);
  reserved_bytes_ -= least.total();
  reserved_state_bytes_ -= least.state_bytes;
  quotas_->Give({Holding::Kind::kReserved, plan.job});
}

void MemoryBook::WarnIfOver() const {
  if (!over_budget()) return;
  BALLAST_LOG(WARN) << "over budget: the jobs that ran before this start need "
                    << FormatBytes(used_bytes()) << " of memory, " << FormatBytes(state_bytes_)
                    << " of it for state; the budgets are " << FormatBytes(budget_.bytes) << " and "
                    << FormatBytes(budget_.state_bytes)
                    << ". They continue, and new jobs are refused. Free memory on this host, or "
                       "raise storage.memory_budget and storage.dram_budget, and start again";
}

void MemoryBook::Report() const {
  if (metrics_ == nullptr) return;
  metrics_->state_bytes(StateTier::kDram)->Set(static_cast<double>(state_bytes_));
  metrics_->memory_planned()->Set(static_cast<double>(used_bytes()));
  metrics_->state_bytes(StateTier::kNvme)->Set(static_cast<double>(nvme_bytes_));
}

}  // namespace ballast::server
