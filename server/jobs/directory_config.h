// Parameters of a job directory and its parts: its place in the cluster, the limits of jobs, and
// the directories of their snapshots.
// Comes from: server/server.cc. Goes to: JobDirectory::Create, ThisServer.
// Thread safety: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/round_engine.h"
#include "server/exchange/exports.h"
#include "server/jobs/job_number.h"
#include "server/jobs/job_records.h"
#include "server/jobs/trainer_calls.h"
#include "server/quota/quotas.h"
#include "server/round/round_types.h"
#include "server/snapshot/store.h"

namespace ballast::server {

struct DirectoryConfig {
  uint32_t self = 0;
  uint64_t incarnation = 0;            // of this process
  std::vector<ServerAddress> servers;  // of the cluster, ascending id, self included
  EngineConfig engine;
  JobLimits limits;
  uint32_t jobs_max = 64;
  uint64_t memory_budget_bytes = 0;
  // Of that for states in memory.
  uint64_t state_budget_bytes = UINT64_MAX;
  // Budget of jobs from before a start, if larger than the regular budget.
  uint64_t machine_memory_bytes = 0;
  uint32_t window_extents_min = 64;
  std::chrono::milliseconds attach_timeout{600'000};
  std::chrono::milliseconds job_ttl{600'000};
  // How long a seat whose process still looks alive may keep a newcomer waiting before the
  // newcomer gets SLOT_TAKEN.
  std::chrono::milliseconds takeover_wait{5'000};
  // Bytes in flight that a trainer may have at this server, for the quotas.
  uint64_t credit_bytes = 0;
  // Shared with the owner of their file, which replaces the limits while jobs run.
  std::shared_ptr<Quotas> quotas = std::make_shared<Quotas>();
  // Of snapshots, and of jobs and seats made from one.
  std::function<uint64_t()> new_id = RandomId;
};

// Where snapshots are kept, and exports. `refused`: why none are taken here, if it is not OK.
struct DirectorySnapshots {
  std::unique_ptr<SnapshotStore> store;
  std::unique_ptr<Exports> exports;  // null where `store` is
  PlanCodec codec;
  absl::Status refused;
};

}  // namespace ballast::server
