// Operators' requests and their view of jobs and snapshots, as plain values, and the interfaces
// that answer them: this server's status anywhere, all else at the home, elsewhere NOT_HOME.
// Comes from: the Admin service; of shares of the same work, the Peer service. Goes to: JobAdmin,
// Snapshotter, Restorer, Exporter, Importer.
// Thread safety: plain values; every method may be called from any thread, and callbacks run on the
// directory's strand unless they say otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/exchange/export_plan.h"
#include "server/jobs/peer_calls.h"
#include "server/jobs/works.h"
#include "server/round/round_types.h"

namespace ballast::server {

// A durable job as its home knows it.
struct DurableJob {
  std::string name;
  std::string tenant = kDefaultTenant;
  uint64_t job = 0;
  std::string state;  // running | resting: on disk only | damaged | unopened
  Durability durability = Durability::kPower;
  uint32_t world = 0;
  uint32_t epoch = 0;
  uint64_t round = 0;  // the next
  uint64_t parameters = 0;
  uint32_t tensors = 0;
  uint32_t groups = 0;
  std::vector<uint32_t> servers;
  uint32_t open_streams = 0;  // attached trainers
  uint64_t disk_bytes = 0;    // of all its servers, if they are set up as the home is
};
using DurableJobs = std::vector<DurableJob>;

// The deletion of a durable job.
struct DeleteJobCall {
  QualifiedName name;
  bool force = false;  // although trainers are attached, or a server of it was removed
};

// Memory of the jobs of this server, and the long tasks under way here.
struct ServerLoad {
  uint64_t memory_used_bytes = 0;
  uint64_t memory_budget_bytes = 0;
  std::vector<std::shared_ptr<const Work>> works;
};

// A request about one snapshot: to take it, to verify it, to delete it.
struct SnapshotRequest {
  QualifiedName job;
  std::string name;   // of the snapshot
  uint32_t keep = 0;  // once it is taken, so many of the job stay, the oldest are removed; 0: all
};

// A snapshot as its home knows it.
struct SnapshotInfo {
  uint64_t id = 0;
  std::string tenant = kDefaultTenant;
  std::string job;
  std::string name;
  uint64_t round = 0;  // the first one of a job made from it
  uint64_t created_s = 0;
  uint64_t bytes = 0;  // on disk
  uint64_t parameters = 0;
  uint32_t world = 0;
  std::vector<uint32_t> servers;
};

// Which snapshots are listed.
struct SnapshotFilter {
  std::optional<std::string> tenant;  // of this one; nullopt: of all
  std::string job;                    // of this one; empty: of all
};

// The restore of a snapshot as a job.
struct RestoreCall {
  std::string tenant = kDefaultTenant;  // of the snapshot and of the new job
  std::string job;                      // of the snapshot
  std::string snapshot;                 // its name
  std::string as;                       // name of the new job
  uint32_t world = 0;                   // of that job; 0: as it was
  // A fork: the job's slots begin in the snapshot's files (borrowed_images.h); nothing is copied.
  bool share = false;

  QualifiedName made() const { return {tenant, as}; }
};

struct RestoredJob {
  DurableJob job;
  std::string copied;  // why a server copied files instead of sharing them; empty: none did
};

// The export of a job's state as files.
struct ExportCall {
  std::string tenant = kDefaultTenant;  // of the job and of the export
  std::string job;
  std::string snapshot;       // its name; empty: the present state, of which one is taken meanwhile
  std::string name;           // of the export: its directory in storage.export_dir
  DType dtype = kNoDType;     // of the weights; unspecified: each tensor's own
  bool state = false;         // optimizer state, too
  bool consolidated = false;  // one server writes all of it, in one file of each kind
  ExportFormat format = ExportFormat::kSafetensors;  // kUniversal: without dtype and state
  bool torch_optimizer = false;  // of kUniversal: for torch's optimizer, not DeepSpeed's
};

struct ExportInfo {
  std::string job;
  std::string name;    // of the export
  bool state = false;  // with optimizer state
  std::string directory;
  uint64_t round = 0;  // the first one of a job made from it
  uint64_t bytes = 0;
  uint32_t files = 0;  // of tensors
  uint32_t tensors = 0;
  uint64_t parameters = 0;
};

// The import of an export as a job.
struct ImportCall {
  std::string tenant = kDefaultTenant;  // of the export and of the new job
  std::string from;                     // name of the export
  std::string as;                       // name of the new job
  uint32_t world = 0;                   // of that job; 0: as it was

  QualifiedName made() const { return {tenant, as}; }
};

struct ImportInfo {
  DurableJob job;
  bool state = false;  // with optimizer state; else moments and step counts begin at 0
  uint64_t bytes = 0;
};

class JobsApi {
 public:
  virtual ~JobsApi() = default;

  // --- This server
  // Every job here or attaching here, ascending tenant and name. `done` may run on any thread.
  virtual void Status(std::function<void(std::vector<JobStatus>)> done) = 0;
  // At once.
  virtual ServerLoad Load() const = 0;

  // --- Durable jobs
  // Of all tenants, ascending tenant and name.
  virtual void ListJobs(std::function<void(absl::StatusOr<DurableJobs>)> done) = 0;
  // Removes a durable job, its log, images and records, at every server. Errors: NOT_FOUND
  // UNKNOWN_JOB; FAILED_PRECONDITION JOB_BUSY while trainers are attached (with `force` these get
  // JOB_FAILED) or attaching, UNSUPPORTED for durability none, SERVER_REMOVED when cluster.peers
  // lacks a server of it (with `force` that one keeps its files); UNAVAILABLE SERVER_LOST when a
  // server does not answer: the job is still listed and can be deleted again.
  virtual void DeleteJob(DeleteJobCall call, std::function<void(absl::Status)> done) = 0;
  // At every server: tries again to open a job of which files were missing or damaged here, or
  // whose servers this cluster lacked. Whether there was something to open. Errors: why it still
  // cannot be opened; NOT_FOUND UNKNOWN_JOB.
  virtual void RetryJob(QualifiedName name, std::function<void(absl::StatusOr<bool>)> done) = 0;
};

// Snapshots of durable jobs. Other errors of all methods: FAILED_PRECONDITION UNSUPPORTED where
// none are kept; NOT_FOUND UNKNOWN_JOB.
class SnapshotApi {
 public:
  using Done = std::function<void(absl::StatusOr<SnapshotInfo>)>;
  virtual ~SnapshotApi() = default;

  // Answers when the snapshot is whole on disk. Errors: INVALID_ARGUMENT BAD_ARGUMENT;
  // ALREADY_EXISTS; OVER_BUDGET; FAILED_PRECONDITION JOB_BUSY while its trainers are attaching, or
  // when it rests in the middle of a round; ABORTED when rounds needed the room each time it was
  // tried; RoundEngine::CaptureState's. Nothing is left then. A job that rests is not woken
  // meanwhile.
  virtual void CreateSnapshot(SnapshotRequest request, Done done) = 0;
  // Oldest first.
  virtual void ListSnapshots(
      SnapshotFilter filter,
      std::function<void(absl::StatusOr<std::vector<SnapshotInfo>>)> done) = 0;
  // Reads all of it. DATA_LOSS STATE_LOST naming file, extent and offset.
  virtual void VerifySnapshot(SnapshotRequest request, Done done) = 0;
  virtual void DeleteSnapshot(SnapshotRequest request, Done done) = 0;
};

class RestoreApi {
 public:
  virtual ~RestoreApi() = default;
  // Makes a resting job of a snapshot, on the servers that this cluster has now. Errors:
  // NAME_IN_USE; OVER_BUDGET; STATE_LOST; INVALID_ARGUMENT BAD_SPEC for a world that cannot be;
  // those of SnapshotApi. Nothing is left then.
  virtual void RestoreSnapshot(RestoreCall call,
                               std::function<void(absl::StatusOr<RestoredJob>)> done) = 0;
  // Makes this server's share of such a job; the answer is RestoredJob::copied.
  virtual void RestoreJob(RestoreOrder order,
                          std::function<void(absl::StatusOr<std::string>)> done) = 0;
};

// Safetensors files and universal checkpoints.
class ExportApi {
 public:
  virtual ~ExportApi() = default;
  // Errors: those of SnapshotApi; INVALID_ARGUMENT BAD_ARGUMENT for a malformed name; NAME_IN_USE;
  // OVER_BUDGET with both numbers. Nothing of it is left then.
  virtual void Export(ExportCall call, std::function<void(absl::StatusOr<ExportInfo>)> done) = 0;
  // Writes this server's files.
  virtual void ExportShare(ExportPart part, std::function<void(absl::Status)> done) = 0;
};

class ImportApi {
 public:
  virtual ~ImportApi() = default;
  // Makes a resting job of an export. Errors: NOT_FOUND: there is none of that name;
  // INVALID_ARGUMENT naming file and tensor; others as RestoreSnapshot's. Nothing is left then.
  virtual void Import(ImportCall call, std::function<void(absl::StatusOr<ImportInfo>)> done) = 0;
  // Makes this server's share of such a job.
  virtual void ImportJob(ImportOrder order, std::function<void(absl::Status)> done) = 0;
};

}  // namespace ballast::server
