// Directory: JobDirectory's one implementation. It puts the parts together, and gives each call to
// the part that answers it, on the strand that they share.
// Comes from: JobDirectory::Create. Goes to: Home, LocalJobs and the desks.
// Thread safety: public methods post to the strand; Find, ListWorks and the memory figures do not.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/cluster/desk_parts.h"
#include "server/cluster/export_desk.h"
#include "server/cluster/home.h"
#include "server/cluster/import_desk.h"
#include "server/cluster/job_directory.h"
#include "server/cluster/job_maker.h"
#include "server/cluster/jobs_desk.h"
#include "server/cluster/local_jobs.h"
#include "server/cluster/restore_desk.h"
#include "server/cluster/share_maker.h"
#include "server/cluster/snapshot_desk.h"
#include "server/cluster/snapshot_share.h"

namespace ballast::server {

class Directory final : public JobDirectory, public std::enable_shared_from_this<Directory> {
 public:
  Directory(const DirectoryConfig& config, const EngineDeps& deps, PeerLink* peers,
            std::unique_ptr<JobStore> store, DirectorySnapshots snapshots);
  // Waits for the threads for the disk, which use the parts.
  ~Directory() override { work_.Join(); }
  // Connects the strand; called once, when a shared_ptr holds the directory.
  void Connect() { strand_.SetOwner(weak_from_this()); }

  absl::Status Recover() override;
  void StartRecovered() override;

  void Attach(AttachCall call, AttachDone done) override {
    Post([this, call = std::move(call), done = std::move(done)] { home_.Attach(call, done); });
  }
  void AttachCancelled(const std::string& job, uint32_t slot, uint64_t call) override {
    Post([=, this] { home_.AttachCancelled(job, slot, call); });
  }
  void Extend(ExtendCall call, ExtendDone done) override {
    Post([this, call = std::move(call), done = std::move(done)] { home_.Extend(call, done); });
  }
  void PeerCreateJob(JobPlan plan, std::function<void(absl::Status)> done) override {
    Post([this, plan = std::move(plan), done = std::move(done)] { home_.MakeForHome(plan, done); });
  }
  void PeerExtendJob(JobPlan plan, std::function<void(absl::Status)> done) override {
    Post([this, plan = std::move(plan), done = std::move(done)] { jobs_.Extend(plan, done); });
  }
  void PeerDropJob(uint64_t job, std::function<void(absl::Status)> done) override {
    Post([this, job, done = std::move(done)] { jobs_.Remove(job, done); });
  }
  void ListJobs(std::function<void(absl::StatusOr<DurableJobs>)> done) override {
    Post([this, done = std::move(done)] { job_list_.List(done); });
  }
  void DeleteJob(const std::string& name, bool force,
                 std::function<void(absl::Status)> done) override {
    Post([this, name, force, done = std::move(done)] { job_list_.Delete(name, force, done); });
  }
  void PeerWhichRest(std::vector<uint64_t> jobs,
                     std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) override {
    Post([this, jobs = std::move(jobs), done = std::move(done)] { home_.WhichRest(jobs, done); });
  }
  void PeerSeal(uint64_t job, uint32_t epoch,
                std::function<void(absl::StatusOr<SealAnswer>)> done) override {
    Post([this, job, epoch, done = std::move(done)] { jobs_.Seal(job, epoch, done); });
  }
  void PeerAdoptEpoch(JobPlan plan, std::function<void(absl::Status)> done) override {
    Post([this, plan = std::move(plan), done = std::move(done)] { jobs_.Adopt(plan, done); });
  }

  void CreateSnapshot(const std::string& job, const std::string& name, uint32_t keep,
                      std::function<void(absl::StatusOr<SnapshotInfo>)> done) override {
    Post([=, this, done = std::move(done)] { snapshots_.Create(job, name, keep, done); });
  }
  void ListSnapshots(const std::string& job,
                     std::function<void(absl::StatusOr<std::vector<SnapshotInfo>>)> done) override {
    Post([=, this, done = std::move(done)] { snapshots_.List(job, done); });
  }
  void VerifySnapshot(const std::string& job, const std::string& name,
                      std::function<void(absl::StatusOr<SnapshotInfo>)> done) override {
    Post([=, this, done = std::move(done)] { snapshots_.Verify(job, name, done); });
  }
  void DeleteSnapshot(const std::string& job, const std::string& name,
                      std::function<void(absl::StatusOr<SnapshotInfo>)> done) override {
    Post([=, this, done = std::move(done)] { snapshots_.Delete(job, name, done); });
  }
  void RestoreSnapshot(RestoreCall call,
                       std::function<void(absl::StatusOr<RestoredJob>)> done) override {
    Post([this, call = std::move(call), done = std::move(done)] {
      restores_.Restore(call, work_.UnderWay(done));
    });
  }
  void PeerSnapshot(SnapshotCall call,
                    std::function<void(absl::StatusOr<uint64_t>)> done) override {
    Post([this, call, done = std::move(done)] {
      share_.Do(call, [done](const absl::StatusOr<SnapshotShare::Answer>& answer) {
        answer.ok() ? done(answer->round) : done(answer.status());
      });
    });
  }
  void PeerRestoreJob(RestoreOrder order,
                      std::function<void(absl::StatusOr<std::string>)> done) override {
    Post([this, order = std::move(order), done = std::move(done)] {
      restores_.MakeShare(order, done);
    });
  }

  void Export(ExportCall call, std::function<void(absl::StatusOr<ExportInfo>)> done) override {
    Post([this, call = std::move(call), done = std::move(done)] {
      exports_.Export(call, work_.UnderWay(done));
    });
  }
  void Import(ImportCall call, std::function<void(absl::StatusOr<ImportInfo>)> done) override {
    Post([this, call = std::move(call), done = std::move(done)] {
      imports_.Import(call, work_.UnderWay(done));
    });
  }
  std::vector<std::shared_ptr<const Work>> ListWorks() const override {
    return work_.works()->List();
  }
  void PeerExport(ExportPart part, std::function<void(absl::Status)> done) override {
    Post([this, part = std::move(part), done = std::move(done)] {
      exports_.WriteShare(part, done);
    });
  }
  void PeerImportJob(ImportOrder order, std::function<void(absl::Status)> done) override {
    Post([this, order = std::move(order), done = std::move(done)] {
      imports_.MakeShare(order, done);
    });
  }

  std::shared_ptr<RoundEngine> Find(uint64_t job) override { return jobs_.Find(job); }

  void PeerLost(uint32_t server, const std::string& why) override;
  void Snapshot(std::function<void(std::vector<JobSnapshot>)> done) override {
    Post([this, done = std::move(done)] { DoSnapshot(done); });
  }
  void Shutdown(std::function<void()> done) override;

  uint64_t memory_used_bytes() const override { return memory_.used_bytes(); }
  uint64_t memory_budget_bytes() const override { return memory_.budget_bytes(); }

 private:
  void Post(std::function<void()> task) { strand_.Post(std::move(task)); }
  DeskParts Parts();
  void DoSnapshot(const std::function<void(std::vector<JobSnapshot>)>& done);

  // In the order of construction; a part that stands before another may point to that.
  ThisServer self_;
  const std::unique_ptr<JobStore> store_;  // may be null
  PeerLink* const peers_;
  OwnerStrand strand_;
  MemoryBook memory_;
  LongWork work_;
  RestingHolds holds_;
  SnapshotFiles files_;
  LocalJobs jobs_;
  SnapshotShare share_;
  SnapshotDesk snapshots_;
  Home home_;
  JobMaker maker_;
  ShareMaker shares_;
  RestoreDesk restores_;
  ExportDesk exports_;
  ImportDesk imports_;
  JobsDesk job_list_;
};

}  // namespace ballast::server
