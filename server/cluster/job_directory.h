// JobDirectory: which jobs this server knows, who may attach, and what memory they hold. On the
// home server (lowest id) it also runs the attach and extend barriers and creates jobs on the
// peers. Comes from: server/rpc control and peer handlers. Goes to: RoundEngine, PeerLink. Thread
// safety: every method may be called from any thread; callbacks run on the directory's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "server/cluster/attach_types.h"
#include "server/cluster/job_store.h"
#include "server/cluster/works.h"
#include "server/exchange/exports.h"
#include "server/round/round_engine.h"
#include "server/round/round_types.h"
#include "server/snapshot/store.h"

namespace ballast::server {

// One step of a snapshot at one server; see RoundEngine::HoldState.
struct SnapshotCall {
  enum class Step : uint8_t { kHold = 1, kCapture = 2, kRelease = 3 };
  Step step = Step::kHold;
  uint64_t job = 0;
  uint64_t snapshot = 0;  // id
  uint64_t round = 0;     // kCapture
};

// One server's share of an export.
struct ExportPart {
  uint64_t snapshot = 0;  // id
  std::string name;       // of the export
  ExportOptions options;
  uint32_t shard = 0;  // of those that PlanExport gives
};

// What a server is to make of a snapshot: its share of a job.
struct RestoreOrder {
  JobPlan plan;
  uint64_t snapshot = 0;  // id
  bool share = false;     // RestoreCall::share
};

// What a server is to make of an export: its share of a job.
struct ImportOrder {
  JobPlan plan;
  std::string from;    // name of the export
  bool state = false;  // whether it has optimizer state, as the home has seen it
};

// Calls to the other servers; implemented in server/rpc. `done` may run on any thread.
class PeerLink {
 public:
  virtual ~PeerLink() = default;
  virtual void CreateJob(uint32_t server, const JobPlan& plan,
                         std::function<void(absl::Status)> done) = 0;
  virtual void ExtendJob(uint32_t server, const JobPlan& plan,
                         std::function<void(absl::Status)> done) = 0;
  // `done` runs when nothing of the job is left there, or with why that is not known.
  virtual void DropJob(uint32_t server, uint64_t job, std::function<void(absl::Status)> done) = 0;
  // Of `jobs`, those that rest, as their home says; asked once.
  virtual void WhichRest(uint32_t home, const std::vector<uint64_t>& jobs,
                         std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) = 0;
  // Both are repeated until the server answers or create_timeout is over.
  virtual void Seal(uint32_t server, uint64_t job, uint32_t epoch,
                    std::function<void(absl::StatusOr<SealAnswer>)> done) = 0;
  virtual void AdoptEpoch(uint32_t server, const JobPlan& plan,
                          std::function<void(absl::Status)> done) = 0;
  // Both may take as long as reading and writing the state does. A hold gives the round.
  virtual void Snapshot(uint32_t server, const SnapshotCall& call,
                        std::function<void(absl::StatusOr<uint64_t>)> done) = 0;
  // A restore gives RestoredJob::copied.
  virtual void RestoreJob(uint32_t server, const RestoreOrder& order,
                          std::function<void(absl::StatusOr<std::string>)> done) = 0;
  virtual void Export(uint32_t server, const ExportPart& part,
                      std::function<void(absl::Status)> done) = 0;
  virtual void ImportJob(uint32_t server, const ImportOrder& order,
                         std::function<void(absl::Status)> done) = 0;
};

// Said by a server that listens but does not serve jobs yet: UNAVAILABLE RECOVERING, of no job.
// `what` completes "server 3 ...".
inline absl::Status StillStarting(const ServerAddress& server, const std::string& what) {
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                       absl::StrCat("server ", server.id, " ", what, "; ask again soon"),
                       {.server = static_cast<int>(server.id), .address = server.address});
}
// Whether a server has said so. Whatever it was asked, it has done nothing of it.
inline bool IsStillStarting(const absl::Status& status) {
  return ReasonOf(status) == Reason::kRecovering && FieldsOf(status).job.empty();
}

struct DirectoryConfig {
  uint32_t self = 0;
  std::vector<ServerAddress> servers;  // of the cluster, ascending id, self included
  EngineConfig engine;
  JobLimits limits;
  uint32_t jobs_max = 64;
  uint64_t memory_budget_bytes = 0;
  // Of that for states in memory.
  uint64_t state_budget_bytes = UINT64_MAX;
  uint32_t window_extents_min = 64;
  std::chrono::milliseconds attach_timeout{600'000};
  std::chrono::milliseconds job_ttl{600'000};
  // How long a seat whose process still looks alive may keep a newcomer waiting before that is told
  // SLOT_TAKEN.
  std::chrono::milliseconds takeover_wait{5'000};
};

// A durable job as its home knows it.
struct DurableJob {
  std::string name;
  uint64_t job = 0;
  std::string state;  // running | resting: on disk only
  Durability durability = Durability::kPower;
  uint32_t world = 0;
  uint32_t epoch = 0;
  uint64_t round = 0;  // the next
  uint64_t parameters = 0;
  uint32_t tensors = 0;
  uint32_t groups = 0;
  std::vector<uint32_t> servers;
  uint32_t open_streams = 0;  // trainers that are attached
  uint64_t disk_bytes = 0;    // of all its servers, if they are set up as the home is
};
using DurableJobs = std::vector<DurableJob>;

// A snapshot as its home knows it.
struct SnapshotInfo {
  uint64_t id = 0;
  std::string job;
  std::string name;
  uint64_t round = 0;  // the next one of whoever goes on from it
  uint64_t created_s = 0;
  uint64_t bytes = 0;  // on disk
  uint64_t parameters = 0;
  uint32_t world = 0;
  std::vector<uint32_t> servers;
};

// What a snapshot becomes when it is restored.
struct RestoreCall {
  std::string job;       // of the snapshot
  std::string snapshot;  // its name
  std::string as;        // name of the job that goes on from it
  uint32_t world = 0;    // of that job; 0: as it was
  // A fork: the job's slots begin in the snapshot's files (borrowed_images.h); nothing is copied.
  bool share = false;
};

struct RestoredJob {
  DurableJob job;
  std::string copied;  // why a server copied what was to be shared; empty: none did
};

// What is written as safetensors files.
struct ExportCall {
  std::string job;
  std::string snapshot;  // its name; empty: the present state, of which one is taken meanwhile
  std::string name;      // of the export: its directory in storage.export_dir
  DType dtype = DType::kUnspecified;  // of the weights; unspecified: each tensor's own
  bool state = false;                 // optimizer state, too
  bool consolidated = false;          // one server writes all of it, in one file of each kind
};

struct ExportInfo {
  std::string directory;
  uint64_t round = 0;  // the next one of whoever goes on from it
  uint64_t bytes = 0;
  uint32_t files = 0;  // of tensors
  uint32_t tensors = 0;
  uint64_t parameters = 0;
};

// What an export becomes when it is imported.
struct ImportCall {
  std::string from;    // name of the export
  std::string as;      // name of the job that goes on from it
  uint32_t world = 0;  // of that job; 0: as it was
};

struct ImportInfo {
  DurableJob job;
  bool state = false;  // with optimizer state; else moments and step counts begin at 0
  uint64_t bytes = 0;
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
  // once, before anything else. Errors: DATA_LOSS STATE_LOST; RESOURCE_EXHAUSTED when they do not
  // fit.
  virtual absl::Status Recover() = 0;
  // Starts the jobs that Recover brought back; their peers can reach this server now.
  virtual void StartRecovered() = 0;

  // Answers when every slot has attached, or with the typed errors of client.h's Attach;
  // FAILED_PRECONDITION NOT_HOME (message and detail carry the home's address) elsewhere.
  virtual void Attach(AttachCall call, std::function<void(absl::StatusOr<AttachResult>)> done) = 0;
  // The caller of the pending Attach with this AttachCall::call hung up. A later call of the same
  // trainer keeps the seat.
  virtual void AttachCancelled(const std::string& job, uint32_t slot, uint64_t call) = 0;
  virtual void Extend(ExtendCall call, std::function<void(absl::StatusOr<JobPlan>)> done) = 0;

  // From the home. Idempotent for an equal plan.
  virtual void PeerCreateJob(JobPlan plan, std::function<void(absl::Status)> done) = 0;
  virtual void PeerExtendJob(JobPlan plan, std::function<void(absl::Status)> done) = 0;
  // Ends the job, if it runs, with JOB_FAILED, and removes its files; it may be unknown.
  virtual void PeerDropJob(uint64_t job, std::function<void(absl::Status)> done) = 0;
  // From a peer, at the home, else NOT_HOME: those of `jobs` that rest and are not being woken up.
  virtual void PeerWhichRest(std::vector<uint64_t> jobs,
                             std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) = 0;
  virtual void PeerSeal(uint64_t job, uint32_t epoch,
                        std::function<void(absl::StatusOr<SealAnswer>)> done) = 0;
  virtual void PeerAdoptEpoch(JobPlan plan, std::function<void(absl::Status)> done) = 0;

  // Engine of a job, or null. Any thread, does not wait for the strand.
  virtual std::shared_ptr<RoundEngine> Find(uint64_t job) = 0;
  // A peer fell silent: every job that spans it is told.
  virtual void PeerLost(uint32_t server, const std::string& why) = 0;
  virtual void Snapshot(std::function<void(std::vector<JobSnapshot>)> done) = 0;
  // At the home, else NOT_HOME: every durable job, ascending name.
  virtual void ListJobs(std::function<void(absl::StatusOr<DurableJobs>)> done) = 0;
  // At the home, else NOT_HOME: removes a durable job, its log, slots and records, at every
  // server. Errors: NOT_FOUND UNKNOWN_JOB; FAILED_PRECONDITION JOB_BUSY while trainers are attached
  // (with `force` these get JOB_FAILED) or attaching, UNSUPPORTED for durability none; UNAVAILABLE
  // SERVER_LOST when a server does not answer: the job is still listed and can be deleted again.
  virtual void DeleteJob(const std::string& name, bool force,
                         std::function<void(absl::Status)> done) = 0;

  // Snapshots of durable jobs, at the home, else NOT_HOME. Other errors of all of them:
  // FAILED_PRECONDITION UNSUPPORTED where none are kept; NOT_FOUND UNKNOWN_JOB.
  // Create: `keep`: so many of the job stay, the oldest are removed; 0: all. Answers when it is
  // whole on disk. Errors: INVALID_ARGUMENT BAD_ARGUMENT; ALREADY_EXISTS; OVER_BUDGET;
  // FAILED_PRECONDITION JOB_BUSY while its trainers are attaching, or when it rests in the middle
  // of a round; ABORTED when rounds needed the room each time it was tried; what
  // RoundEngine::CaptureState says. Nothing is left then. A job that rests is not woken meanwhile.
  virtual void CreateSnapshot(const std::string& job, const std::string& name, uint32_t keep,
                              std::function<void(absl::StatusOr<SnapshotInfo>)> done) = 0;
  // Of `job`, or of all when it is empty, oldest first.
  virtual void ListSnapshots(
      const std::string& job,
      std::function<void(absl::StatusOr<std::vector<SnapshotInfo>>)> done) = 0;
  // Reads all of it. DATA_LOSS STATE_LOST naming file, extent and offset.
  virtual void VerifySnapshot(const std::string& job, const std::string& name,
                              std::function<void(absl::StatusOr<SnapshotInfo>)> done) = 0;
  virtual void DeleteSnapshot(const std::string& job, const std::string& name,
                              std::function<void(absl::StatusOr<SnapshotInfo>)> done) = 0;
  // Makes a resting job of it, on the servers that this cluster has now. Errors: NAME_IN_USE;
  // OVER_BUDGET; STATE_LOST; INVALID_ARGUMENT BAD_SPEC for a world that cannot be. Nothing is left
  // then.
  virtual void RestoreSnapshot(RestoreCall call,
                               std::function<void(absl::StatusOr<RestoredJob>)> done) = 0;
  // Safetensors files out and in, likewise at the home. Export: errors: those of CreateSnapshot or
  // of finding one; INVALID_ARGUMENT BAD_ARGUMENT for a name that is none; NAME_IN_USE;
  // OVER_BUDGET with both numbers. Nothing of it is left then.
  virtual void Export(ExportCall call, std::function<void(absl::StatusOr<ExportInfo>)> done) = 0;
  // Makes a resting job of an export. Errors: NOT_FOUND: there is none of that name;
  // INVALID_ARGUMENT naming file and tensor; others as RestoreSnapshot's. Nothing is left then.
  virtual void Import(ImportCall call, std::function<void(absl::StatusOr<ImportInfo>)> done) = 0;
  // What takes long here and is under way. Any thread.
  virtual std::vector<std::shared_ptr<const Work>> ListWorks() const = 0;
  // From the home.
  virtual void PeerExport(ExportPart part, std::function<void(absl::Status)> done) = 0;
  virtual void PeerImportJob(ImportOrder order, std::function<void(absl::Status)> done) = 0;
  virtual void PeerSnapshot(SnapshotCall call,
                            std::function<void(absl::StatusOr<uint64_t>)> done) = 0;
  virtual void PeerRestoreJob(RestoreOrder order,
                              std::function<void(absl::StatusOr<std::string>)> done) = 0;

  // Fails every job with SHUTTING_DOWN and answers pending attaches.
  virtual void Shutdown(std::function<void()> done) = 0;

  virtual uint64_t memory_used_bytes() const = 0;
  virtual uint64_t memory_budget_bytes() const = 0;
};

}  // namespace ballast::server
