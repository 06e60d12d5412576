// MemoryBook: what the jobs of this server take of its memory budget, and what is free.
// Comes from: LocalJobs. Goes to: PlanMemory, the status page, metrics.
// Thread safety: owned by the directory's strand; used_bytes may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "server/round/job_plan.h"

namespace ballast::server {

class MemoryBook {
 public:
  // All in bytes, but the window, which is in extents. `state_bytes`: of `bytes`, for states in
  // memory. `machine_bytes`: what jobs that ran before a start may have, if that is more.
  struct Budget {
    uint32_t self = 0;  // this server's id
    uint64_t bytes = 0;
    uint64_t state_bytes = 0;
    uint64_t machine_bytes = 0;
    uint32_t window_extents_min = 0;
  };

  // `metrics` may be null; it outlives the book.
  MemoryBook(const Budget& budget, ServerMetrics* metrics);

  // What no job has.
  MemoryRoom Free() const;
  // What a job that has `held` may take: its own share and what no job has. It keeps its tier.
  MemoryRoom RoomOf(const MemoryPlan& held) const;
  // The whole budget.
  MemoryRoom All() const;
  // A plan for a new job in what is free. Errors as PlanMemory.
  absl::StatusOr<MemoryPlan> Plan(const JobPlan& plan) const { return PlanIn(plan, Free()); }
  // As Plan, for a job that ran here before this start. What does not fit the budget gets the least
  // that it needs, over the budget, as long as the machine has that much. Errors as PlanMemory.
  absl::StatusOr<MemoryPlan> PlanRecovered(const JobPlan& plan) const;
  // As Plan, in `room`.
  absl::StatusOr<MemoryPlan> PlanIn(const JobPlan& plan, const MemoryRoom& room) const {
    return PlanMemory(plan, budget_.self, room, budget_.window_extents_min);
  }
  // The most trainers for which the job, which has `held`, finds room; see WorldMax in job_plan.h.
  uint32_t WorldMaxOf(const JobPlan& plan, const MemoryPlan& held) const {
    return WorldMax(plan, budget_.self, RoomOf(held), budget_.window_extents_min);
  }

  // A job has `plan` from now on instead of `*held`, and `*held` says so.
  void Change(MemoryPlan* held, const MemoryPlan& plan);

  // Sets aside the least that a job needs, and gives that back: for jobs that are recovered later.
  void Reserve(const JobPlan& plan);
  void Unreserve(const JobPlan& plan);

  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  uint64_t budget_bytes() const { return budget_.bytes; }
  bool over_budget() const {
    return used_bytes() > budget_.bytes || state_bytes_ > budget_.state_bytes;
  }
  // After PlanRecovered of all jobs: one line in the log, if they are over the budget.
  void WarnIfOver() const;

 private:
  void Report() const;

  const Budget budget_;
  ServerMetrics* const metrics_;
  std::atomic<uint64_t> used_bytes_{0};
  uint64_t state_bytes_ = 0;  // of that for states
  uint64_t nvme_bytes_ = 0;   // of states that live on NVMe
  uint64_t reserved_bytes_ = 0;
  uint64_t reserved_state_bytes_ = 0;
};

}  // namespace ballast::server
