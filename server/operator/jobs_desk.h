// JobsDesk: jobs as operators see them. At every server: their status. At the home: durable jobs
// listed, and removed from every disk. A job is removed at the peers first and at the home last, so
// that it stays listed, and can be deleted again, until nothing of it is left anywhere.
// Comes from: OperatorDoor. Goes to: LocalJobs, the peers.
// Thread safety: owned by the directory's strand.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/operator/desk_parts.h"
#include "server/operator/snapshot_desk.h"

namespace ballast::server {

class JobsDesk {
 public:
  using Done = std::function<void(absl::Status)>;

  // `snapshots` outlives the object.
  JobsDesk(const DeskParts& parts, const SnapshotDesk* snapshots)
      : parts_(parts), snapshots_(snapshots) {}

  // Every job at this server, or attaching at it, ascending name. `done` may run on any thread.
  void Status(const std::function<void(std::vector<JobStatus>)>& done);
  // As OperatorDoor's ListJobs and DeleteJob, with their errors.
  void List(const std::function<void(absl::StatusOr<DurableJobs>)>& done);
  void Delete(const QualifiedName& name, bool force, const Done& done);

 private:
  // The job, if it may be deleted: it is durable, and no snapshot is taken of it at rest.
  absl::StatusOr<JobPlan> FindToDelete(const QualifiedName& name, bool force) const;
  void EndAndDelete(const JobPlan& plan, const std::shared_ptr<RoundEngine>& engine,
                    const Done& done);
  void DeleteAtAll(const JobPlan& plan, const Done& done);

  const DeskParts parts_;
  const SnapshotDesk* const snapshots_;
};

}  // namespace ballast::server
