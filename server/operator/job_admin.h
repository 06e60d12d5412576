// JobAdmin: jobs as operators see them. At every server: their status. At the home: durable jobs
// listed, and removed from every disk. A job is removed at the peers first and at the home last, so
// that it stays listed, and can be deleted again, until nothing of it is left anywhere.
// Comes from: the Admin service. Goes to: LocalJobs, the peers.
// Thread safety: JobsApi from any thread; owned by the directory's strand.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/memory_book.h"
#include "server/operator/directory_parts.h"
#include "server/operator/operator_calls.h"

namespace ballast::server {

class JobAdmin final : public JobsApi {
 public:
  using Done = std::function<void(absl::Status)>;

  // `memory` outlives the object.
  JobAdmin(const DirectoryParts& parts, const MemoryBook* memory)
      : parts_(parts), memory_(memory) {}

  void Status(std::function<void(std::vector<JobStatus>)> done) override;
  ServerLoad Load() const override;
  void ListJobs(std::function<void(absl::StatusOr<DurableJobs>)> done) override;
  void DeleteJob(DeleteJobCall call, Done done) override;
  void RetryJob(QualifiedName name, std::function<void(absl::StatusOr<bool>)> done) override;

 private:
  void Collect(const std::function<void(std::vector<JobStatus>)>& done);
  void List(const std::function<void(absl::StatusOr<DurableJobs>)>& done);
  void Delete(const DeleteJobCall& call, const Done& done);
  // The job, if it may be deleted: it is durable, and no snapshot is taken of it at rest.
  absl::StatusOr<JobPlan> FindToDelete(const DeleteJobCall& call) const;
  void EndAndDelete(const JobPlan& plan, const std::shared_ptr<RoundEngine>& engine,
                    const Done& done);
  void DeleteAtAll(const JobPlan& plan, const Done& done);

  const DirectoryParts parts_;
  const MemoryBook* const memory_;
};

}  // namespace ballast::server
