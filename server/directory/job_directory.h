// JobDirectory: the jobs that this server knows, from its start to its end. On the home server
// (lowest id) it also lets trainers attach, and has the peers make jobs.
// Comes from: server/server.cc; callers come through the interfaces of its parts. Goes to:
// RoundEngine, PeerLink.
// Thread safety: every method may be called from any thread; callbacks run on the directory's
// strand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/jobs/directory_config.h"
#include "server/jobs/job_lookup.h"
#include "server/jobs/job_store.h"
#include "server/jobs/peer_calls.h"
#include "server/jobs/trainer_calls.h"
#include "server/operator/operator_calls.h"
#include "server/quota/quotas.h"

namespace ballast::server {

// The interfaces of the directory, each of which one part implements. They live as long as the
// directory.
struct JobApis {
  TrainerApi* trainers = nullptr;
  JobLookup* lookup = nullptr;
  // Other servers.
  JobShareApi* shares = nullptr;
  HomeRecordsApi* records = nullptr;
  SnapshotShareApi* snapshot_shares = nullptr;
  // Operators; the last three other servers, too.
  JobsApi* jobs = nullptr;
  SnapshotApi* snapshots = nullptr;
  RestoreApi* restores = nullptr;
  ExportApi* exports = nullptr;
  ImportApi* imports = nullptr;
  const Quotas* quotas = nullptr;
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

  // Brings back every durable job on disk; blocks for as long as reading takes. Called once, before
  // anything else. Jobs that do not fit the budget are opened over it, with one warning. One that
  // cannot be opened is damaged, and no error: see DamagedJobs. Errors: those of the metadata
  // store, DATA_LOSS STATE_LOST among them; RESOURCE_EXHAUSTED when the machine has too little for
  // the jobs.
  virtual absl::Status Recover() = 0;
  // Starts the jobs that Recover brought back; their peers can reach this server now.
  virtual void StartRecovered() = 0;

  virtual JobApis apis() = 0;

  // A peer fell silent: every job that spans it hears of that.
  virtual void PeerLost(uint32_t server, const std::string& why) = 0;
  // Fails every job with SHUTTING_DOWN and answers pending attaches.
  virtual void Shutdown(std::function<void()> done) = 0;
};

}  // namespace ballast::server
