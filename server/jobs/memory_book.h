// MemoryBook: memory taken by the jobs of this server and left in its budget, and the amounts that
// an open job takes of its tenant's quotas: memory, seats, bytes in flight, and without durability
// the job itself.
// Comes from: LocalJobs. Goes to: PlanMemory, Quotas, the status page, metrics.
// Thread safety: owned by the directory's strand; used_bytes and quotas may be called from any
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "server/quota/quotas.h"
#include "server/round/job_plan.h"

namespace ballast::server {

class MemoryBook {
 public:
  // All in bytes, but the window, which is in extents. `state_bytes`: part of `bytes` for states in
  // memory. `machine_bytes`: the limit for jobs from before a start, if larger. `credit_bytes`:
  // bytes in flight per seat.
  struct Budget {
    uint32_t self = 0;  // this server's id
    uint64_t bytes = 0;
    uint64_t state_bytes = 0;
    uint64_t machine_bytes = 0;
    uint32_t window_extents_min = 0;
    uint64_t credit_bytes = 0;
  };

  // `metrics` may be null; it outlives the book.
  MemoryBook(const Budget& budget, std::shared_ptr<Quotas> quotas, ServerMetrics* metrics);

  // Memory that no job has.
  MemoryRoom Free() const;
  // Memory available to a job that has `held`: its own share plus the free memory within its
  // tenant's quota. It keeps its tier.
  MemoryRoom RoomOf(const JobPlan& plan, const MemoryPlan& held) const;
  // Whether the job fits the budget and its tenant's quotas when there is no other job.
  bool FitsAlone(const JobPlan& plan) const;
  // A plan for a new job, within the free memory. Errors: as PlanMemory; OVER_QUOTA.
  absl::StatusOr<MemoryPlan> Plan(const JobPlan& plan) const;
  // As Plan, for a job that ran here before this start. A job above the budget or its tenant's
  // quotas gets the least that it needs, as long as the machine has that much: a server started
  // with a smaller budget must not lose a job. Errors as PlanMemory.
  absl::StatusOr<MemoryPlan> PlanRecovered(const JobPlan& plan) const;
  // A plan for the job as it grows, at the window it has. Errors as Plan's.
  absl::StatusOr<MemoryPlan> PlanGrown(const JobPlan& plan, const MemoryPlan& held,
                                       uint32_t window_extents) const;
  // A plan in `room`, whatever the quotas say. Errors as PlanMemory.
  absl::StatusOr<MemoryPlan> PlanIn(const JobPlan& plan, const MemoryRoom& room) const {
    return PlanMemory(plan, budget_.self, room, budget_.window_extents_min);
  }

  // Room that an open job has for the trainers of its next epoch.
  struct Promised {
    uint32_t world = 0;  // trainers, those of the present epoch included; 0: there is no promise
    MemoryPlan before;   // the job's memory without it
  };
  struct Grant {
    uint32_t world = 0;    // the most trainers that the next epoch may have
    absl::Status refusal;  // OVER_QUOTA, if a quota made the grant smaller than wanted
  };
  // The job, which has `*held`, is to get a world of `wanted` trainers. Available room for them is
  // reserved from now on, so that no other job is granted the same; `*held` and `*promised` include
  // it. Replaces an earlier promise; 0 wants nothing and changes nothing. Change makes it exact
  // when the epoch has come.
  Grant Promise(const JobPlan& plan, uint32_t wanted, MemoryPlan* held, Promised* promised);
  // The next epoch does not come, or with another world: the job returns to its earlier memory.
  void TakeBack(const JobPlan& plan, MemoryPlan* held, Promised* promised);

  // A job is open from now on and has `planned`, which is the answer: Plan's, or PlanRecovered's,
  // for BeginRecovered. Errors: that of `planned`; OVER_QUOTA when its tenant has taken the room
  // since, on another thread.
  absl::StatusOr<MemoryPlan> Begin(const JobPlan& plan, const absl::StatusOr<MemoryPlan>& planned);
  absl::StatusOr<MemoryPlan> BeginRecovered(const JobPlan& plan,
                                            const absl::StatusOr<MemoryPlan>& planned);
  // The open job has `to` from now on instead of `*held`, and `*held` says so.
  void Change(const JobPlan& plan, MemoryPlan* held, const MemoryPlan& to);
  // The job is not open any more, and has nothing.
  void End(const JobPlan& plan, MemoryPlan* held);

  // Sets aside the least that a job needs, and gives this back: for jobs still to be recovered.
  void Reserve(const JobPlan& plan);
  void Unreserve(const JobPlan& plan);

  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  uint64_t budget_bytes() const { return budget_.bytes; }
  bool over_budget() const {
    return used_bytes() > budget_.bytes || state_bytes_ > budget_.state_bytes;
  }
  // After PlanRecovered of all jobs: one line in the log, if they are over the budget.
  void WarnIfOver() const;
  const Quotas& quotas() const { return *quotas_; }

 private:
  // The amounts an open job takes of its tenant's quotas.
  Amounts AmountsOf(const JobPlan& plan, const MemoryPlan& memory) const;
  MemoryPlan Least(const JobPlan& plan) const {
    return LeastMemory(plan, budget_.self, budget_.window_extents_min);
  }
  // The most trainers for which the job, which has `held`, finds room; see WorldMax in job_plan.h.
  uint32_t WorldMaxOf(const JobPlan& plan, const MemoryPlan& held) const;
  // Which quota keeps the job, which has `held`, from a world of `wanted` trainers. OK: none does.
  absl::Status WhyNot(const JobPlan& plan, const MemoryPlan& held, uint32_t wanted) const;
  // Free memory plus the job's own.
  MemoryRoom FreeBeside(const MemoryPlan& held) const;
  // The budget's part of Change.
  void Count(MemoryPlan* held, const MemoryPlan& to);
  void Report() const;

  const Budget budget_;
  const std::shared_ptr<Quotas> quotas_;
  ServerMetrics* const metrics_;
  std::atomic<uint64_t> used_bytes_{0};
  uint64_t state_bytes_ = 0;  // of that for states
  uint64_t nvme_bytes_ = 0;   // of states that live on NVMe
  uint64_t reserved_bytes_ = 0;
  uint64_t reserved_state_bytes_ = 0;
};

}  // namespace ballast::server
