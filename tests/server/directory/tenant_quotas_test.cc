// Quotas at the servers of a cluster: a refusal at the limit leaves nothing at any server, and a
// tenant's use is counted to the byte through ends, deletions, crashes and restarts.
#include <cerrno>
#include <map>
#include <random>

#include "gmock/gmock.h"
#include "server/convert/plan_convert.h"
#include "server/operator/export_book.h"
#include "server/operator/snapshot_files.h"
#include "server/round/job_plan.h"
#include "tests/server/directory/durable_jobs_fixture.h"

namespace ballast::server::testing {
namespace {

using ::testing::HasSubstr;

QuotaTable Limit(uint64_t Amounts::*resource, uint64_t limit) {
  QuotaTable table;
  table.others.*resource = limit;
  return table;
}

class TenantQuotasTest : public DurableJobsTest {
 protected:
  // Two servers, of which the second one's limits are `theirs`.
  void StartServers(const QuotaTable& home, const QuotaTable& theirs = {}) {
    DurableDirectories::Options options;
    options.quotas = {home, theirs};
    cluster_ = std::make_unique<DurableDirectories>(2, options);
  }
  // Both trainers of a job of that name.
  absl::StatusOr<AttachResult> MakeNamed(const std::string& name,
                                         Durability durability = Durability::kPower) {
    std::vector<AttachAnswer> answers;
    for (const uint32_t slot : {0u, 1u}) {
      AttachCall call = SeatCall(slot, kFirst + slot, Resume::kAuto);
      call.spec.name = name;
      call.spec.durability = durability;
      answers.push_back(Ask(call));
    }
    absl::StatusOr<AttachResult> made = answers[1].Get();
    EXPECT_EQ(ReasonOf(made.status()), ReasonOf(answers[0].Get().status()));
    if (made.ok()) job_ = made->plan.job;
    return made;
  }
  absl::Status Delete(const std::string& name) {
    Answer<absl::Status> deleted;
    cluster_->At(0)->apis().jobs->DeleteJob({{.name = name}, true}, deleted.Setter());
    return deleted.Get();
  }
  Amounts Used(uint32_t server) {
    Settle(server);
    return cluster_->QuotasOf(server)->UseOf(kDefaultTenant).used;
  }
  // A server may give room back after its answer to the trainers.
  void ExpectUsed(uint32_t server, const Amounts& expected) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (Used(server) != expected && std::chrono::steady_clock::now() < end) {
    }
    EXPECT_EQ(Used(server), expected) << server;
  }
  // Use of the job of two trainers at a server, by that server's own books.
  Amounts Expected(uint32_t server) {
    const JobPlan plan = cluster_->Record(server, job_);
    return {.jobs = 1,
            .seats = 2,
            .dram_bytes = cluster_->At(server)->apis().jobs->Load().memory_used_bytes,
            .disk_bytes = MakeStore(cluster_->Disk(server), server)->DiskBytes(plan, server),
            .in_flight_bytes = 2 * kCredit};
  }
};

TEST_F(TenantQuotasTest, AJobIsCountedAtEachServerByWhatThatKeepsOfIt) {
  StartServers({});
  ASSERT_TRUE(MakeNamed("one").ok());
  for (const uint32_t server : {0u, 1u}) {
    EXPECT_EQ(Used(server), Expected(server)) << server;
    EXPECT_GT(Used(server).dram_bytes, 0u);
    EXPECT_GT(Used(server).disk_bytes, 0u);
  }
  ASSERT_TRUE(Delete("one").ok());
  for (const uint32_t server : {0u, 1u}) ExpectUsed(server, Amounts());
}

TEST_F(TenantQuotasTest, ATenantAtItsQuotaIsRefusedAndADeletionMakesRoom) {
  StartServers(Limit(&Amounts::jobs, 1));
  ASSERT_TRUE(MakeNamed("one").ok());
  const Amounts before = Used(0);
  const absl::Status refused = MakeNamed("two").status();
  EXPECT_EQ(ReasonOf(refused), Reason::kOverQuota) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("uses 1 of 1 jobs"));
  ExpectUsed(0, before);
  ASSERT_TRUE(Delete("one").ok());
  EXPECT_TRUE(MakeNamed("two").ok());
}

TEST_F(TenantQuotasTest, ARefusalByOneServerReleasesTheOthersGrants) {
  StartServers({}, Limit(&Amounts::disk_bytes, 5000));
  const absl::Status refused = MakeNamed("one").status();
  EXPECT_EQ(ReasonOf(refused), Reason::kOverQuota) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("of 5000 bytes of disk"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at server 1"));
  for (const uint32_t server : {0u, 1u}) ExpectUsed(server, Amounts());
}

TEST_F(TenantQuotasTest, EachResourceOfAnOpenJobIsRefusedAtItsLimit) {
  const struct {
    uint64_t Amounts::*resource;
    uint64_t limit;
    const char* text;
  } cases[] = {{&Amounts::seats, 1, "uses 0 of 1 seats"},
               {&Amounts::dram_bytes, 1000, "uses 0 of 1000 bytes of memory"},
               {&Amounts::in_flight_bytes, 2 * kCredit - 1, "uses 0 of 8191 bytes in flight"}};
  for (const auto& [resource, limit, text] : cases) {
    for (const Durability durability : {Durability::kNone, Durability::kPower}) {
      StartServers(Limit(resource, limit));
      const absl::Status refused = MakeNamed("one", durability).status();
      EXPECT_EQ(ReasonOf(refused), Reason::kOverQuota) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr(text));
      for (const uint32_t server : {0u, 1u}) ExpectUsed(server, Amounts());
    }
  }
}

TEST_F(TenantQuotasTest, AJobWithoutDurabilityIsCountedUntilItsMemoryIsGivenBack) {
  StartServers(Limit(&Amounts::jobs, 1));
  ASSERT_TRUE(MakeNamed("one", Durability::kNone).ok());
  EXPECT_EQ(Used(0).jobs, 1u);
  EXPECT_EQ(Used(0).disk_bytes, 0u);
  EXPECT_EQ(ReasonOf(MakeNamed("two", Durability::kNone).status()), Reason::kOverQuota);
  for (const uint32_t server : {0u, 1u}) {
    cluster_->Engine(server, job_)->Fail(absl::AbortedError("the end"));
    Settle(server);
  }
  // It has ended, and stays readable until its tenant needs the room.
  EXPECT_EQ(Used(0).jobs, 1u);
  EXPECT_TRUE(MakeNamed("two", Durability::kNone).ok());
  EXPECT_EQ(Used(0).jobs, 1u);
}

TEST_F(TenantQuotasTest, ARestartFindsTheSameSums) {
  StartServers({});
  ASSERT_TRUE(MakeNamed("one").ok());
  const std::vector<Amounts> before = {Used(0), Used(1)};
  for (const uint32_t server : {0u, 1u}) {
    cluster_->Restart(server);
    EXPECT_EQ(Used(server), before[server]) << server;
  }
}

TEST_F(TenantQuotasTest, ARecoveredJobRunsAboveItsQuotaAndNothingNewIsGranted) {
  StartServers({});
  ASSERT_TRUE(MakeNamed("one").ok());
  const Amounts before = Used(0);
  QuotaTable nothing;
  nothing.others = {.waiting_attaches = 9};
  cluster_->SetQuotas({nothing, nothing});
  for (const uint32_t server : {0u, 1u}) cluster_->Restart(server);
  ASSERT_NE(cluster_->Engine(0, job_), nullptr);
  ExpectUsed(0, before);
  EXPECT_EQ(ReasonOf(MakeNamed("two").status()), Reason::kOverQuota);
  ExpectUsed(0, before);
  // Its trainers come back.
  EXPECT_TRUE(MakeNamed("one").ok());
}

TEST_F(TenantQuotasTest, ALimitBelowWhatIsUsedIsTakenWhileJobsRun) {
  StartServers({});
  ASSERT_TRUE(MakeNamed("one").ok());
  const Amounts before = Used(0);
  cluster_->QuotasOf(0)->SetLimits(Limit(&Amounts::seats, 1));
  EXPECT_EQ(ReasonOf(MakeNamed("two").status()), Reason::kOverQuota);
  ExpectUsed(0, before);
  cluster_->QuotasOf(0)->SetLimits({});
  EXPECT_TRUE(MakeNamed("two").ok());
}

TEST_F(TenantQuotasTest, AnAttachThatWaitsIsCountedUntilItIsAnsweredOrGivenUp) {
  StartServers(Limit(&Amounts::waiting_attaches, 1));
  AttachCall waits = SeatCall(0, kFirst, Resume::kAuto);
  waits.call = 7;
  AttachAnswer first = Ask(waits);
  EXPECT_EQ(Used(0).waiting_attaches, 1u);
  const absl::Status refused = Ask(1, kFirst + 1).Get().status();
  EXPECT_EQ(ReasonOf(refused), Reason::kOverQuota);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("uses 1 of 1 attaches that wait"));
  EXPECT_FALSE(first.Has());
  cluster_->At(0)->apis().trainers->AttachCancelled(waits.name(), 0, 7);
  ExpectUsed(0, Amounts());
  cluster_->QuotasOf(0)->SetLimits(Limit(&Amounts::waiting_attaches, 2));
  ASSERT_TRUE(AttachWorld(kFirst).ok());
  EXPECT_EQ(Used(0).waiting_attaches, 0u);
}

// --- On the disk --------------------------------------------------------------------------------

// Jobs of two tenants on one disk, made, grown, given up, removed and recovered at random. The
// quotas agree with the model of the disk and with the count of a start that reads the disk.
class StoredJobsRun {
 public:
  explicit StoredJobsRun(uint64_t seed) : random_(seed) {
    EXPECT_TRUE(disk_.MakeDirectory(kJobsRoot).ok());
    Restart();
  }

  void Step() {
    const uint64_t id = 1 + random_() % 4;
    const auto known = jobs_.find(id);
    if (random_() % 8 == 0) return Restart();
    if (known == jobs_.end()) return Create(id);
    switch (random_() % 3) {
      case 0:
        return Remove(id);
      case 1:
        return Grow(&known->second, /*saved=*/true);
      default:
        return Grow(&known->second, /*saved=*/false);
    }
  }
  void Check() const {
    for (const char* tenant : {"a", "b"}) {
      EXPECT_EQ(quotas_->UseOf(tenant).used, UsedBy(tenant)) << tenant;
    }
  }
  uint64_t refused() const { return refused_; }

 private:
  struct Job {
    JobPlan plan;
    uint64_t left_over = 0;  // of a growth that was given up
  };

  JobPlan PlanOf(uint64_t id) const {
    JobPlan plan = DurablePlan(id);
    plan.tenant = id % 2 == 0 ? "a" : "b";
    return plan;
  }
  // By the model: whether the tenant may have so much instead of `had`.
  bool Allows(const std::string& tenant, const Amounts& had, const Amounts& wants) const {
    const Amounts used = UsedBy(tenant);
    const auto fits = [&](uint64_t Amounts::*resource) {
      if (wants.*resource <= had.*resource) return true;
      return used.*resource - had.*resource + wants.*resource <= limits_.*resource;
    };
    return fits(&Amounts::jobs) && fits(&Amounts::disk_bytes);
  }
  Amounts UsedBy(const std::string& tenant) const {
    Amounts used;
    for (const auto& [id, job] : jobs_) {
      if (job.plan.tenant != tenant) continue;
      used.jobs += 1;
      used.disk_bytes += store_->DiskBytes(job.plan, 0) + job.left_over;
    }
    return used;
  }
  void Create(uint64_t id) {
    const JobPlan plan = PlanOf(id);
    const Amounts wants{.jobs = 1, .disk_bytes = store_->DiskBytes(plan, 0)};
    const auto made = store_->Create(plan);
    EXPECT_EQ(made.ok(), Allows(plan.tenant, {}, wants)) << made.status();
    EXPECT_EQ(made.ok(), ReasonOf(made.status()) != Reason::kOverQuota) << made.status();
    if (made.ok()) jobs_[id] = {PlanOf(id)};
    refused_ += made.ok() ? 0 : 1;
  }
  void Remove(uint64_t id) {
    EXPECT_TRUE(store_->Remove(id).ok());
    jobs_.erase(id);
  }
  void Grow(Job* job, bool saved) {
    JobPlan grown = job->plan;
    grown.layout_version += 1;
    const Amounts wants{.disk_bytes = store_->DiskBytes(grown, 0)};
    const bool allowed = Allows(grown.tenant, {.disk_bytes = job->left_over}, wants);
    const auto made = store_->Grow(grown);
    EXPECT_EQ(made.ok(), allowed) << made.status();
    if (!made.ok()) {
      EXPECT_EQ(ReasonOf(made.status()), Reason::kOverQuota) << made.status();
      ++refused_;
      // The files of an earlier growth that was given up are there as before.
      return;
    }
    job->left_over = store_->DiskBytes(grown, 0);
    if (!saved) return;
    EXPECT_TRUE(store_->Save(grown).ok());
    store_->DropOutgrown(grown);
    *job = {grown};
  }
  // Kill -9, and a start, which clears away given up jobs.
  void Restart() {
    disk_.Crash(kKeepAll);
    quotas_ = std::make_shared<Quotas>();
    QuotaTable table;
    table.others.jobs = random_() % 3;  // Also below the current use.
    quotas_->SetLimits(table);
    store_ = MakeStore(&disk_);
    store_->CountIn(quotas_);
    EXPECT_TRUE(store_->Load().ok());
    table.others.disk_bytes = store_->DiskBytes(PlanOf(1), 0) * 3;
    quotas_->SetLimits(table);
    limits_ = table.others;
    for (auto& [id, job] : jobs_) job.left_over = 0;
  }

  std::mt19937_64 random_;
  DurableDisk disk_;
  std::shared_ptr<Quotas> quotas_;
  std::unique_ptr<JobStore> store_;
  Amounts limits_;
  std::map<uint64_t, Job> jobs_;
  uint64_t refused_ = 0;
};

TEST(StoredJobsQuotaTest, DiskUseIsCountedToTheByteThroughAJobsWholeLife) {
  uint64_t refused = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    StoredJobsRun run(seed);
    for (int step = 0; step < 60 && !::testing::Test::HasFailure(); ++step) {
      run.Step();
      run.Check();
    }
    refused += run.refused();
  }
  EXPECT_GT(refused, 20u);
}

// --- Snapshots ----------------------------------------------------------------------------------

class SnapshotQuotasTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kId = 0xabc;

  SnapshotQuotasTest() : plan_(DurablePlan()) {
    plan_.tenant = "a";
    Restart();
    const Layout layout = *LayoutOfSpec(plan_.spec);
    for (const uint32_t server : plan_.servers) {
      part_bytes_.push_back(SnapshotStore::PartBytes(plan_, layout, server));
    }
  }
  static DirectoryConfig Config(const std::shared_ptr<Quotas>& quotas) {
    DirectoryConfig config;
    config.servers = {{0, "127.0.0.1:9000"}, {1, "127.0.0.1:9001"}};
    config.quotas = quotas;
    return config;
  }
  // A process that starts, and knows what the disk says.
  void Restart() {
    DirectorySnapshots kept;
    kept.store = std::make_unique<SnapshotStore>(DurableDirectories::Snapshots(&disk_, 0));
    kept.exports = std::make_unique<Exports>(DurableDirectories::ExportsOn(&disk_));
    kept.codec = MakePlanCodec();
    ASSERT_TRUE(kept.store->Clear().ok());
    ASSERT_TRUE(kept.exports->Clear().ok());
    quotas_ = std::make_shared<Quotas>();
    self_ = std::make_unique<ThisServer>(Config(quotas_));
    files_ = std::make_unique<SnapshotFiles>(self_.get(), std::move(kept));
    ASSERT_TRUE(files_->Count().ok());
  }
  // All but its manifest.
  void TakeParts() {
    const Layout layout = *LayoutOfSpec(plan_.spec);
    ASSERT_TRUE(files_->Begin(kId, plan_, "s", part_bytes_[0] + part_bytes_[1]).ok());
    for (const uint32_t server : plan_.servers) {
      const auto part =
          DurableDirectories::Snapshots(&disk_, server).Of("a").CreatePart(kId, plan_, layout);
      ASSERT_TRUE(part.ok()) << part.status();
      ASSERT_TRUE((*part)->Sync().ok());
    }
  }
  SnapshotManifest Manifest() const {
    SnapshotManifest manifest;
    manifest.id = kId;
    manifest.name = "s";
    manifest.tenant = "a";
    manifest.job = plan_.spec.name;
    manifest.round = 1;
    manifest.bytes = part_bytes_[0] + part_bytes_[1];
    return manifest;
  }
  void Take() {
    ASSERT_NO_FATAL_FAILURE(TakeParts());
    ASSERT_TRUE(files_->Commit(Manifest()).ok());
  }
  uint64_t Size(const std::string& path) {
    return ReadWholeFile(&disk_, path, size_t{1} << 20)->size();
  }
  uint64_t Used() const { return quotas_->UseOf("a").used.disk_bytes; }
  std::string Path(const std::string& file) const {
    return files_->store("a").Directory(kId) + "/" + file;
  }

  DurableDisk disk_;
  JobPlan plan_;
  std::shared_ptr<Quotas> quotas_;
  std::unique_ptr<ThisServer> self_;
  std::unique_ptr<SnapshotFiles> files_;
  std::vector<uint64_t> part_bytes_;  // by server
};

TEST_F(SnapshotQuotasTest, ASnapshotCountsWithItsManifestAndAStartFindsTheSameSum) {
  ASSERT_NO_FATAL_FAILURE(Take());
  const uint64_t whole = part_bytes_[0] + part_bytes_[1] + Size(Path("MANIFEST"));
  EXPECT_EQ(Used(), whole);
  Restart();
  EXPECT_EQ(Used(), whole);
  EXPECT_TRUE(files_->Remove("a", kId).ok());
  EXPECT_EQ(Used(), 0u);
}

TEST_F(SnapshotQuotasTest, AManifestAboveTheQuotaIsNotWritten) {
  const uint64_t parts = part_bytes_[0] + part_bytes_[1];
  quotas_->SetLimits(Limit(&Amounts::disk_bytes, parts + EncodeManifest(Manifest()).size() - 1));
  ASSERT_NO_FATAL_FAILURE(TakeParts());
  const absl::Status refused = files_->Commit(Manifest());
  EXPECT_EQ(ReasonOf(refused), Reason::kOverQuota) << refused;
  EXPECT_TRUE(absl::IsNotFound(files_->store("a").Find(kId).status()));
  EXPECT_EQ(Used(), parts);
  EXPECT_TRUE(files_->Remove("a", kId).ok());
  EXPECT_EQ(Used(), 0u);
}

TEST_F(SnapshotQuotasTest, ASnapshotThatCouldNotBeRemovedCountsWhole) {
  ASSERT_NO_FATAL_FAILURE(Take());
  const uint64_t whole = Used();
  disk_.FailNext(MemoryDisk::Operation::kRemove, Path("MANIFEST"), EIO);
  EXPECT_FALSE(files_->Remove("a", kId).ok());
  EXPECT_EQ(Used(), whole);
  EXPECT_TRUE(files_->Remove("a", kId).ok());
  EXPECT_EQ(Used(), 0u);
}

TEST_F(SnapshotQuotasTest, LeftoversOfAFailedRemovalCountUntilAStartRemovesThem) {
  ASSERT_NO_FATAL_FAILURE(Take());
  ASSERT_NE(part_bytes_[0], part_bytes_[1]);
  disk_.FailNext(MemoryDisk::Operation::kRemove, Path("part-1"), EIO);
  EXPECT_FALSE(files_->Remove("a", kId).ok());
  EXPECT_EQ(Used(), part_bytes_[1]);
  Restart();
  EXPECT_EQ(Used(), 0u);
  EXPECT_TRUE(absl::IsNotFound(disk_.List(files_->store("a").Directory(kId)).status()));
}

TEST_F(SnapshotQuotasTest, ARemovalThatOnlyMissesItsLastFlushGivesAllBack) {
  ASSERT_NO_FATAL_FAILURE(Take());
  disk_.FailNext(MemoryDisk::Operation::kSync, files_->store("a").root(), EIO);
  EXPECT_FALSE(files_->Remove("a", kId).ok());
  EXPECT_EQ(Used(), 0u);
}

// --- Exports ------------------------------------------------------------------------------------

class ExportQuotasTest : public SnapshotQuotasTest {
 protected:
  ExportQuotasTest() { Open(); }
  void Open() {
    book_ = std::make_unique<ExportBook>(self_.get(), files_.get());
    book_->Count();
  }
  void RestartAll() {
    Restart();
    Open();
  }
  // An export that came to its end, as far as the book goes.
  void Write(const QualifiedName& name, uint64_t bytes) {
    ASSERT_TRUE(book_->Begin(name, bytes, /*state=*/false).ok());
    SnapshotManifest manifest;
    manifest.job = "job";
    ASSERT_TRUE(files_->exports(name.tenant).Commit(name.name, {}, manifest).ok());
  }
  uint64_t UsedBy(const std::string& tenant) const {
    return quotas_->UseOf(tenant).used.disk_bytes;
  }

  std::unique_ptr<ExportBook> book_;
};

TEST_F(ExportQuotasTest, ARestartFindsEachTenantsExportsInTheBook) {
  ASSERT_NO_FATAL_FAILURE(Write({"a", "one"}, 100));
  ASSERT_NO_FATAL_FAILURE(Write({"b", "one"}, 20));
  ASSERT_NO_FATAL_FAILURE(Write({"a", "two"}, 3));
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(UsedBy("a"), 103u);
    EXPECT_EQ(UsedBy("b"), 20u);
    disk_.Crash(kLoseAll);
    RestartAll();
  }
}

TEST_F(ExportQuotasTest, UnfinishedAndRemovedExportsAreGivenBack) {
  ASSERT_NO_FATAL_FAILURE(Write({"a", "one"}, 100));
  ASSERT_NO_FATAL_FAILURE(Write({"a", "two"}, 20));
  ASSERT_TRUE(book_->Begin({"a", "half"}, 3, /*state=*/true).ok());
  EXPECT_EQ(UsedBy("a"), 123u);
  ASSERT_TRUE(disk_.RemoveAll(files_->exports("a").Directory("two")).ok());
  disk_.Crash(kKeepAll);
  RestartAll();
  EXPECT_EQ(UsedBy("a"), 100u);
  // Without a restart the next export finds that out.
  ASSERT_TRUE(disk_.RemoveAll(files_->exports("a").Directory("one")).ok());
  ASSERT_NO_FATAL_FAILURE(Write({"a", "three"}, 7));
  EXPECT_EQ(UsedBy("a"), 7u);
}

TEST_F(ExportQuotasTest, AnExportAboveTheQuotaLeavesNothingAndOneGivenUpGivesAllBack) {
  ASSERT_NO_FATAL_FAILURE(Write({"a", "one"}, 100));
  quotas_->SetLimits(Limit(&Amounts::disk_bytes, 150));
  EXPECT_EQ(ReasonOf(book_->Begin({"a", "two"}, 51, false)), Reason::kOverQuota);
  EXPECT_TRUE(absl::IsNotFound(disk_.List(files_->exports("a").Directory("two")).status()));
  EXPECT_EQ(UsedBy("a"), 100u);
  ASSERT_TRUE(book_->Begin({"a", "two"}, 50, false).ok());
  EXPECT_TRUE(book_->Begin({"b", "two"}, 150, false).ok());
  ASSERT_TRUE(book_->Remove({"a", "two"}).ok());
  EXPECT_EQ(UsedBy("a"), 100u);
  RestartAll();
  EXPECT_EQ(UsedBy("a"), 100u);
}

TEST_F(ExportQuotasTest, ABookThatCannotBeWrittenRefusesTheExport) {
  ASSERT_NO_FATAL_FAILURE(Write({"a", "one"}, 100));
  disk_.FailNext(MemoryDisk::Operation::kRename,
                 files_->exports(kDefaultTenant).root() + "/.quotas-owner", EIO);
  EXPECT_FALSE(book_->Begin({"a", "two"}, 20, false).ok());
  EXPECT_EQ(UsedBy("a"), 100u);
  EXPECT_TRUE(absl::IsNotFound(disk_.List(files_->exports("a").Directory("two")).status()));
}

TEST_F(ExportQuotasTest, LeftoversOfAFailedRemovalCountUntilAStartRemovesThem) {
  ASSERT_TRUE(book_->Begin({"a", "one"}, 100, /*state=*/false).ok());
  const Exports exports = files_->exports("a");
  const std::string file = exports.Directory("one") + "/model.safetensors";
  ASSERT_TRUE(ReplaceFile(&disk_, file, std::string(30, 'x')).ok());
  const uint64_t left = 30 + Size(exports.Directory("one") + "/EXPORTING");
  // The files that got another name, to be removed.
  disk_.Fail(MemoryDisk::Operation::kRemove, 2, EIO);
  EXPECT_FALSE(book_->Remove({"a", "one"}).ok());
  EXPECT_TRUE(exports.CheckNew("one").ok());
  EXPECT_EQ(UsedBy("a"), left);
  ASSERT_NO_FATAL_FAILURE(Write({"a", "two"}, 7));
  EXPECT_EQ(UsedBy("a"), left + 7);
  disk_.Crash(kKeepAll);
  RestartAll();
  EXPECT_EQ(UsedBy("a"), 7u);
}

}  // namespace
}  // namespace ballast::server::testing
