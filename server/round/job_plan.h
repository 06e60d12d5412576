// Checks of a job's plan and of its memory demand at a server.
// Comes from: the home's attach barrier, or a peer. Goes to: RoundEngine, the job directory.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tensor/layout.h"
#include "server/round/round_types.h"

namespace ballast::server {

// Slots are below this, whatever a configuration allows: a plan's seats are allocated.
inline constexpr uint32_t kSeatsMax = 1u << 16;

// Layout of a spec's manifest. Errors: INVALID_ARGUMENT.
absl::StatusOr<Layout> LayoutOfSpec(const JobSpec& spec);

// The contributor sets of a job with these members, as its specification has them.
std::vector<ContributorSet> ContributorsOf(const JobSpec& spec, const std::vector<Member>& members);

// Every member contributes to every group, and sums are divided by their number.
std::vector<ContributorSet> AllContribute(const std::vector<Member>& members, uint32_t groups);

// Whether another server's plan is consistent: owners, members and contributors fit
// the spec, which must be valid. Errors: INVALID_ARGUMENT BAD_SPEC.
absl::Status CheckPlan(const JobPlan& plan);

// Bytes of a buffer for this extent's gradient or sum of that dtype: whole pages, so that the log
// can write from it and read into it past the page cache.
uint64_t GradientBufferBytes(const Layout& layout, uint32_t extent, DType dtype);

// Bytes a job will take at one server, before anything is allocated (4 of state per array +
// W x gradient or window + 4 sum + 2 x weight per owned parameter).
struct MemoryPlan {
  uint64_t state_bytes = 0;  // in memory
  uint64_t register_bytes = 0;
  uint64_t sum_bytes = 0;
  uint64_t weight_bytes = 0;
  uint32_t window_extents = 0;  // chosen: all owned extents if they fit, else at least the minimum
  uint32_t nvme_extents = 0;    // extents in memory when the state lives on NVMe; 0: it does not
  uint64_t nvme_bytes = 0;      // of the state that lives on NVMe
  uint64_t total() const { return state_bytes + register_bytes + sum_bytes + weight_bytes; }
};

// Memory left for a job at a server.
struct MemoryRoom {
  uint64_t bytes = 0;                    // for everything (storage.memory_budget)
  uint64_t state_bytes = UINT64_MAX;     // of that for state (storage.dram_budget)
  std::optional<uint32_t> nvme_extents;  // of a running job: as in its MemoryPlan
};

// Plan for server `self` in what `room` leaves; the window shrinks to `window_extents_min` before
// the plan is refused. State that does not fit lives on NVMe, if the job is durable and does not
// ask for memory; JobSpec::device may ask for NVMe, too.
// Errors: RESOURCE_EXHAUSTED OVER_BUDGET naming bytes needed, their parts and the room.
absl::StatusOr<MemoryPlan> PlanMemory(const JobPlan& plan, uint32_t self, const MemoryRoom& room,
                                      uint32_t window_extents_min);

// The least memory with which the job can continue at `self`: with its state on NVMe, if allowed.
MemoryPlan LeastMemory(const JobPlan& plan, uint32_t self, uint32_t window_extents_min);

// "memory plan: needs ...; has ...": a line for the log. `disk_bytes`: of the job's files.
std::string MemoryText(const MemoryPlan& memory, const MemoryRoom& room, uint64_t disk_bytes);

// The most trainers whose registers fit server `self` with the smallest window; at least the
// present ones. Arguments as PlanMemory; the room includes this job's own memory.
uint32_t WorldMax(const JobPlan& plan, uint32_t self, const MemoryRoom& room,
                  uint32_t window_extents_min);

}  // namespace ballast::server
