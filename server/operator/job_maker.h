// JobMaker: jobs that begin in stored state, as their home makes them. The other servers make their
// share first and the home comes last, so that the job is there for good or not at all. It rests
// until trainers attach with `resume`. The home writes down that others make a job before it orders
// that (JobStore::MarkOrdered), so that it can have them drop the job after a restart.
// Comes from: Restorer, Importer. Goes to: the peers, RestingJobs.
// Thread safety: owned by the directory's strand, apart from Plan and MarkOrdered, which may be
// called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/operator/directory_parts.h"

namespace ballast::server {

class JobMaker {
 public:
  using Done = std::function<void(absl::StatusOr<DurableJob>)>;

  explicit JobMaker(const DirectoryParts& parts) : parts_(parts) {}

  // Reserves the name of a new job. ALREADY_EXISTS NAME_IN_USE when a job has it.
  absl::Status TakeName(const QualifiedName& name);
  // Gives the name back: the job will not be made.
  void DropName(const QualifiedName& name) { making_.erase(name); }

  // The plan of job `name` that begins in the state of `manifest`, on the servers that this cluster
  // has now. `world` 0: as it was. Errors: INVALID_ARGUMENT BAD_SPEC.
  absl::StatusOr<JobPlan> Plan(const QualifiedName& name, uint32_t world,
                               const SnapshotManifest& manifest) const;
  // Others are about to make the job. Returns when it survives that they may have something of it.
  // Blocks on the disk.
  absl::Status MarkOrdered(const JobPlan& plan) const;
  // Orders the job's shares with `at_server`, at the others and then here. Its name was taken, and
  // is given back when `done` runs.
  void Make(const JobPlan& plan, const BackgroundTasks::AtServer& at_server, const Done& done);

  // Finds the jobs that the last process of this server ordered and did not make. Blocks on the
  // disk; called once, before anything else. Errors as JobStore::OrderedOnly.
  absl::Status Recover();
  // Has the other servers, which can be reached now, drop these jobs.
  void StartRecovered();

 private:
  // Has the others remove their shares of a job after its creation failed. Repeated until all have
  // answered: a forgotten share would keep its disk space, and the name at that server.
  void DropOrdered(uint64_t job);
  void OnMade(const JobPlan& plan, const absl::Status& status, const Done& done);
  void OnDropped(uint64_t job, const absl::Status& status);
  void ClearOrdered(uint64_t job);

  const DirectoryParts parts_;
  std::set<QualifiedName> making_;
  std::vector<uint64_t> ordered_only_;  // from Recover to StartRecovered
};

// ALREADY_EXISTS NAME_IN_USE; `why` completes "job x ...".
absl::Status NameInUse(const std::string& name, const std::string& why);

}  // namespace ballast::server
