// JobStore: which durable jobs this server has, on disk: a manifest per job (spec, epoch, plan)
// that is replaced as a whole, and the directory of its log and slots.
//
//   <root>/<job id, 16 hex digits>/manifest
//
// The files of a job that has grown lie in a directory of their own, <job>/layout-<version>; what
// else is there is left over.
//
// While a job is made its directory holds a file "making", and one that is removed is first given
// the name <job id>.gone. So what a crash leaves half done is told from a job whose manifest was
// lost: the first is cleared away, the second is reported and kept.
//
// Comes from: JobDirectory. Goes to: common/io files; the manifest's content is encoded by
// functions that the composition root provides (this room knows no protobuf).
// Thread safety: any thread, but one call at a time for a job; every call may block on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file.h"
#include "common/tensor/layout.h"
#include "server/durability/job_storage.h"
#include "server/round/round_types.h"

namespace ballast::server {

// A plan as bytes and back; decoding checks everything, as for a plan that comes from a peer.
struct PlanCodec {
  std::function<std::string(const JobPlan&)> encode;
  std::function<absl::StatusOr<JobPlan>(const std::string&)> decode;
};

class JobStore {
 public:
  // `root` is made when missing. `fs` outlives the store.
  JobStore(FileSystem* fs, std::string root, uint32_t self, uint32_t checkpoint_rounds,
           PlanCodec codec)
      : fs_(fs),
        root_(std::move(root)),
        self_(self),
        checkpoint_rounds_(checkpoint_rounds),
        codec_(std::move(codec)) {}

  // Every job, ascending id, after clearing away what was left half made or half deleted. Errors:
  // DATA_LOSS STATE_LOST for a manifest that is missing or damaged, naming its path.
  absl::StatusOr<std::vector<JobPlan>> Load();

  // The job's manifest; NOT_FOUND when there is no such job.
  absl::StatusOr<JobPlan> Find(uint64_t job);

  // Makes the job's files, then its manifest. Errors: RESOURCE_EXHAUSTED OVER_BUDGET with the bytes
  // needed and free, and then nothing of it is left.
  absl::StatusOr<std::unique_ptr<JobStorage>> Create(const JobPlan& plan);
  // Opens the files of a job that Load found.
  absl::StatusOr<std::unique_ptr<JobStorage>> Open(const JobPlan& plan);
  // Makes files for a grown plan beside those in use, which stay those of the job until the plan is
  // saved. Errors: as Create, and then nothing of it is left.
  absl::StatusOr<std::unique_ptr<JobStorage>> Grow(const JobPlan& plan);
  // Removes what an earlier layout version of the job, or a growth that was broken off, left.
  void DropOutgrown(const JobPlan& plan);
  // What Create takes on server `server`.
  uint64_t DiskBytes(const JobPlan& plan, uint32_t server) const;
  // Replaces the manifest: a new epoch or layout version.
  absl::Status Save(const JobPlan& plan);
  // Removes everything of the job; it may be missing.
  absl::Status Remove(uint64_t job);

 private:
  std::string Directory(uint64_t job) const;
  std::string FilesOf(const JobPlan& plan) const;
  // Create in a directory that is there; what a failed one has made stays.
  absl::StatusOr<std::unique_ptr<JobStorage>> CreateMarked(const JobPlan& plan,
                                                           const Layout& layout,
                                                           const std::string& directory);
  absl::Status Discard(const std::string& directory);
  absl::StatusOr<JobPlan> LoadOne(const std::string& directory);

  FileSystem* const fs_;
  const std::string root_;
  const uint32_t self_;
  const uint32_t checkpoint_rounds_;
  const PlanCodec codec_;
};

}  // namespace ballast::server
