// Calls between servers about jobs: plain values, the interfaces that answer them, and the link
// that carries them.
// Comes from: the parts of the job directory, server/service. Goes to: server/peer, which
// implements the link, and the parts that answer. Thread safety: plain values; every method may be
// called from any thread, and callbacks may run on any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "server/exchange/exports.h"
#include "server/jobs/trainer_calls.h"
#include "server/recovery/capture.h"
#include "server/round/round_types.h"

namespace ballast::server {

// One step of a snapshot at one server; see RoundEngine::HoldState.
struct SnapshotCall {
  enum class Step : uint8_t { kHold = 1, kCapture = 2, kRelease = 3 };
  Step step = Step::kHold;
  uint64_t job = 0;
  uint64_t snapshot = 0;  // id
  uint64_t round = 0;     // kCapture
  std::string tenant = kDefaultTenant;
};

struct SnapshotAnswer {
  uint64_t round = 0;    // the first whose beginning this server can tell, or that it captured
  CapturedRound before;  // of a capture at the home itself: how the round before ended
};

// One server's share of an export.
struct ExportPart {
  uint64_t snapshot = 0;  // id
  std::string name;       // of the export
  ExportOptions options;
  uint32_t shard = 0;  // of those that PlanExport gives
  std::string tenant = kDefaultTenant;
};

// An order to make this server's share of a job from a snapshot.
struct RestoreOrder {
  JobPlan plan;
  uint64_t snapshot = 0;  // id
  bool share = false;     // RestoreCall::share
};

// An order to make this server's share of a job from an export.
struct ImportOrder {
  JobPlan plan;
  std::string from;    // name of the export
  bool state = false;  // whether it has optimizer state, as the home has seen it
};

// A durable job that a server has files of, as two servers compare them.
struct RolledJob {
  uint64_t job = 0;
  QualifiedName name;
  std::vector<uint32_t> servers;  // that have a share of it
  bool begun = false;             // its first round is over, or that cannot be seen

  friend bool operator==(const RolledJob&, const RolledJob&) = default;
};
struct JobRoll {
  uint32_t server = 0;  // that asks its home
  std::vector<RolledJob> jobs;
};
struct RollAnswer {
  std::vector<RolledJob> lacking;  // that the server which asks should have and has not
  std::vector<uint64_t> unknown;   // that its home should have and has not
};

// Orders of the home about this server's share of a job. All are idempotent.
class JobShareApi {
 public:
  virtual ~JobShareApi() = default;
  virtual void CreateJob(JobPlan plan, std::function<void(absl::Status)> done) = 0;
  virtual void ExtendJob(JobPlan plan, std::function<void(absl::Status)> done) = 0;
  // Ends the job, if it runs or is being made here, with JOB_FAILED, and removes its files; it may
  // be unknown.
  virtual void DropJob(uint64_t job, std::function<void(absl::Status)> done) = 0;
  virtual void Seal(SealCall call, std::function<void(absl::StatusOr<SealAnswer>)> done) = 0;
  virtual void AdoptEpoch(JobPlan plan, std::function<void(absl::Status)> done) = 0;
};

// Questions of the other servers to the home of their jobs, else NOT_HOME.
class HomeRecordsApi {
 public:
  virtual ~HomeRecordsApi() = default;
  // Those of `jobs` that rest and are not being woken up.
  virtual void WhichRest(std::vector<uint64_t> jobs,
                         std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) = 0;
  // The jobs that the home and the calling server should have and lack.
  virtual void CompareJobs(JobRoll roll, std::function<void(absl::StatusOr<RollAnswer>)> done) = 0;
};

// This server's part in a snapshot that a home takes.
class SnapshotShareApi {
 public:
  virtual ~SnapshotShareApi() = default;
  // A release always succeeds. Errors: those of RoundEngine::HoldState and CaptureState, of
  // RestingJobFiles and of SnapshotStore; NOT_FOUND UNKNOWN_JOB.
  virtual void Snapshot(SnapshotCall call,
                        std::function<void(absl::StatusOr<SnapshotAnswer>)> done) = 0;
};

// Calls to the other servers; implemented in server/peer.
class PeerLink {
 public:
  virtual ~PeerLink() = default;
  virtual void CreateJob(uint32_t server, const JobPlan& plan,
                         std::function<void(absl::Status)> done) = 0;
  virtual void ExtendJob(uint32_t server, const JobPlan& plan,
                         std::function<void(absl::Status)> done) = 0;
  // `done` runs once the server has nothing left of the job, or with the reason for not knowing.
  virtual void DropJob(uint32_t server, uint64_t job, std::function<void(absl::Status)> done) = 0;
  // Of `jobs`, those that rest, as their home says; asked once.
  virtual void WhichRest(uint32_t home, const std::vector<uint64_t>& jobs,
                         std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) = 0;
  // Asked once.
  virtual void CompareJobs(uint32_t home, const JobRoll& roll,
                           std::function<void(absl::StatusOr<RollAnswer>)> done) = 0;
  // Both are repeated until the server answers or create_timeout is over.
  virtual void Seal(uint32_t server, const SealCall& call,
                    std::function<void(absl::StatusOr<SealAnswer>)> done) = 0;
  virtual void AdoptEpoch(uint32_t server, const JobPlan& plan,
                          std::function<void(absl::Status)> done) = 0;
  // Both may take as long as reading and writing the state does. A hold gives the round.
  virtual void Snapshot(uint32_t server, const SnapshotCall& call,
                        std::function<void(absl::StatusOr<SnapshotAnswer>)> done) = 0;
  // A restore gives RestoredJob::copied.
  virtual void RestoreJob(uint32_t server, const RestoreOrder& order,
                          std::function<void(absl::StatusOr<std::string>)> done) = 0;
  virtual void ExportShare(uint32_t server, const ExportPart& part,
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

}  // namespace ballast::server
