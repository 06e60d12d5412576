// JobStore: which durable jobs this server has: a record per job in the metadata store
// (job_records.h), and the directory of its log and images.
//
//   <root>/<job id, 16 hex digits>/
//
// The files of a grown job lie in a directory of their own, <job>/layout-<version>; all other files
// there are left over.
//
// While a job is made its directory holds a file "making", and its record comes last. A removal
// first renames the directory to <job id>.gone, then deletes the record. So after a crash a
// half-made or half-deleted job looks different from a job whose record or directory was lost: the
// first is cleared away, the second is reported and kept.
//
// At the home a file "<job id>.ordered" marks a job being made of a snapshot or an export. It is
// written before the first order to another server, and removed after the home's own record, which
// comes last, or once all other servers have dropped the job. So a home that crashed in between
// still knows which shares the others may hold.
//
// Comes from: LocalJobs, JobMaker, ShareMaker. Goes to: common/io files, MetaStore.
// Thread safety: any thread, but one call at a time for a job; every call may block on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file.h"
#include "common/tensor/layout.h"
#include "server/durability/job_storage.h"
#include "server/jobs/job_records.h"
#include "server/quota/quotas.h"
#include "server/round/round_types.h"

namespace ballast::server {

class JobStore {
 public:
  // A number that no trainer can guess, not 0, and another one at each call: see
  // LogOptions::secret.
  using NewSecret = std::function<uint64_t()>;

  // `root` is made when missing. `fs` and `meta` outlive the store.
  JobStore(FileSystem* fs, std::string root, MetaStore* meta, uint32_t self,
           uint32_t checkpoint_rounds, PlanCodec codec, NewSecret new_secret)
      : fs_(fs),
        root_(std::move(root)),
        self_(self),
        checkpoint_rounds_(checkpoint_rounds),
        new_secret_(std::move(new_secret)),
        records_(meta, std::move(codec)) {}
  virtual ~JobStore() = default;

  // Charges the jobs' disk space to `quotas` from now on. Before all other calls.
  void CountIn(std::shared_ptr<Quotas> quotas) { quotas_ = std::move(quotas); }

  struct Found {
    JobPlan plan;        // its record
    absl::Status files;  // of its directory: that it is missing or cannot be read
  };
  // Every job, ascending id, after clearing away half-made, half-deleted and half-marked ones.
  // Errors, all of the metadata store: DATA_LOSS STATE_LOST for a directory without a record and
  // for a damaged record, naming the path; nothing of that job is changed then.
  absl::StatusOr<std::vector<Found>> Load();

  // The job's record; NOT_FOUND when there is no such job.
  absl::StatusOr<JobPlan> Find(uint64_t job) const { return records_.Find(job); }

  // The job of this name; NOT_FOUND when there is none.
  absl::StatusOr<JobPlan> FindNamed(const QualifiedName& name) const;
  // Every job with a record. Errors as JobRecords::Names and Find.
  absl::StatusOr<std::vector<JobPlan>> All() const;
  // Where the job's files are.
  std::string Directory(uint64_t job) const;
  // In that: where those of the plan's layout version are.
  std::string FilesOf(const JobPlan& plan) const;

  // Makes the job's files, then its record. Errors: RESOURCE_EXHAUSTED OVER_BUDGET with the bytes
  // needed and free, OVER_QUOTA; and then nothing of it is left.
  // For a job that continues another one's state, `fill` writes this state and the end of its log
  // before the record declares the job complete; its errors, too.
  using Fill = std::function<absl::Status(JobStorage*)>;
  virtual absl::StatusOr<std::unique_ptr<JobStorage>> Create(const JobPlan& plan,
                                                             const Fill& fill = nullptr);
  // Opens the files of a job that Load found. Errors: DATA_LOSS STATE_LOST naming job and file.
  virtual absl::StatusOr<std::unique_ptr<JobStorage>> Open(const JobPlan& plan);
  // Makes files for a grown plan in addition to those in use, which remain the job's until the plan
  // is saved. Errors: as Create, and then nothing of it is left.
  absl::StatusOr<std::unique_ptr<JobStorage>> Grow(const JobPlan& plan);
  // Removes the files of earlier layout versions of the job and of an interrupted growth.
  void DropOutgrown(const JobPlan& plan);
  // What Create takes on server `server`.
  uint64_t DiskBytes(const JobPlan& plan, uint32_t server) const;
  // Replaces the record: a new epoch or layout version. Errors as JobRecords::Save.
  absl::Status Save(const JobPlan& plan) { return records_.Save(plan); }
  // Removes everything of the job; it may be missing. After an error the job is whole or its
  // removal has begun; call again. Errors: FileSystem's, JobRecords'.
  absl::Status Remove(uint64_t job);

  // At the home: other servers are about to make their share of the job. Returns when that
  // survives. After an error, which is FileSystem's, no mark is left.
  absl::Status MarkOrdered(uint64_t job);
  // The home has a record of the job, or the others have nothing of it. It may be missing.
  absl::Status ClearOrdered(uint64_t job);
  // Whether it is marked. What cannot be read is not.
  bool IsOrdered(uint64_t job) const;
  // Marked jobs without a record at this server: the others may hold shares of them. Clears the
  // marks of complete jobs. Errors as FileSystem's and JobRecords'.
  absl::StatusOr<std::vector<uint64_t>> OrderedOnly();

 protected:
  // Sizes of the job's files on server `server`; the simulator has smaller ones.
  virtual StorageOptions SizesOf(const JobPlan& plan, const Layout& layout, uint32_t server) const;

 private:
  // Jobs with a directory, after finishing interrupted removals.
  absl::StatusOr<std::set<uint64_t>> FinishRemovals();
  // The job of an existing directory; nullopt if it was half made, and is now deleted.
  absl::StatusOr<std::optional<Found>> LoadOne(uint64_t job);
  // Adds the jobs whose directory is not there to those of `found`.
  absl::Status AddWithoutDirectory(std::vector<Found>* found) const;
  // Create in an existing directory; a failed call leaves its files.
  absl::StatusOr<std::unique_ptr<JobStorage>> CreateMarked(const JobPlan& plan,
                                                           const Layout& layout,
                                                           const std::string& directory,
                                                           const Fill& fill);
  // Gives the directory its last name, for good. It may be missing, or have that name already.
  absl::Status MoveAway(const std::string& directory);
  absl::Status Discard(const std::string& directory);
  // Grow in a directory that may hold files of an earlier attempt.
  absl::StatusOr<std::unique_ptr<JobStorage>> GrowFiles(const JobPlan& plan);
  // For new and existing files.
  StorageOptions OptionsOf(const JobPlan& plan, const Layout& layout) const;
  Amounts AmountsOf(const JobPlan& plan) const;
  std::string OrderedPath(uint64_t job) const;

  FileSystem* const fs_;
  const std::string root_;
  const uint32_t self_;
  const uint32_t checkpoint_rounds_;
  const NewSecret new_secret_;
  JobRecords records_;
  std::shared_ptr<Quotas> quotas_ = std::make_shared<Quotas>();
};

}  // namespace ballast::server
