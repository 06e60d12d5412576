#include "server/cluster/memory_book.h"

#include <algorithm>
#include <optional>

#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/units.h"

namespace ballast::server {

MemoryBook::MemoryBook(const Budget& budget, ServerMetrics* metrics)
    : budget_(budget), metrics_(metrics) {
  if (metrics_ == nullptr) return;
  metrics_->memory_budget()->Set(static_cast<double>(budget_.bytes));
  metrics_->dram_capacity()->Set(static_cast<double>(budget_.state_bytes));
}

MemoryRoom MemoryBook::Free() const {
  const uint64_t used = used_bytes() + reserved_bytes_;
  const uint64_t state = state_bytes_ + reserved_state_bytes_;
  return {.bytes = budget_.bytes - std::min(budget_.bytes, used),
          .state_bytes = budget_.state_bytes - std::min(budget_.state_bytes, state),
          .nvme_extents = std::nullopt};
}

MemoryRoom MemoryBook::RoomOf(const MemoryPlan& held) const {
  MemoryRoom room = Free();
  room.bytes += std::min(held.total(), UINT64_MAX - room.bytes);
  room.state_bytes += std::min(held.state_bytes, UINT64_MAX - room.state_bytes);
  room.nvme_extents = held.nvme_extents;
  return room;
}

MemoryRoom MemoryBook::All() const {
  return {.bytes = budget_.bytes, .state_bytes = budget_.state_bytes, .nvme_extents = std::nullopt};
}

absl::StatusOr<MemoryPlan> MemoryBook::PlanRecovered(const JobPlan& plan) const {
  const absl::StatusOr<MemoryPlan> fits = Plan(plan);
  const MemoryPlan least = LeastMemory(plan, budget_.self, budget_.window_extents_min);
  const uint64_t planned = used_bytes() + reserved_bytes_;
  const uint64_t left = budget_.machine_bytes - std::min(budget_.machine_bytes, planned);
  if (ReasonOf(fits.status()) != Reason::kOverBudget || least.total() > left) return fits;
  return PlanIn(plan, {.bytes = least.total(), .state_bytes = least.state_bytes});
}

void MemoryBook::Change(MemoryPlan* held, const MemoryPlan& plan) {
  used_bytes_.fetch_add(plan.total() - held->total(), std::memory_order_relaxed);
  state_bytes_ += plan.state_bytes - held->state_bytes;
  nvme_bytes_ += plan.nvme_bytes - held->nvme_bytes;
  *held = plan;
  Report();
}

void MemoryBook::Reserve(const JobPlan& plan) {
  const MemoryPlan least = LeastMemory(plan, budget_.self, budget_.window_extents_min);
  reserved_bytes_ += least.total();
  reserved_state_bytes_ += least.state_bytes;
}

void MemoryBook::Unreserve(const JobPlan& plan) {
  const MemoryPlan least = LeastMemory(plan, budget_.self, budget_.window_extents_min);
  reserved_bytes_ -= least.total();
  reserved_state_bytes_ -= least.state_bytes;
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
