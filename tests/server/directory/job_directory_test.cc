// JobDirectory: creation on all servers, memory, time-outs and ends, with peers in the same
// process.
#include "server/directory/job_directory.h"
#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"

#include <gtest/gtest.h>

#include <map>

#include "common/base/reason.h"
#include "common/base/sync.h"

namespace ballast::server {
namespace {

// Hands a callback's result to the test's thread.
template <typename T>
class Promise {
 public:
  std::function<void(T)> Setter() {
    return [state = state_](T value) {
      MutexLock lock(&state->mu);
      state->value.push_back(std::move(value));
      state->cv.NotifyAll();
    };
  }
  T Get() {
    MutexLock lock(&state_->mu);
    while (state_->value.empty()) state_->cv.Wait(&state_->mu);
    return state_->value.front();
  }

 private:
  struct State {
    Mutex mu;
    CondVar cv;
    std::vector<T> value;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class NoVotes : public VoteSink {
  void SendVote(uint64_t, uint32_t, uint64_t, uint32_t, const Vote&) override {}
  void DropVotes(uint64_t) override {}
};

// Servers 0..n-1 in one process; links call the other directories directly.
class Cluster : public PeerLink {
 public:
  explicit Cluster(uint32_t servers, uint64_t budget = 1 << 30,
                   std::chrono::milliseconds attach_timeout = std::chrono::seconds(60),
                   std::chrono::milliseconds job_ttl = std::chrono::milliseconds(1))
      : executor_("test", 2), workers_(1) {
    DirectoryConfig config;
    for (uint32_t s = 0; s < servers; ++s) {
      config.servers.push_back({s, "127.0.0.1:" + std::to_string(9000 + s)});
    }
    config.memory_budget_bytes = budget;
    config.attach_timeout = attach_timeout;
    config.job_ttl = job_ttl;
    for (uint32_t s = 0; s < servers; ++s) {
      config.self = s;
      config.incarnation = 50 + s;
      const EngineDeps deps{
          .executor = &executor_, .workers = &workers_, .clock = &clock_, .votes = &votes_};
      directories_.push_back(JobDirectory::Create(config, deps, this));
    }
  }
  ~Cluster() override {
    directories_.clear();
    executor_.Shutdown();
  }
  void WhichRest(uint32_t home, const std::vector<uint64_t>& jobs,
                 std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) override {
    directories_[home]->apis().records->WhichRest(jobs, std::move(done));
  }
  void CompareJobs(uint32_t home, const JobRoll& roll,
                   std::function<void(absl::StatusOr<RollAnswer>)> done) override {
    directories_[home]->apis().records->CompareJobs(roll, std::move(done));
  }
  void Seal(uint32_t server, const SealCall& call,
            std::function<void(absl::StatusOr<SealAnswer>)> done) override {
    directories_[server]->apis().shares->Seal(call, std::move(done));
  }
  void AdoptEpoch(uint32_t server, const JobPlan& plan,
                  std::function<void(absl::Status)> done) override {
    directories_[server]->apis().shares->AdoptEpoch(plan, std::move(done));
  }
  void Snapshot(uint32_t server, const SnapshotCall& call,
                std::function<void(absl::StatusOr<SnapshotAnswer>)> done) override {
    directories_[server]->apis().snapshot_shares->Snapshot(call, std::move(done));
  }
  void RestoreJob(uint32_t server, const RestoreOrder& order,
                  std::function<void(absl::StatusOr<std::string>)> done) override {
    directories_[server]->apis().restores->RestoreJob(order, std::move(done));
  }
  void ExportShare(uint32_t server, const ExportPart& part,
                   std::function<void(absl::Status)> done) override {
    directories_[server]->apis().exports->ExportShare(part, std::move(done));
  }
  void ImportJob(uint32_t server, const ImportOrder& order,
                 std::function<void(absl::Status)> done) override {
    directories_[server]->apis().imports->ImportJob(order, std::move(done));
  }
  void CreateJob(uint32_t server, const JobPlan& plan,
                 std::function<void(absl::Status)> done) override {
    if (server == broken_) return done(absl::UnavailableError("no such server"));
    directories_[server]->apis().shares->CreateJob(plan, std::move(done));
  }
  void ExtendJob(uint32_t server, const JobPlan& plan,
                 std::function<void(absl::Status)> done) override {
    directories_[server]->apis().shares->ExtendJob(plan, std::move(done));
  }
  void DropJob(uint32_t server, uint64_t job, std::function<void(absl::Status)> done) override {
    const auto drop = [=, this] { directories_[server]->apis().shares->DropJob(job, done); };
    MutexLock lock(&mu_);
    drops_late_ ? late_drops_.push_back(drop) : drop();
  }
  // From now on DropJob waits for the next call of this, which returns the drops that waited.
  std::vector<std::function<void()>> HoldDrops() {
    MutexLock lock(&mu_);
    drops_late_ = true;
    return std::exchange(late_drops_, {});
  }

  absl::StatusOr<AttachResult> AttachAll(const AttachCall& first, uint32_t world) {
    std::vector<Promise<absl::StatusOr<AttachResult>>> answers(world);
    for (uint32_t s = 0; s < world; ++s) {
      AttachCall call = first;
      call.slot = s;
      call.incarnation = first.incarnation + s;
      directories_[0]->apis().trainers->Attach(call, answers[s].Setter());
    }
    for (auto& answer : answers) {
      if (auto result = answer.Get(); !result.ok()) return result;
    }
    return answers[0].Get();
  }

  RealClock clock_;
  NoVotes votes_;
  ThreadExecutor executor_;
  ThreadWorkerPool workers_;
  uint32_t broken_ = 99;
  Mutex mu_;
  bool drops_late_ = false;
  std::vector<std::function<void()>> late_drops_;
  std::vector<std::shared_ptr<JobDirectory>> directories_;
};

AttachCall Call(uint32_t world, const std::string& name = "job") {
  AttachCall call;
  call.spec.name = name;
  call.spec.world = world;
  call.spec.tile_elements = 64;
  call.spec.extent_elements = 128;
  call.spec.tensors = {{"a", {1000}, DType::kF32, 0, {}}};
  call.incarnation = 7;
  call.tensor_crc32c = {1};
  return call;
}

TEST(JobDirectoryTest, CreatesTheJobOnEveryServerWithOnePlan) {
  Cluster cluster(3);
  const auto result = cluster.AttachAll(Call(2), 2);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->plan.owner.size(), 8u);
  EXPECT_EQ(result->plan.servers, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(result->plan.epoch.members.size(), 2u);
  for (const auto& directory : cluster.directories_) {
    EXPECT_NE(directory->apis().lookup->Find(result->plan.job), nullptr);
    EXPECT_GT(directory->apis().jobs->Load().memory_used_bytes, 0u);
  }
}

TEST(JobDirectoryTest, OtherServersNameTheHome) {
  Cluster cluster(2);
  Promise<absl::StatusOr<AttachResult>> answer;
  cluster.directories_[1]->apis().trainers->Attach(Call(1), answer.Setter());
  const absl::Status status = answer.Get().status();
  EXPECT_EQ(ReasonOf(status), Reason::kNotHome);
  EXPECT_EQ(FieldsOf(status).address, "127.0.0.1:9000");
}

TEST(JobDirectoryTest, AUsedNameIsRefused) {
  Cluster cluster(1);
  ASSERT_TRUE(cluster.AttachAll(Call(1), 1).ok());
  AttachCall another = Call(1);
  another.incarnation = 70;
  EXPECT_EQ(ReasonOf(cluster.AttachAll(another, 1).status()), Reason::kNameInUse);
}

TEST(JobDirectoryTest, TimeoutNamesTheMissingSlots) {
  Cluster cluster(1, 1 << 30, std::chrono::milliseconds(1));
  Promise<absl::StatusOr<AttachResult>> answer;
  cluster.directories_[0]->apis().trainers->Attach(Call(3), answer.Setter());
  const absl::Status status = answer.Get().status();
  EXPECT_EQ(ReasonOf(status), Reason::kAttachTimeout);
  EXPECT_NE(std::string(status.message()).find("slots 1, 2"), std::string::npos) << status;
}

TEST(JobDirectoryTest, TrainersThatDisagreeAreAllToldAtOnce) {
  Cluster cluster(1);
  Promise<absl::StatusOr<AttachResult>> first, second;
  cluster.directories_[0]->apis().trainers->Attach(Call(2), first.Setter());
  AttachCall other = Call(2);
  other.slot = 1;
  other.incarnation = 8;
  other.tensor_crc32c = {9};
  cluster.directories_[0]->apis().trainers->Attach(other, second.Setter());
  EXPECT_EQ(ReasonOf(second.Get().status()), Reason::kInitMismatch);
  EXPECT_EQ(ReasonOf(first.Get().status()), Reason::kInitMismatch);
  EXPECT_TRUE(cluster.AttachAll(Call(2), 2).ok()) << "the name is free again";
}

TEST(JobDirectoryTest, ALateSlotOfARefusedWorldIsToldWhy) {
  Cluster cluster(1);
  std::vector<Promise<absl::StatusOr<AttachResult>>> answers(3);
  for (uint32_t slot = 0; slot < 3; ++slot) {
    AttachCall call = Call(3);
    call.slot = slot;
    call.incarnation = 7 + slot;
    call.tensor_crc32c = {slot == 1 ? 9u : 1u};
    cluster.directories_[0]->apis().trainers->Attach(call, answers[slot].Setter());
    if (slot == 1) {
      EXPECT_FALSE(answers[1].Get().ok());
    }
  }
  for (auto& answer : answers) {
    EXPECT_EQ(ReasonOf(answer.Get().status()), Reason::kInitMismatch);
  }
  EXPECT_TRUE(cluster.AttachAll(Call(3), 3).ok()) << "everybody knows: the name is free";
}

TEST(JobDirectoryTest, ARestartedWorldNeedNotWaitForTheLateSlotOfARefusedOne) {
  Cluster cluster(1);
  Promise<absl::StatusOr<AttachResult>> first, second;
  cluster.directories_[0]->apis().trainers->Attach(Call(3), first.Setter());
  AttachCall other = Call(3);
  other.slot = 1;
  other.incarnation = 8;
  other.spec.max_grad_norm = 5;
  cluster.directories_[0]->apis().trainers->Attach(other, second.Setter());
  EXPECT_EQ(ReasonOf(first.Get().status()), Reason::kSpecMismatch);
  EXPECT_TRUE(cluster.AttachAll(Call(3), 3).ok());
}

TEST(JobDirectoryTest, ARetriedAttachKeepsTheSeatWhenTheFirstCallIsSeenToEnd) {
  Cluster cluster(1);
  Promise<absl::StatusOr<AttachResult>> lost, again, other;
  AttachCall call = Call(2);
  call.call = 1;
  cluster.directories_[0]->apis().trainers->Attach(call, lost.Setter());
  call.call = 2;
  cluster.directories_[0]->apis().trainers->Attach(call, again.Setter());
  EXPECT_EQ(lost.Get().status().code(), absl::StatusCode::kCancelled);
  cluster.directories_[0]->apis().trainers->AttachCancelled({.name = "job"}, 0, 1);
  call.slot = 1;
  call.incarnation = 8;
  call.call = 3;
  cluster.directories_[0]->apis().trainers->Attach(call, other.Setter());
  EXPECT_TRUE(other.Get().ok());
  ASSERT_TRUE(again.Get().ok());
  // Even once the job runs, the same process gets the same answer.
  Promise<absl::StatusOr<AttachResult>> late;
  call.call = 4;
  cluster.directories_[0]->apis().trainers->Attach(call, late.Setter());
  ASSERT_TRUE(late.Get().ok());
  EXPECT_EQ(late.Get()->plan.job, again.Get()->plan.job);
}

TEST(JobDirectoryTest, ACancelledAttachFreesItsSeat) {
  Cluster cluster(1, 1 << 30, std::chrono::milliseconds(50));
  Promise<absl::StatusOr<AttachResult>> gone, other;
  AttachCall call = Call(2);
  call.call = 1;
  cluster.directories_[0]->apis().trainers->Attach(call, gone.Setter());
  cluster.directories_[0]->apis().trainers->AttachCancelled({.name = "job"}, 0, 1);
  call.slot = 1;
  call.incarnation = 8;
  cluster.directories_[0]->apis().trainers->Attach(call, other.Setter());
  EXPECT_EQ(ReasonOf(other.Get().status()), Reason::kAttachTimeout);
}

TEST(JobDirectoryTest, EndedJobsMakeRoomBeforeTheirTimeIsOver) {
  Cluster cluster(1, 100'000, std::chrono::seconds(60), std::chrono::hours(1));
  for (int i = 0; i < 20; ++i) {
    const auto result = cluster.AttachAll(Call(1, "job" + std::to_string(i)), 1);
    ASSERT_TRUE(result.ok()) << i << ": " << result.status();
    const auto engine = cluster.directories_[0]->apis().lookup->Find(result->plan.job);
    engine->Fail(absl::UnavailableError("over"));
    Promise<JobStatus> snapshot;  // Comes after the failure on the engine's strand.
    engine->Status(snapshot.Setter());
    EXPECT_EQ(snapshot.Get().state, "failed");
  }
}

TEST(JobDirectoryTest, OverBudgetIsRefusedAndTakesNoMemory) {
  Cluster cluster(2, 1000);
  EXPECT_EQ(ReasonOf(cluster.AttachAll(Call(1), 1).status()), Reason::kOverBudget);
  for (const auto& directory : cluster.directories_)
    EXPECT_EQ(directory->apis().jobs->Load().memory_used_bytes, 0u);
  // The name is free again.
  EXPECT_EQ(ReasonOf(cluster.AttachAll(Call(1), 1).status()), Reason::kOverBudget);
}

TEST(JobDirectoryTest, AServerThatCannotCreateUndoesTheOthers) {
  Cluster cluster(2);
  cluster.broken_ = 1;
  EXPECT_EQ(cluster.AttachAll(Call(1), 1).status().code(), absl::StatusCode::kUnavailable);
  Promise<std::vector<JobStatus>> jobs;
  cluster.directories_[0]->apis().jobs->Status(jobs.Setter());
  EXPECT_TRUE(jobs.Get().empty());
  EXPECT_EQ(cluster.directories_[0]->apis().jobs->Load().memory_used_bytes, 0u);
}

TEST(JobDirectoryTest, ALateDropOfAFailedAttemptLeavesTheJobThatTheSameTrainersMadeSince) {
  Cluster cluster(3);
  cluster.broken_ = 2;
  cluster.HoldDrops();
  EXPECT_EQ(cluster.AttachAll(Call(2), 2).status().code(), absl::StatusCode::kUnavailable);
  cluster.broken_ = 99;
  const auto made = cluster.AttachAll(Call(2), 2);
  ASSERT_TRUE(made.ok()) << made.status();
  const auto drops = cluster.HoldDrops();
  EXPECT_EQ(drops.size(), 2u);
  for (const auto& drop : drops) drop();
  for (const auto& directory : cluster.directories_) {
    Promise<std::vector<JobStatus>> jobs;  // After the drops.
    directory->apis().jobs->Status(jobs.Setter());
    EXPECT_EQ(jobs.Get().size(), 1u);
    EXPECT_NE(directory->apis().lookup->Find(made->plan.job), nullptr);
  }
}

TEST(JobDirectoryTest, ALateOrderOfAnEarlierAttemptMakesNothing) {
  Cluster cluster(2);
  const auto made = cluster.AttachAll(Call(2), 2);
  ASSERT_TRUE(made.ok()) << made.status();
  JobPlan order = made->plan;
  order.job += 1;
  order.making = true;
  order.attempt.number -= 1;
  Promise<absl::Status> answer;
  cluster.directories_[1]->apis().shares->CreateJob(order, answer.Setter());
  EXPECT_EQ(ReasonOf(answer.Get()), Reason::kNameInUse) << answer.Get();
  EXPECT_EQ(cluster.directories_[1]->apis().lookup->Find(order.job), nullptr);
  EXPECT_NE(cluster.directories_[1]->apis().lookup->Find(made->plan.job), nullptr);
}

TEST(JobDirectoryTest, ExtensionGrowsThePlanOnAllServers) {
  Cluster cluster(2);
  const auto attached = cluster.AttachAll(Call(1), 1);
  ASSERT_TRUE(attached.ok());
  // Initial weights must be in before a job can grow; an engine without them refuses.
  ExtendCall call;
  call.job = attached->plan.job;
  call.incarnation = 7;
  call.epoch = 1;
  call.base_layout_version = 1;
  call.group_count = 2;
  call.tensors = {{"late", {500}, DType::kF32, 1, {}}};
  call.tensor_crc32c = {2};
  Promise<absl::StatusOr<JobPlan>> answer;
  cluster.directories_[0]->apis().trainers->Extend(call, answer.Setter());
  EXPECT_EQ(ReasonOf(answer.Get().status()), Reason::kLayoutMismatch);
}

TEST(JobDirectoryTest, ShutdownAnswersThoseWhoWait) {
  Cluster cluster(1);
  Promise<absl::StatusOr<AttachResult>> answer;
  cluster.directories_[0]->apis().trainers->Attach(Call(2), answer.Setter());
  cluster.directories_[0]->Shutdown([] {});
  EXPECT_EQ(ReasonOf(answer.Get().status()), Reason::kShuttingDown);
}

TEST(JobDirectoryTest, BadSpecsAreRefusedBeforeAnythingIsKept) {
  Cluster cluster(1);
  AttachCall call = Call(1, "bad/name");
  EXPECT_EQ(ReasonOf(cluster.AttachAll(call, 1).status()), Reason::kBadSpec);
  Promise<std::vector<JobStatus>> jobs;
  cluster.directories_[0]->apis().jobs->Status(jobs.Setter());
  EXPECT_TRUE(jobs.Get().empty());
}

}  // namespace
}  // namespace ballast::server
