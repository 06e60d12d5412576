// JobStore: what is on disk of a job, whatever happens while it is made, changed or removed.
#include "server/cluster/job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <random>

#include "common/base/reason.h"
#include "tests/server/cluster/durable_plans.h"
#include "tests/server/cluster/power_cut.h"

namespace ballast::server {
namespace {

using testing::DurablePlan;
using ::testing::HasSubstr;
using testing::kJobsRoot;
using testing::kKeepAll;
using testing::kLoseAll;
using testing::MakeStore;
using testing::PowerCut;
using testing::ProtoCodec;

constexpr char kDirectory77[] = "/data/jobs/000000000000004d";
constexpr char kManifest77[] = "/data/jobs/000000000000004d/manifest";

std::string Encoded(const JobPlan& plan) { return ProtoCodec().encode(plan); }

// A disk on which the server has been started once.
std::unique_ptr<MemoryDisk> NewDisk() {
  auto disk = std::make_unique<MemoryDisk>();
  EXPECT_TRUE(MakeStore(disk.get())->Load().ok());
  return disk;
}

std::vector<std::string> JobsOf(MemoryDisk* disk) {
  std::vector<std::string> jobs;
  const auto plans = MakeStore(disk)->Load();
  EXPECT_TRUE(plans.ok()) << plans.status();
  for (const JobPlan& plan : plans.value_or(std::vector<JobPlan>())) jobs.push_back(Encoded(plan));
  return jobs;
}

// The disk as a restarted server needs it: every job that is listed can be opened, and nothing of
// any other is left. Returns how many jobs there are.
size_t CheckWholeJobsOnly(MemoryDisk* disk, const std::string& what) {
  const auto store = MakeStore(disk);
  const absl::StatusOr<std::vector<JobPlan>> plans = store->Load();
  EXPECT_TRUE(plans.ok()) << what << ": " << plans.status();
  if (!plans.ok()) return 0;
  for (const JobPlan& plan : *plans) {
    const auto opened = store->Open(plan);
    EXPECT_TRUE(opened.ok()) << what << ": " << opened.status();
  }
  const auto names = disk->List(kJobsRoot);
  EXPECT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(names->size(), plans->size()) << what << ": " << ::testing::PrintToString(*names);
  return plans->size();
}

TEST(JobStoreTest, WhatWasCreatedIsFoundAgainAndCanBeOpened) {
  const auto disk = NewDisk();
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(77)).ok());
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(5)).ok());
  disk->Crash(kLoseAll);
  EXPECT_EQ(JobsOf(disk.get()),
            (std::vector<std::string>{Encoded(DurablePlan(5)), Encoded(DurablePlan(77))}))
      << "ascending id";
  EXPECT_EQ(CheckWholeJobsOnly(disk.get(), ""), 2u);
}

// A server that ended before it could flush them leaves directories that the next one finds there.
TEST(JobStoreTest, TheDirectoriesOnTheWaySurviveWhoeverMadeThem) {
  for (const char* root : {"/a/b/data/jobs", "a/b/data/jobs", "jobs"}) {
    MemoryDisk disk;
    ASSERT_TRUE(disk.MakeDirectory(root).ok());
    {
      JobStore store(&disk, root, 0, 2, ProtoCodec());
      ASSERT_TRUE(store.Load().ok());
      ASSERT_TRUE(store.Create(DurablePlan(77)).ok());
    }
    disk.Crash(kLoseAll);
    const auto plans = JobStore(&disk, root, 0, 2, ProtoCodec()).Load();
    ASSERT_TRUE(plans.ok()) << plans.status();
    EXPECT_EQ(plans->size(), 1u) << root;
  }
}

TEST(JobStoreTest, SaveReplacesTheWholePlan) {
  const auto disk = NewDisk();
  const auto store = MakeStore(disk.get());
  JobPlan plan = DurablePlan();
  ASSERT_TRUE(store->Create(plan).ok());
  plan.epoch.epoch = 4;
  plan.epoch.start_round = 9;
  plan.epoch.members[1].incarnation = 42;
  plan.sealed_epoch = 4;
  plan.resting = true;
  ASSERT_TRUE(store->Save(plan).ok());
  disk->Crash(kLoseAll);
  EXPECT_EQ(JobsOf(disk.get()), std::vector<std::string>{Encoded(plan)});
  EXPECT_EQ(Encoded(*MakeStore(disk.get())->Find(77)), Encoded(plan));
}

TEST(JobStoreTest, RemoveLeavesNothing) {
  const auto disk = NewDisk();
  const auto store = MakeStore(disk.get());
  ASSERT_TRUE(store->Create(DurablePlan(77)).ok());
  ASSERT_TRUE(store->Create(DurablePlan(5)).ok());
  ASSERT_TRUE(store->Remove(77).ok());
  EXPECT_EQ(JobsOf(disk.get()), std::vector<std::string>{Encoded(DurablePlan(5))});
  disk->Crash(kLoseAll);
  EXPECT_EQ(JobsOf(disk.get()), std::vector<std::string>{Encoded(DurablePlan(5))});
  EXPECT_TRUE(store->Remove(77).ok()) << "it may be gone";
  EXPECT_EQ(store->Find(77).status().code(), absl::StatusCode::kNotFound);
}

// What can be left after a power loss: everything written, nothing unsynced, and mixtures.
std::vector<MemoryDisk::Random> Moods(uint64_t seed) {
  std::vector<MemoryDisk::Random> moods = {kKeepAll, kLoseAll};
  for (uint64_t i = 0; i < 6; ++i) {
    moods.push_back(
        [random = std::make_shared<std::mt19937_64>(seed * 100 + i)] { return (*random)(); });
  }
  return moods;
}

TEST(JobStoreTest, PowerLossAtAnyMomentOfCreateLeavesAWholeJobOrNothing) {
  bool finished = false;
  for (uint64_t at = 0; !finished; ++at) {
    for (size_t mood = 0; mood < Moods(at).size(); ++mood) {
      const std::string what = "operation " + std::to_string(at) + " mood " + std::to_string(mood);
      const auto disk = NewDisk();
      ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(5)).ok());
      bool created = false;
      {
        PowerCut power(disk.get(), at);
        created = MakeStore(&power)->Create(DurablePlan(77)).ok();
        finished = !power.off();
      }
      disk->Crash(Moods(at)[mood]);
      const size_t jobs = CheckWholeJobsOnly(disk.get(), what);
      EXPECT_GE(jobs, created ? 2u : 1u) << what;
    }
  }
}

TEST(JobStoreTest, PowerLossAtAnyMomentOfRemoveLeavesAWholeJobOrNothing) {
  bool finished = false;
  for (uint64_t at = 0; !finished; ++at) {
    for (size_t mood = 0; mood < Moods(at).size(); ++mood) {
      const std::string what = "operation " + std::to_string(at) + " mood " + std::to_string(mood);
      const auto disk = NewDisk();
      ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(77)).ok());
      bool removed = false;
      {
        PowerCut power(disk.get(), at);
        removed = MakeStore(&power)->Remove(77).ok();
        finished = !power.off();
      }
      disk->Crash(Moods(at)[mood]);
      const size_t jobs = CheckWholeJobsOnly(disk.get(), what);
      if (removed) {
        EXPECT_EQ(jobs, 0u) << what;
      }
    }
  }
}

TEST(JobStoreTest, PowerLossWhileLeftoversAreClearedAwayLeavesLeftovers) {
  for (uint64_t at = 0; at < 12; ++at) {
    for (size_t mood = 0; mood < Moods(at).size(); ++mood) {
      const auto disk = NewDisk();
      {
        PowerCut power(disk.get(), 12);  // Some files are there, the manifest is not.
        EXPECT_FALSE(MakeStore(&power)->Create(DurablePlan(77)).ok());
      }
      disk->Crash(kKeepAll);
      {
        PowerCut power(disk.get(), at);
        (void)MakeStore(&power)->Load();
      }
      disk->Crash(Moods(at)[mood]);
      EXPECT_EQ(CheckWholeJobsOnly(disk.get(), "operation " + std::to_string(at)), 0u);
    }
  }
}

TEST(JobStoreTest, PowerLossAtAnyMomentOfSaveLeavesTheOldPlanOrTheNew) {
  JobPlan next = DurablePlan();
  next.epoch.epoch = 2;
  next.epoch.start_round = 3;
  bool finished = false;
  for (uint64_t at = 0; !finished; ++at) {
    for (const MemoryDisk::Random& mood : Moods(at)) {
      const auto disk = NewDisk();
      ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan()).ok());
      bool saved = false;
      {
        PowerCut power(disk.get(), at);
        saved = MakeStore(&power)->Save(next).ok();
        finished = !power.off();
      }
      disk->Crash(mood);
      const std::vector<std::string> jobs = JobsOf(disk.get());
      ASSERT_EQ(jobs.size(), 1u);
      EXPECT_TRUE(jobs[0] == Encoded(next) || (!saved && jobs[0] == Encoded(DurablePlan())))
          << "operation " << at;
    }
  }
}

// A disk that refuses one operation and then works again.
TEST(JobStoreTest, ACreateThatADiskErrorEndsLeavesNothing) {
  using Operation = MemoryDisk::Operation;
  for (const Operation operation : {Operation::kOpen, Operation::kWrite, Operation::kAllocate,
                                    Operation::kSync, Operation::kRename}) {
    absl::Status status = absl::UnknownError("not tried");
    for (uint64_t nth = 1; !status.ok(); ++nth) {
      const auto disk = NewDisk();
      disk->Fail(operation, nth, EIO);
      status = MakeStore(disk.get())->Create(DurablePlan()).status();
      if (status.ok()) break;
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_TRUE(disk->Paths().empty()) << ::testing::PrintToString(disk->Paths());
      EXPECT_EQ(CheckWholeJobsOnly(disk.get(), std::string(status.message())), 0u);
      ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan()).ok()) << "the id is free again";
    }
  }
}

TEST(JobStoreTest, AMissingManifestIsStateLostAndNothingIsDeleted) {
  const auto disk = NewDisk();
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan()).ok());
  ASSERT_TRUE(disk->Remove(kManifest77).ok());
  const std::vector<std::string> before = disk->Paths();
  const absl::Status status = MakeStore(disk.get())->Load().status();
  EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kDirectory77));
  EXPECT_EQ(disk->Paths(), before);
}

TEST(JobStoreTest, AnyFlippedBitOfAManifestIsStateLostOrAnOtherVersion) {
  const auto reference = NewDisk();
  ASSERT_TRUE(MakeStore(reference.get())->Create(DurablePlan()).ok());
  const auto size = ReadWholeFile(reference.get(), kManifest77, 1 << 20)->size();
  for (uint64_t byte = 0; byte < size; ++byte) {
    ASSERT_TRUE(reference->FlipBit(kManifest77, byte, static_cast<int>(byte % 8)).ok());
    const std::vector<std::string> before = reference->Paths();
    const absl::Status status = MakeStore(reference.get())->Load().status();
    if (byte >= 8 && byte < 12) {  // The format version.
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    } else {
      EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << "byte " << byte << ": " << status;
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr(kManifest77));
    EXPECT_EQ(reference->Paths(), before);
    ASSERT_TRUE(reference->FlipBit(kManifest77, byte, static_cast<int>(byte % 8)).ok());
  }
  EXPECT_EQ(CheckWholeJobsOnly(reference.get(), "all bits as they were"), 1u);
}

TEST(JobStoreTest, AManifestCutOffAnywhereIsStateLost) {
  const auto disk = NewDisk();
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan()).ok());
  const std::string whole = *ReadWholeFile(disk.get(), kManifest77, 1 << 20);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    ASSERT_TRUE(ReplaceFile(disk.get(), kManifest77, whole.substr(0, bytes)).ok());
    const absl::Status status = MakeStore(disk.get())->Load().status();
    EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << bytes << " bytes: " << status;
  }
}

TEST(JobStoreTest, AManifestOfAnotherJobIsStateLost) {
  const auto disk = NewDisk();
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(77)).ok());
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(5)).ok());
  const std::string other =
      *ReadWholeFile(disk.get(), "/data/jobs/0000000000000005/manifest", 4096);
  ASSERT_TRUE(ReplaceFile(disk.get(), kManifest77, other).ok());
  const absl::Status status = MakeStore(disk.get())->Load().status();
  EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kDirectory77));
}

TEST(JobStoreTest, AnotherFormatVersionIsRefusedByNumber) {
  const auto disk = NewDisk();
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan()).ok());
  std::string bytes = *ReadWholeFile(disk.get(), kManifest77, 1 << 20);
  bytes[8] = 9;
  ASSERT_TRUE(ReplaceFile(disk.get(), kManifest77, bytes).ok());
  const absl::Status status = MakeStore(disk.get())->Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(kManifest77));
  EXPECT_THAT(std::string(status.message()), HasSubstr("format version 9"));
}

TEST(JobStoreTest, ADiskThatIsTooSmallIsRefusedWithTheNumbersAndNothingIsLeft) {
  const auto disk = NewDisk();
  const JobPlan plan = DurablePlan();
  const uint64_t needed =
      JobStorage::DiskBytes(StorageOptionsOf(plan, *LayoutOfSpec(plan.spec), 0, 1));
  disk->SetCapacity(needed - 1);
  const absl::Status status = MakeStore(disk.get())->Create(plan).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), Reason::kOverBudget);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(needed) + " bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(needed - 1) + " are free"));
  EXPECT_TRUE(disk->Paths().empty());
  EXPECT_EQ(CheckWholeJobsOnly(disk.get(), "too small"), 0u);
}

// Votes of a job of many tensors are larger than its gradients.
TEST(JobStoreTest, AJobOfManyTensorsHasRoomForItsRecords) {
  constexpr uint32_t kTensors = 30'000;
  const auto disk = NewDisk();
  JobPlan plan = testing::MakePlan(std::vector<int64_t>(kTensors, 1), 1, {0});
  plan.spec.durability = Durability::kPower;
  auto storage = MakeStore(disk.get())->Create(plan);
  ASSERT_TRUE(storage.ok()) << storage.status();
  for (uint64_t round = 1; round <= 3; ++round) {
    PreparedRecord prepared{.epoch = 1, .round = round};
    prepared.present.assign(kTensors, true);
    prepared.tensor_step.assign(kTensors, round);
    prepared.vote.norms.resize(plan.owner.size());
    // No two tensors have taken equally many steps.
    for (uint32_t t = 0; t < kTensors; ++t) {
      prepared.vote.scalars.push_back({0, t, std::vector<uint32_t>(7, t)});
    }
    ASSERT_TRUE((*storage)->log()->AppendPrepared(prepared).ok());
    DecisionRecord decision{.epoch = 1, .round = round};
    decision.decision.scalars = prepared.vote.scalars;
    decision.decision.grad_scale = {1};
    const absl::Status appended = (*storage)->log()->AppendDecision(decision);
    ASSERT_TRUE(appended.ok()) << appended;
    const auto options = StorageOptionsOf(plan, testing::LayoutOf(plan), 0, 1);
    EXPECT_LE(EncodePrepared(prepared).size() + EncodeDecision(decision).size(),
              options.record_bytes);
  }
}

TEST(JobStoreTest, WhatIsNotAJobIsLeftAlone) {
  const auto disk = NewDisk();
  for (const char* name : {"lost+found", "0000000000000000", "5", "000000000000004d.old"}) {
    ASSERT_TRUE(disk->MakeDirectory(std::string(kJobsRoot) + "/" + name).ok());
    ASSERT_TRUE(ReplaceFile(disk.get(), std::string(kJobsRoot) + "/" + name + "/x", "x").ok());
  }
  const auto plans = MakeStore(disk.get())->Load();
  ASSERT_TRUE(plans.ok()) << plans.status();
  EXPECT_TRUE(plans->empty());
  EXPECT_EQ(disk->Paths().size(), 4u);
}

}  // namespace
}  // namespace ballast::server
