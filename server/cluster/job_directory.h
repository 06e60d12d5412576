// JobDirectory: the jobs that this server knows, from its start to its end. On the home server
// (lowest id) it also lets trainers attach, and has the peers make jobs.
// Comes from: server/server.cc; callers come through the doors. Goes to: RoundEngine, PeerLink.
// Thread safety: every method may be called from any thread; callbacks run on the directory's
// strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/cluster/doors.h"
#include "server/cluster/job_store.h"
#include "server/quota/quotas.h"
#include "server/snapshot/store.h"

namespace ballast::server {

struct DirectoryConfig {
  uint32_t self = 0;
  std::vector<ServerAddress> servers;  // of the cluster, ascending id, self included
  EngineConfig engine;
  JobLimits limits;
  uint32_t jobs_max = 64;
  uint64_t memory_budget_bytes = 0;
  // Of that for states in memory.
  uint64_t state_budget_bytes = UINT64_MAX;
  // What jobs that ran before a start may have, if that is more than the budget.
  uint64_t machine_memory_bytes = 0;
  uint32_t window_extents_min = 64;
  std::chrono::milliseconds attach_timeout{600'000};
  std::chrono::milliseconds job_ttl{600'000};
  // How long a seat whose process still looks alive may keep a newcomer waiting before the
  // newcomer gets SLOT_TAKEN.
  std::chrono::milliseconds takeover_wait{5'000};
  // What a trainer may have on the way to this server, for the quotas.
  uint64_t credit_bytes = 0;
  // Shared with the owner of their file, which replaces the limits while jobs run.
  std::shared_ptr<Quotas> quotas = std::make_shared<Quotas>();
};

// Where snapshots are kept, and exports. `refused`: why none are taken here, if it is not OK.
struct DirectorySnapshots {
  std::unique_ptr<SnapshotStore> store;
  std::unique_ptr<Exports> exports;  // null where `store` is
  PlanCodec codec;
  absl::Status refused;
};

class JobDirectory {
 public:
  // Everything in `deps` and `peers` outlives the directory. `store` keeps durable jobs; null: they
  // are refused.
  static std::shared_ptr<JobDirectory> Create(const DirectoryConfig& config, const EngineDeps& deps,
                                              PeerLink* peers,
                                              std::unique_ptr<JobStore> store = nullptr,
                                              DirectorySnapshots snapshots = {});
  virtual ~JobDirectory() = default;

  // Brings back every durable job that is on disk; blocks for as long as reading takes. Called
  // once, before anything else. Jobs that do not fit the budget are opened over it, with one
  // warning. One that cannot be opened is damaged, and no error: see DamagedJobs. Errors: those of
  // the metadata store, DATA_LOSS STATE_LOST among them; RESOURCE_EXHAUSTED when the machine has
  // too little for the jobs.
  virtual absl::Status Recover() = 0;
  // Starts the jobs that Recover brought back; their peers can reach this server now.
  virtual void StartRecovered() = 0;

  // The doors; they live as long as the directory.
  virtual TrainerDoor* trainers() = 0;
  virtual PeerDoor* peers() = 0;
  virtual OperatorDoor* operators() = 0;
  virtual JobLookup* lookup() = 0;

  // A peer fell silent: every job that spans it hears of that.
  virtual void PeerLost(uint32_t server, const std::string& why) = 0;
  // Fails every job with SHUTTING_DOWN and answers pending attaches.
  virtual void Shutdown(std::function<void()> done) = 0;
};

}  // namespace ballast::server
