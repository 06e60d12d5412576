// JobStore: the files of a job on disk through every failure while it is made, changed or removed.
#include "server/jobs/job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "server/round/job_plan.h"
#include "tests/server/directory/durable_plans.h"
#include "tests/server/directory/power_cut.h"

namespace ballast::server {
namespace {

using testing::DurableDisk;
using testing::DurablePlan;
using ::testing::HasSubstr;
using testing::kJobsRoot;
using testing::kKeepAll;
using testing::kLogSecret;
using testing::kLoseAll;
using testing::MakeStore;
using testing::PowerCut;
using testing::PowerCutMeta;

constexpr char kDirectory77[] = "/data/jobs/000000000000004d";

std::string Encoded(const JobPlan& plan) { return MakePlanCodec().encode(plan); }

// A disk on which the server has been started once.
std::unique_ptr<DurableDisk> NewDisk() {
  auto disk = std::make_unique<DurableDisk>();
  EXPECT_TRUE(MakeStore(disk.get())->Load().ok());
  return disk;
}

std::vector<std::string> JobsOf(DurableDisk* disk) {
  std::vector<std::string> jobs;
  const auto found = MakeStore(disk)->Load();
  EXPECT_TRUE(found.ok()) << found.status();
  for (const JobStore::Found& one : found.value_or(std::vector<JobStore::Found>())) {
    EXPECT_TRUE(one.files.ok()) << one.files;
    jobs.push_back(Encoded(one.plan));
  }
  return jobs;
}

// The disk as a restarted server needs it: every job that is listed can be opened, and nothing of
// any other is left. Returns how many jobs there are.
size_t CheckWholeJobsOnly(DurableDisk* disk, const std::string& what) {
  const auto store = MakeStore(disk);
  const auto plans = store->Load();
  EXPECT_TRUE(plans.ok()) << what << ": " << plans.status();
  if (!plans.ok()) return 0;
  for (const auto& [plan, files] : *plans) {
    EXPECT_TRUE(files.ok()) << what << ": " << files;
    const auto opened = store->Open(plan);
    EXPECT_TRUE(opened.ok()) << what << ": " << opened.status();
  }
  const auto names = disk->List(kJobsRoot);
  EXPECT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(names->size(), plans->size()) << what << ": " << ::testing::PrintToString(*names);
  return plans->size();
}

TEST(JobStoreTest, ACreatedJobIsFoundAndOpened) {
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
    DurableDisk disk;
    ASSERT_TRUE(disk.MakeDirectory(root).ok());
    {
      JobStore store(&disk, root, disk.meta(), 0, 2, MakePlanCodec(), [] { return kLogSecret; });
      ASSERT_TRUE(store.Load().ok());
      ASSERT_TRUE(store.Create(DurablePlan(77)).ok());
    }
    disk.Crash(kLoseAll);
    JobStore store(&disk, root, disk.meta(), 0, 2, MakePlanCodec(), [] { return kLogSecret; });
    const auto plans = store.Load();
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

// A store whose server loses power at the `at`th operation.
struct CutStore {
  CutStore(DurableDisk* disk, uint64_t at)
      : power(disk, at), meta(&power, disk->meta()), store(MakeStore(&power, &meta)) {}

  PowerCut power;
  PowerCutMeta meta;
  const std::unique_ptr<JobStore> store;
};

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
        CutStore cut(disk.get(), at);
        created = cut.store->Create(DurablePlan(77)).ok();
        finished = !cut.power.off();
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
        CutStore cut(disk.get(), at);
        removed = cut.store->Remove(77).ok();
        finished = !cut.power.off();
      }
      disk->Crash(Moods(at)[mood]);
      const size_t jobs = CheckWholeJobsOnly(disk.get(), what);
      if (removed) {
        EXPECT_EQ(jobs, 0u) << what;
      }
    }
  }
}

// A disk that refuses one operation and then works again.
TEST(JobStoreTest, ARemovalThatADiskErrorEndsLeavesTheJobWholeOrWithoutARecord) {
  using Operation = MemoryDisk::Operation;
  for (const Operation operation : {Operation::kRename, Operation::kSync, Operation::kRemove}) {
    absl::Status status = absl::UnknownError("not tried");
    for (uint64_t nth = 1; !status.ok(); ++nth) {
      const auto disk = NewDisk();
      const auto store = MakeStore(disk.get());
      ASSERT_TRUE(store->Create(DurablePlan()).ok());
      disk->Fail(operation, nth, EIO);
      status = store->Remove(77);
      const absl::StatusOr<JobPlan> plan = store->Find(77);
      EXPECT_FALSE(status.ok() && plan.ok());
      if (status.ok()) break;  // The fault is still to come.
      if (plan.ok()) {
        EXPECT_TRUE(store->Open(*plan).ok()) << "no files after " << status;
      }
      EXPECT_TRUE(store->Remove(77).ok()) << "it can be called again";
      EXPECT_TRUE(disk->Paths().empty()) << ::testing::PrintToString(disk->Paths());
      EXPECT_EQ(CheckWholeJobsOnly(disk.get(), std::string(status.message())), 0u);
    }
  }
}

TEST(JobStoreTest, PowerLossAtAnyMomentOfASecondRemovalLeavesAWholeJobOrNothing) {
  constexpr uint64_t kOperations = 8;  // more than a removal has
  for (uint64_t at = 0; at < kOperations * kOperations; ++at) {
    for (const MemoryDisk::Random& mood : {kKeepAll, kLoseAll, Moods(at).back()}) {
      const auto disk = NewDisk();
      ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(77)).ok());
      (void)CutStore(disk.get(), at / kOperations).store->Remove(77);
      (void)CutStore(disk.get(), at % kOperations).store->Remove(77);
      disk->Crash(mood);
      CheckWholeJobsOnly(disk.get(), "operations " + std::to_string(at / kOperations) + " and " +
                                         std::to_string(at % kOperations));
    }
  }
}

TEST(JobStoreTest, PowerLossWhileLeftoversAreClearedAwayLeavesLeftovers) {
  for (uint64_t at = 0; at < 12; ++at) {
    for (size_t mood = 0; mood < Moods(at).size(); ++mood) {
      const auto disk = NewDisk();
      {
        CutStore cut(disk.get(), 12);  // Some files exist, the record does not.
        EXPECT_FALSE(cut.store->Create(DurablePlan(77)).ok());
      }
      disk->Crash(kKeepAll);
      {
        CutStore cut(disk.get(), at);
        (void)cut.store->Load();
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
        CutStore cut(disk.get(), at);
        saved = cut.store->Save(next).ok();
        finished = !cut.power.off();
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
                                    Operation::kSync, Operation::kRemove}) {
    absl::Status status = absl::UnknownError("not tried");
    for (uint64_t nth = 1; !status.ok(); ++nth) {
      const auto disk = NewDisk();
      disk->Fail(operation, nth, EIO);
      status = MakeStore(disk.get())->Create(DurablePlan()).status();
      if (status.ok()) break;
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
      EXPECT_TRUE(disk->Paths().empty()) << ::testing::PrintToString(disk->Paths());
      EXPECT_EQ(CheckWholeJobsOnly(disk.get(), std::string(status.message())), 0u);
      ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan()).ok()) << "the id is free again";
    }
  }
}

// The keys of all records, and one record's value.
std::vector<std::string> KeysOf(DurableDisk* disk) {
  std::vector<std::string> keys;
  const auto page = disk->meta()->List({});
  EXPECT_TRUE(page.ok() && page->next.empty()) << page.status();
  for (const MetaEntry& entry : page->entries) keys.push_back(entry.key);
  return keys;
}
std::string ValueAt(DurableDisk* disk, const std::string& key) {
  const auto entry = disk->meta()->Get(key);
  EXPECT_TRUE(entry.ok() && entry->has_value()) << key;
  return (*entry)->value;
}
void Put(DurableDisk* disk, const std::string& key, const std::string& value) {
  MetaTxn txn;
  txn.puts.push_back({key, value});
  EXPECT_TRUE(disk->meta()->Txn(txn).ok());
}
void Delete(DurableDisk* disk, const std::string& key) {
  MetaTxn txn;
  txn.deletes.push_back(key);
  EXPECT_TRUE(disk->meta()->Txn(txn).ok());
}

// Load refuses with STATE_LOST and `words`, and leaves everything as it is.
void ExpectLost(DurableDisk* disk, const std::string& words) {
  const std::vector<std::string> files = disk->Paths();
  const std::vector<std::string> keys = KeysOf(disk);
  const absl::Status status = MakeStore(disk)->Load().status();
  EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kDirectory77));
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  EXPECT_EQ(disk->Paths(), files);
  EXPECT_EQ(KeysOf(disk), keys);
}

TEST(JobStoreTest, TheRecordsAreThoseOfTheFormat) {
  const auto disk = NewDisk();
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(77)).ok());
  EXPECT_EQ(KeysOf(disk.get()), (std::vector<std::string>{"job/77/epoch/00000000000000000001",
                                                          "job/77/plan", "jobs/job77"}));
  EXPECT_EQ(ValueAt(disk.get(), "jobs/job77"), "77");
  EXPECT_EQ(ValueAt(disk.get(), "job/77/plan").substr(0, 4), std::string("\1\0\0\0", 4));
  ASSERT_TRUE(MakeStore(disk.get())->Remove(77).ok());
  EXPECT_TRUE(KeysOf(disk.get()).empty());
}

// The bytes of docs/formats/meta.md.
TEST(JobStoreTest, AnEpochRecordOfVersionOneStaysAsItIs) {
  const auto disk = NewDisk();
  const auto store = MakeStore(disk.get());
  JobPlan plan = DurablePlan();
  ASSERT_TRUE(store->Create(plan).ok());
  plan.epoch = {.epoch = 2, .start_round = 6, .members = {{0, 0x1122334455667788}}};
  ASSERT_TRUE(store->Save(plan).ok());
  EXPECT_EQ(absl::BytesToHexString(ValueAt(disk.get(), "job/77/epoch/00000000000000000002")),
            "0100000002000000060000000000000000000000"
            "01000000"
            "000000008877665544332211");
}

TEST(JobStoreTest, AMissingRecordIsStateLostAndNothingIsDeleted) {
  const auto disk = NewDisk();
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan()).ok());
  Delete(disk.get(), "job/77/plan");
  ExpectLost(disk.get(), "no record");
}

// The advice in the error.
TEST(JobStoreTest, AJobIsGivenUpByTheNameOfItsDirectory) {
  const std::string gone = std::string(kDirectory77) + ".gone";
  for (const bool directory_lost : {false, true}) {
    const auto disk = NewDisk();
    ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(77)).ok());
    ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(5)).ok());
    if (directory_lost) {
      ASSERT_TRUE(disk->RemoveAll(kDirectory77).ok());
      ASSERT_TRUE(disk->MakeDirectory(gone).ok());
    } else {
      ASSERT_TRUE(disk->Rename(kDirectory77, gone).ok());
    }
    EXPECT_EQ(CheckWholeJobsOnly(disk.get(), ""), 1u);
    EXPECT_EQ(KeysOf(disk.get()).size(), 3u) << "of the other job";
  }
}

TEST(JobStoreTest, ADamagedRecordIsStateLost) {
  const auto disk = NewDisk();
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(77)).ok());
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan(5)).ok());
  const std::string whole = ValueAt(disk.get(), "job/77/plan");
  for (const std::string& value :
       {std::string(), whole.substr(0, 3), whole.substr(0, 4), whole.substr(0, whole.size() - 1),
        ValueAt(disk.get(), "job/5/plan")}) {
    Put(disk.get(), "job/77/plan", value);
    ExpectLost(disk.get(), "job/77/plan is damaged");
  }
  Put(disk.get(), "job/77/plan", whole);
  EXPECT_EQ(CheckWholeJobsOnly(disk.get(), "as it was"), 2u);
}

TEST(JobStoreTest, AnotherFormatVersionIsRefusedByNumber) {
  const auto disk = NewDisk();
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan()).ok());
  std::string value = ValueAt(disk.get(), "job/77/plan");
  value[0] = 9;
  Put(disk.get(), "job/77/plan", value);
  const absl::Status status = MakeStore(disk.get())->Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("job/77/plan has format version 9"));
}

// Else a record that is lost later would look like one that was never written.
TEST(JobStoreTest, AMarkThatACrashLeftGoesAtTheNextStart) {
  const auto disk = NewDisk();
  ASSERT_TRUE(MakeStore(disk.get())->Create(DurablePlan()).ok());
  ASSERT_TRUE(ReplaceFile(disk.get(), std::string(kDirectory77) + "/making", "").ok());
  EXPECT_EQ(CheckWholeJobsOnly(disk.get(), ""), 1u);
  disk->Crash(kLoseAll);
  Delete(disk.get(), "job/77/plan");
  ExpectLost(disk.get(), "no record");
}

TEST(JobStoreTest, AnEpochIsWrittenOnce) {
  const auto disk = NewDisk();
  const auto store = MakeStore(disk.get());
  JobPlan plan = DurablePlan();
  ASSERT_TRUE(store->Create(plan).ok());
  plan.epoch.epoch = 2;
  plan.epoch.members[1].incarnation = 42;
  ASSERT_TRUE(store->Save(plan).ok());
  plan.sealed_epoch = 2;  // A field that changes within an epoch.
  EXPECT_TRUE(store->Save(plan).ok());
  const std::vector<std::string> saved = JobsOf(disk.get());
  JobPlan other = plan;
  other.epoch.members[1].incarnation = 43;
  const absl::Status status = store->Save(other);
  EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("epoch 2 of job \"job77\""));
  other.epoch.epoch = 1;
  EXPECT_EQ(ReasonOf(store->Save(other)), Reason::kStateLost);
  EXPECT_EQ(JobsOf(disk.get()), saved);
}

TEST(JobStoreTest, AJobOfManyEpochsIsRemovedAsAWhole) {
  const auto disk = NewDisk();
  const auto store = MakeStore(disk.get());
  JobPlan plan = DurablePlan();
  ASSERT_TRUE(store->Create(plan).ok());
  for (plan.epoch.epoch = 2; plan.epoch.epoch < 400; ++plan.epoch.epoch) {
    ASSERT_TRUE(store->Save(plan).ok());
  }
  ASSERT_TRUE(store->Remove(77).ok());
  EXPECT_TRUE(KeysOf(disk.get()).empty());
}

TEST(JobStoreTest, APlanThatTheMetadataStoreCannotHoldIsRefusedWithBothSizes) {
  const auto disk = NewDisk();
  JobPlan plan = DurablePlan();
  for (size_t i = 0; i < 70'000; ++i) {
    plan.spec.tensors.push_back({std::string(255, 'n'), {1}, DType::kF32, 0, {}});
  }
  for (const bool grows : {false, true}) {
    const auto store = MakeStore(disk.get());
    const absl::Status status = grows ? store->Grow(plan).status() : store->Create(plan).status();
    EXPECT_EQ(ReasonOf(status), Reason::kOverBudget) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(kPlanBytesMax)));
  }
  EXPECT_TRUE(disk->Paths().empty());
}

// Damage that opening finds: each names the job and the file.
TEST(JobStoreTest, FilesThatAreMissingOrAnotherJobsAreStateLost) {
  const auto damage = [](const std::string& file, bool copied) {
    const auto disk = NewDisk();
    const auto store = MakeStore(disk.get());
    EXPECT_TRUE(store->Create(DurablePlan(77)).ok() && store->Create(DurablePlan(5)).ok());
    const std::string path = std::string(kDirectory77) + "/" + file;
    if (copied) {
      const auto other = ReadWholeFile(
          disk.get(), std::string(kJobsRoot) + "/0000000000000005/" + file, size_t{1} << 28);
      EXPECT_TRUE(other.ok() && ReplaceFile(disk.get(), path, *other).ok());
    } else {
      EXPECT_TRUE(disk->Remove(path).ok());
    }
    const absl::Status status = store->Open(DurablePlan(77)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("job \"job77\""));
    EXPECT_THAT(std::string(status.message()), HasSubstr(file));
    EXPECT_THAT(std::string(status.message()), HasSubstr("storage.data_dir"));
  };
  for (const char* file : {"slots", "log-000", "log-001"}) damage(file, /*copied=*/false);
  for (const char* file : {"slots", "log-000"}) damage(file, /*copied=*/true);
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

TEST(JobStoreTest, ForeignFilesAreLeftAlone) {
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

TEST(JobStoreTest, RemembersRequestedCreationsUntilItHasTheJob) {
  const auto disk = NewDisk();
  const auto store = MakeStore(disk.get());
  const JobPlan plan = DurablePlan();
  ASSERT_TRUE(store->MarkOrdered(plan.job).ok());
  ASSERT_TRUE(store->MarkOrdered(5).ok());
  disk->Crash(kLoseAll);
  EXPECT_TRUE(MakeStore(disk.get())->Load()->empty());
  EXPECT_EQ(*MakeStore(disk.get())->OrderedOnly(), (std::vector<uint64_t>{5, plan.job}));
  ASSERT_TRUE(MakeStore(disk.get())->Create(plan).ok());
  EXPECT_EQ(*MakeStore(disk.get())->OrderedOnly(), std::vector<uint64_t>{5});
  ASSERT_TRUE(MakeStore(disk.get())->ClearOrdered(5).ok());
  ASSERT_TRUE(MakeStore(disk.get())->ClearOrdered(5).ok()) << "again";
  EXPECT_TRUE(MakeStore(disk.get())->OrderedOnly()->empty());
  EXPECT_EQ(MakeStore(disk.get())->Load()->size(), 1u);
}

TEST(JobStoreTest, AMarkThatFailsIsNone) {
  using Operation = MemoryDisk::Operation;
  const std::pair<Operation, uint64_t> faults[] = {{Operation::kOpen, 1},
                                                   {Operation::kSync, 1},
                                                   {Operation::kRename, 1},
                                                   {Operation::kSync, 2}};  // of the directory
  for (const auto& [operation, nth] : faults) {
    for (const bool crash : {false, true}) {
      const std::string what = absl::StrCat("operation ", static_cast<int>(operation), " ", nth);
      const auto disk = NewDisk();
      disk->Fail(operation, nth, EIO);
      EXPECT_FALSE(MakeStore(disk.get())->MarkOrdered(77).ok()) << what;
      if (crash) disk->Crash(kKeepAll);
      EXPECT_TRUE(MakeStore(disk.get())->OrderedOnly()->empty()) << what;
      EXPECT_TRUE(disk->Paths().empty()) << what;
    }
  }
}

TEST(JobStoreTest, AMarkThatACrashBrokeOffIsClearedAwayAtTheStart) {
  for (uint64_t operations = 0;; ++operations) {
    const auto disk = NewDisk();
    PowerCut power(disk.get(), operations);
    const bool marked = MakeStore(&power, disk->meta())->MarkOrdered(77).ok();
    disk->Crash(kKeepAll);
    ASSERT_TRUE(MakeStore(disk.get())->Load().ok());
    const std::vector<uint64_t> ordered = *MakeStore(disk.get())->OrderedOnly();
    EXPECT_EQ(disk->Paths().size(), ordered.size()) << operations;
    if (marked) break;
  }
}

}  // namespace
}  // namespace ballast::server
