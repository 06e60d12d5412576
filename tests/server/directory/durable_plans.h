// Shared parts of the durable jobs' tests: plans, their real encoding, and disks.
// Comes from: the tests in this folder and those of the round room. Thread safety: pure functions.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/io/memory_disk.h"
#include "server/convert/plan_convert.h"
#include "server/jobs/job_store.h"
#include "server/meta/memory_store.h"
#include "server/recovery/recovery.h"
#include "tests/server/round/plans.h"

namespace ballast::server::testing {

inline const MemoryDisk::Random kKeepAll = [] { return 0; };
inline const MemoryDisk::Random kLoseAll = [] { return 1; };

constexpr char kJobsRoot[] = "/data/jobs";

// Of the logs of all jobs.
constexpr uint64_t kLogSecret = 0x5ec7e7;

// A server's disk, and the metadata store on it, which loses nothing: its own tests crash it.
class DurableDisk : public MemoryDisk {
 public:
  MetaStore* meta() { return meta_.get(); }
  // The data directory is another one; its server is down.
  void Replace() {
    (void)RemoveAll("/data");
    meta_ = std::make_unique<MemoryMetaStore>();
  }

  // The disk with the data directory is not mounted, while the server is down, and then is again.
  void Unmount() {
    (void)Rename("/data", "/unmounted");
    unmounted_ = std::exchange(meta_, std::make_unique<MemoryMetaStore>());
  }
  void Mount() {
    (void)RemoveAll("/data");
    (void)Rename("/unmounted", "/data");
    meta_ = std::move(unmounted_);
  }

 private:
  std::unique_ptr<MemoryMetaStore> meta_ = std::make_unique<MemoryMetaStore>();
  std::unique_ptr<MemoryMetaStore> unmounted_;
};

inline std::unique_ptr<JobStore> MakeStore(FileSystem* disk, MetaStore* meta, uint32_t self = 0) {
  return std::make_unique<JobStore>(disk, kJobsRoot, meta, self, /*checkpoint_rounds=*/1,
                                    MakePlanCodec(), [] { return kLogSecret; });
}
inline std::unique_ptr<JobStore> MakeStore(DurableDisk* disk, uint32_t self = 0) {
  return MakeStore(disk, disk->meta(), self);
}

// A small durable job of two trainers on the servers 0 and 1.
inline JobPlan DurablePlan(uint64_t job = 77) {
  JobPlan plan = MakePlan({300, 40}, /*world=*/2, {0, 1});
  plan.job = job;
  plan.spec.name = "job" + std::to_string(job);
  plan.spec.durability = Durability::kPower;
  return plan;
}

inline std::string JobDirectoryOf(const std::string& id) {
  return std::string(kJobsRoot) + "/" + id;
}

}  // namespace ballast::server::testing
