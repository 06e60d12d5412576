// The doors as the directory has them: each call goes to the part that answers it, on the strand.
// Comes from: Directory. Goes to: Home, LocalJobs and the desks. Thread safety: as the doors'.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/directory/doors.h"
#include "server/directory/heard_box.h"
#include "server/directory/home.h"
#include "server/jobs/local_jobs.h"
#include "server/jobs/long_work.h"
#include "server/jobs/memory_book.h"
#include "server/jobs/owner_strand.h"
#include "server/jobs/this_server.h"
#include "server/operator/export_desk.h"
#include "server/operator/import_desk.h"
#include "server/operator/jobs_desk.h"
#include "server/operator/restore_desk.h"
#include "server/operator/snapshot_desk.h"
#include "server/operator/snapshot_share.h"

namespace ballast::server {

// The parts that the doors call; all outlive them.
struct DoorParts {
  const ThisServer* self = nullptr;
  OwnerStrand* strand = nullptr;
  const MemoryBook* memory = nullptr;
  LongWork* work = nullptr;
  Home* home = nullptr;
  LocalJobs* jobs = nullptr;
  JobsDesk* job_desk = nullptr;
  SnapshotShare* share = nullptr;
  SnapshotDesk* snapshots = nullptr;
  RestoreDesk* restores = nullptr;
  ExportDesk* exports = nullptr;
  ImportDesk* imports = nullptr;
};

class StrandTrainerDoor final : public TrainerDoor {
 public:
  explicit StrandTrainerDoor(const DoorParts& parts) : parts_(parts) {}

  void Attach(AttachCall call, std::function<void(absl::StatusOr<AttachResult>)> done) override {
    parts_.strand->Post([this, call = std::move(call), done = std::move(done)] {
      parts_.home->Attach(call, done);
    });
  }
  void AttachCancelled(const QualifiedName& job, uint32_t slot, uint64_t call) override {
    parts_.strand->Post([=, this] { parts_.home->AttachCancelled(job, slot, call); });
  }
  void Extend(ExtendCall call, std::function<void(absl::StatusOr<JobPlan>)> done) override {
    parts_.strand->Post([this, call = std::move(call), done = std::move(done)] {
      parts_.home->Extend(call, done);
    });
  }
  void Rendezvous(RendezvousCall call,
                  std::function<void(absl::StatusOr<rendezvous::Reply>)> done) override {
    parts_.strand->Post([this, call = std::move(call), done = std::move(done)] {
      parts_.home->Rendezvous(call, done);
    });
  }
  void Heard(uint64_t job, Member rank, Doing doing) override {
    if (!heard_.Put({job, std::move(rank), doing})) return;
    parts_.strand->Post([this] {
      for (const auto& [of, who, said] : heard_.Take()) parts_.home->Heard(of, who, said);
    });
  }

 private:
  const DoorParts parts_;
  HeardBox heard_;
};

class StrandPeerDoor final : public PeerDoor {
 public:
  using Done = std::function<void(absl::Status)>;
  explicit StrandPeerDoor(const DoorParts& parts) : parts_(parts) {}

  void CreateJob(JobPlan plan, Done done) override {
    Post([this, plan = std::move(plan), done = std::move(done)] {
      parts_.home->MakeForHome(plan, Placed(done));
    });
  }
  void ExtendJob(JobPlan plan, Done done) override {
    Post([this, plan = std::move(plan), done = std::move(done)] {
      parts_.jobs->Extend(plan, Placed(done));
    });
  }
  void DropJob(uint64_t job, Done done) override {
    Post([this, job, done = std::move(done)] { parts_.jobs->Remove(job, done); });
  }
  void WhichRest(std::vector<uint64_t> jobs,
                 std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) override {
    Post([this, jobs = std::move(jobs), done = std::move(done)] {
      parts_.home->WhichRest(jobs, done);
    });
  }
  void CompareJobs(JobRoll roll, std::function<void(absl::StatusOr<RollAnswer>)> done) override {
    Post([this, roll = std::move(roll), done = std::move(done)] {
      done(parts_.home->CompareJobs(roll));
    });
  }
  void Seal(const SealCall& call, std::function<void(absl::StatusOr<SealAnswer>)> done) override {
    Post([this, call, done = std::move(done)] { parts_.jobs->Seal(call, done); });
  }
  void AdoptEpoch(JobPlan plan, Done done) override {
    Post(
        [this, plan = std::move(plan), done = std::move(done)] { parts_.jobs->Adopt(plan, done); });
  }
  void Snapshot(SnapshotCall call, std::function<void(absl::StatusOr<uint64_t>)> done) override {
    Post([this, call, done = std::move(done)] {
      parts_.share->Do(call, [done](const absl::StatusOr<SnapshotShare::Answer>& answer) {
        answer.ok() ? done(answer->round) : done(answer.status());
      });
    });
  }
  void RestoreJob(RestoreOrder order,
                  std::function<void(absl::StatusOr<std::string>)> done) override {
    Post([this, order = std::move(order), done = std::move(done)] {
      parts_.restores->MakeShare(order, done);
    });
  }
  void Export(ExportPart part, Done done) override {
    Post([this, part = std::move(part), done = std::move(done)] {
      parts_.exports->WriteShare(part, done);
    });
  }
  void ImportJob(ImportOrder order, Done done) override {
    Post([this, order = std::move(order), done = std::move(done)] {
      parts_.imports->MakeShare(order, done);
    });
  }

 private:
  void Post(std::function<void()> task) { parts_.strand->Post(std::move(task)); }
  // `done`, which gets refusals with the place where they arose.
  Done Placed(Done done) const {
    return [self = parts_.self, done = std::move(done)](const absl::Status& status) {
      done(self->WithPlace(status));
    };
  }

  const DoorParts parts_;
};

class StrandOperatorDoor final : public OperatorDoor {
 public:
  using SnapshotDone = std::function<void(absl::StatusOr<SnapshotInfo>)>;
  explicit StrandOperatorDoor(const DoorParts& parts) : parts_(parts) {}

  void Status(std::function<void(std::vector<JobStatus>)> done) override {
    Post([this, done = std::move(done)] { parts_.job_desk->Status(done); });
  }
  std::vector<std::shared_ptr<const Work>> ListWorks() const override {
    return parts_.work->works()->List();
  }
  uint64_t memory_used_bytes() const override { return parts_.memory->used_bytes(); }
  uint64_t memory_budget_bytes() const override { return parts_.memory->budget_bytes(); }

  std::vector<TenantUse> TenantUses() const override { return parts_.memory->quotas().Uses(); }
  TenantUse TenantUseOf(const std::string& tenant) const override {
    return parts_.memory->quotas().UseOf(tenant);
  }

  void ListJobs(std::function<void(absl::StatusOr<DurableJobs>)> done) override {
    Post([this, done = std::move(done)] { parts_.job_desk->List(done); });
  }
  void DeleteJob(const QualifiedName& name, bool force,
                 std::function<void(absl::Status)> done) override {
    Post([=, this, done = std::move(done)] { parts_.job_desk->Delete(name, force, done); });
  }
  void RetryJob(const QualifiedName& name,
                std::function<void(absl::StatusOr<bool>)> done) override {
    Post([=, this, done = std::move(done)] { done(parts_.jobs->Retry(name)); });
  }

  void CreateSnapshot(const QualifiedName& job, const std::string& name, uint32_t keep,
                      SnapshotDone done) override {
    Post([=, this, done = std::move(done)] { parts_.snapshots->Create(job, name, keep, done); });
  }
  void ListSnapshots(SnapshotFilter filter,
                     std::function<void(absl::StatusOr<std::vector<SnapshotInfo>>)> done) override {
    Post([=, this, done = std::move(done)] { parts_.snapshots->List(filter, done); });
  }
  void VerifySnapshot(const QualifiedName& job, const std::string& name,
                      SnapshotDone done) override {
    Post([=, this, done = std::move(done)] { parts_.snapshots->Verify(job, name, done); });
  }
  void DeleteSnapshot(const QualifiedName& job, const std::string& name,
                      SnapshotDone done) override {
    Post([=, this, done = std::move(done)] { parts_.snapshots->Delete(job, name, done); });
  }
  void RestoreSnapshot(RestoreCall call,
                       std::function<void(absl::StatusOr<RestoredJob>)> done) override {
    Post([this, call = std::move(call), done = std::move(done)] {
      parts_.restores->Restore(call, parts_.work->UnderWay(done));
    });
  }
  void Export(ExportCall call, std::function<void(absl::StatusOr<ExportInfo>)> done) override {
    Post([this, call = std::move(call), done = std::move(done)] {
      parts_.exports->Export(call, parts_.work->UnderWay(done));
    });
  }
  void Import(ImportCall call, std::function<void(absl::StatusOr<ImportInfo>)> done) override {
    Post([this, call = std::move(call), done = std::move(done)] {
      parts_.imports->Import(call, parts_.work->UnderWay(done));
    });
  }

 private:
  void Post(std::function<void()> task) { parts_.strand->Post(std::move(task)); }

  const DoorParts parts_;
};

}  // namespace ballast::server
