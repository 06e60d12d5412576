// The doors of the job directory: one interface each for trainers, peers and operators.
// Comes from: server/service. Goes to: the parts of the directory.
// Thread safety: every method may be called from any thread; unless they say otherwise, callbacks
// run on the directory's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/attach_types.h"
#include "server/jobs/peer_calls.h"
#include "server/jobs/works.h"
#include "server/operator/operator_calls.h"
#include "server/quota/tenant_ledger.h"

namespace ballast::server {

// Trainers' calls at the home. Elsewhere FAILED_PRECONDITION NOT_HOME; message and detail carry the
// home's address.
class TrainerDoor {
 public:
  virtual ~TrainerDoor() = default;
  // Answers when every slot has attached, or with the typed errors of client.h's Attach.
  virtual void Attach(AttachCall call, std::function<void(absl::StatusOr<AttachResult>)> done) = 0;
  // The caller of the pending Attach with this AttachCall::call hung up. A later call of the same
  // trainer keeps the seat.
  virtual void AttachCancelled(const QualifiedName& job, uint32_t slot, uint64_t call) = 0;
  // Answers when every slot has asked and every server has the new groups, or with the typed errors
  // of client.h's AddGroup.
  virtual void Extend(ExtendCall call, std::function<void(absl::StatusOr<JobPlan>)> done) = 0;
  // Answers when the caller's condition holds, or after the call's wait, or with the typed errors
  // of the client's rendezvous.h.
  virtual void Rendezvous(RendezvousCall call,
                          std::function<void(absl::StatusOr<rendezvous::Reply>)> done) = 0;
  // The rank has said what it does. Nothing where it holds no seat, or this is not the home.
  virtual void Heard(uint64_t job, Member rank, Doing doing) = 0;
};

// Orders of the home at this server, and calls of peers at the home. See PeerLink, which makes
// these calls. Callbacks may run on any thread.
class PeerDoor {
 public:
  virtual ~PeerDoor() = default;
  // Both are idempotent for an equal plan.
  virtual void CreateJob(JobPlan plan, std::function<void(absl::Status)> done) = 0;
  virtual void ExtendJob(JobPlan plan, std::function<void(absl::Status)> done) = 0;
  // Ends the job, if it runs, with JOB_FAILED, and removes its files; it may be unknown.
  virtual void DropJob(uint64_t job, std::function<void(absl::Status)> done) = 0;
  // At the home, else NOT_HOME: those of `jobs` that rest and are not being woken up.
  virtual void WhichRest(std::vector<uint64_t> jobs,
                         std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) = 0;
  // At the home, else NOT_HOME: the jobs that it and the calling server should have and lack.
  virtual void CompareJobs(JobRoll roll, std::function<void(absl::StatusOr<RollAnswer>)> done) = 0;
  virtual void Seal(const SealCall& call, std::function<void(absl::StatusOr<SealAnswer>)> done) = 0;
  virtual void AdoptEpoch(JobPlan plan, std::function<void(absl::Status)> done) = 0;
  virtual void Snapshot(SnapshotCall call, std::function<void(absl::StatusOr<uint64_t>)> done) = 0;
  virtual void RestoreJob(RestoreOrder order,
                          std::function<void(absl::StatusOr<std::string>)> done) = 0;
  virtual void Export(ExportPart part, std::function<void(absl::Status)> done) = 0;
  virtual void ImportJob(ImportOrder order, std::function<void(absl::Status)> done) = 0;
};

// Operators' calls: this server's status anywhere, all others at the home, else NOT_HOME.
class OperatorDoor {
 public:
  virtual ~OperatorDoor() = default;

  // --- This server -------------------------------------------------------------------------------
  // Every job here or attaching here, ascending tenant and name. `done` may run on any thread.
  virtual void Status(std::function<void(std::vector<JobStatus>)> done) = 0;
  // Long tasks under way here. At once.
  virtual std::vector<std::shared_ptr<const Work>> ListWorks() const = 0;
  virtual uint64_t memory_used_bytes() const = 0;
  virtual uint64_t memory_budget_bytes() const = 0;
  // Use and limits of tenants at this server: of all with any use or limits of their own, and of
  // one. At once.
  virtual std::vector<TenantUse> TenantUses() const = 0;
  virtual TenantUse TenantUseOf(const std::string& tenant) const = 0;

  // --- Durable jobs
  // Of all tenants, ascending tenant and name.
  virtual void ListJobs(std::function<void(absl::StatusOr<DurableJobs>)> done) = 0;
  // Removes a durable job, its log, images and records, at every server. Errors: NOT_FOUND
  // UNKNOWN_JOB; FAILED_PRECONDITION JOB_BUSY while trainers are attached (with `force` these get
  // JOB_FAILED) or attaching, UNSUPPORTED for durability none, SERVER_REMOVED when cluster.peers
  // lacks a server of it (with `force` that one keeps its files); UNAVAILABLE SERVER_LOST when a
  // server does not answer: the job is still listed and can be deleted again.
  virtual void DeleteJob(const QualifiedName& name, bool force,
                         std::function<void(absl::Status)> done) = 0;
  // At every server: tries again to open a job of which files were missing or damaged here, or
  // whose servers this cluster lacked. Whether there was something to open. Errors: why it still
  // cannot be opened; NOT_FOUND UNKNOWN_JOB.
  virtual void RetryJob(const QualifiedName& name,
                        std::function<void(absl::StatusOr<bool>)> done) = 0;

  // --- Snapshots of durable jobs. Other errors of all of them: FAILED_PRECONDITION UNSUPPORTED
  // where none are kept; NOT_FOUND UNKNOWN_JOB.
  // `keep`: so many of the job stay, the oldest are removed; 0: all. Answers when the snapshot is
  // whole on disk. Errors: INVALID_ARGUMENT BAD_ARGUMENT; ALREADY_EXISTS; OVER_BUDGET;
  // FAILED_PRECONDITION JOB_BUSY while its trainers are attaching, or when it rests in the middle
  // of a round; ABORTED when rounds needed the room each time it was tried; what
  // RoundEngine::CaptureState says. Nothing is left then. A job that rests is not woken meanwhile.
  virtual void CreateSnapshot(const QualifiedName& job, const std::string& name, uint32_t keep,
                              std::function<void(absl::StatusOr<SnapshotInfo>)> done) = 0;
  // Oldest first.
  virtual void ListSnapshots(
      SnapshotFilter filter,
      std::function<void(absl::StatusOr<std::vector<SnapshotInfo>>)> done) = 0;
  // Reads all of it. DATA_LOSS STATE_LOST naming file, extent and offset.
  virtual void VerifySnapshot(const QualifiedName& job, const std::string& name,
                              std::function<void(absl::StatusOr<SnapshotInfo>)> done) = 0;
  virtual void DeleteSnapshot(const QualifiedName& job, const std::string& name,
                              std::function<void(absl::StatusOr<SnapshotInfo>)> done) = 0;
  // Makes a resting job of it, on the servers that this cluster has now. Errors: NAME_IN_USE;
  // OVER_BUDGET; STATE_LOST; INVALID_ARGUMENT BAD_SPEC for a world that cannot be. Nothing is left
  // then.
  virtual void RestoreSnapshot(RestoreCall call,
                               std::function<void(absl::StatusOr<RestoredJob>)> done) = 0;

  // --- Safetensors files -------------------------------------------------------------------------
  // Errors: those of CreateSnapshot or of finding one; INVALID_ARGUMENT BAD_ARGUMENT for a
  // malformed name; NAME_IN_USE; OVER_BUDGET with both numbers. Nothing of it is left then.
  virtual void Export(ExportCall call, std::function<void(absl::StatusOr<ExportInfo>)> done) = 0;
  // Makes a resting job of an export. Errors: NOT_FOUND: there is none of that name;
  // INVALID_ARGUMENT naming file and tensor; others as RestoreSnapshot's. Nothing is left then.
  virtual void Import(ImportCall call, std::function<void(absl::StatusOr<ImportInfo>)> done) = 0;
};

}  // namespace ballast::server
