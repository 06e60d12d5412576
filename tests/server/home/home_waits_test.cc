// The limits of a trainer's cost to its home: the length of an attach's wait, the number of timers
// and messages.
#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "server/home/home_jobs.h"
#include "server/home/latest_reports.h"
#include "tests/server/home/home_inputs.h"

namespace ballast::server::testing {
namespace {

using ::testing::HasSubstr;

// Runs tasks in Run, and delayed ones in Pass.
class WaitingExecutor : public Executor {
 public:
  explicit WaitingExecutor(FakeClock* clock) : clock_(clock) {}

  size_t pending() const { return later_.size(); }
  // Time passes, and timers due meanwhile run at their time.
  void Pass(nanoseconds time) {
    const nanoseconds end = clock_->Now() + time;
    while (!later_.empty() && later_.begin()->first <= end) {
      const auto next = later_.extract(later_.begin());
      clock_->Advance(std::max(next.key() - clock_->Now(), nanoseconds(0)));
      next.mapped()();
      Run();
    }
    clock_->Advance(end - clock_->Now());
  }

  void Run() {
    while (!tasks_.empty()) {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }

  bool Post(std::function<void()> task) override {
    tasks_.push_back(std::move(task));
    return true;
  }
  bool PostAfter(nanoseconds delay, std::function<void()> task) override {
    later_.emplace(clock_->Now() + delay, std::move(task));
    return true;
  }
  void Shutdown() override { later_.clear(); }
  bool IsOwnThread() const override { return true; }
  bool IsOpen() override { return true; }

 private:
  FakeClock* const clock_;
  std::deque<std::function<void()>> tasks_;
  std::multimap<nanoseconds, std::function<void()>> later_;
};

// A server on which no job is ever made.
class NoShares : public LocalShares {
 public:
  std::shared_ptr<RoundEngine> Find(uint64_t) const override { return nullptr; }
  bool Runs(uint64_t) const override { return false; }
  absl::Status Make(const JobPlan&) override { return absl::UnknownError("not here"); }
  absl::Status Save(const JobPlan&) override { return absl::UnknownError("not here"); }
  void Drop(uint64_t) override {}
  bool DropEnded(const std::string* tenant) override {
    dropped.push_back(tenant == nullptr ? "all" : *tenant);
    return false;
  }
  absl::Status Forget(uint64_t) override { return absl::OkStatus(); }
  void CreateJob(JobPlan, std::function<void(absl::Status)>) override {}
  void ExtendJob(JobPlan, std::function<void(absl::Status)>) override {}
  void DropJob(uint64_t, std::function<void(absl::Status)>) override {}
  void Seal(SealCall, std::function<void(absl::StatusOr<SealAnswer>)>) override {}
  void AdoptEpoch(JobPlan, std::function<void(absl::Status)>) override {}

  std::vector<std::string> dropped;  // the tenant of each DropEnded
};

// Attaches of a world's first trainer, whose other trainer never comes.
class HomeTimersTest : public ::testing::Test {
 protected:
  HomeTimersTest() { strand_.SetOwner(owner_); }
  static DirectoryConfig Config() {
    DirectoryConfig config;
    config.servers = {{0, "here"}};
    config.attach_timeout = std::chrono::hours(24);
    return config;
  }
  void Attach(const std::string& name, nanoseconds wait) {
    AttachCall call = HomeCall(0, kFirst);
    call.spec.name = name;
    call.wait = std::chrono::duration_cast<milliseconds>(wait);
    call.resume = Resume::kNever;
    homes_.Attach(call, [this, name](const absl::StatusOr<AttachResult>& result) {
      answers_[name].push_back({clock_.Now(), ReasonOf(result.status())});
    });
    executor_.Run();
  }
  void HangUp(const std::string& name) {
    homes_.AttachCancelled({.name = name}, 0, 0);
    executor_.Run();
  }

  struct Answer {
    nanoseconds at;
    Reason reason;
  };
  FakeClock clock_{seconds(1000)};
  WaitingExecutor executor_{&clock_};
  const std::shared_ptr<void> owner_ = std::make_shared<int>();
  const ThisServer self_{Config()};
  OwnerStrand strand_{&executor_};
  NoShares shares_;
  RestingJobs resting_;
  const DamagedJobs damaged_{&self_, nullptr, nullptr};
  HomeJobs homes_{{.self = &self_,
                   .strand = &strand_,
                   .clock = &clock_,
                   .shares = &shares_,
                   .resting = &resting_,
                   .damaged = &damaged_}};
  std::map<std::string, std::vector<Answer>> answers_;
};

// About 27 doublings from a millisecond to a day, four wake-ups in each.
constexpr size_t kWakesMax = 128;

TEST_F(HomeTimersTest, AFloodOfAttachesThatHangUpLeavesFewTimers) {
  for (int i = 0; i < 20'000; ++i) {
    const std::string name = std::to_string(i);
    Attach(name, std::chrono::hours(24) - seconds(4 * i));  // Each ends before the last one.
    HangUp(name);
    ASSERT_EQ(homes_.table().Find({.name = name}), nullptr);
    ASSERT_LE(executor_.pending(), kWakesMax) << i;
    if (i % 10 == 0) executor_.Pass(milliseconds(3));
  }
  executor_.Pass(std::chrono::hours(24));
  EXPECT_EQ(executor_.pending(), 0u);
  EXPECT_TRUE(answers_.empty());
}

TEST_F(HomeTimersTest, EveryAttachThatStaysWaitsItsTimeAndNoLonger) {
  const nanoseconds begin = clock_.Now();
  std::map<std::string, nanoseconds> ends;
  for (int i = 0; i < 60; ++i) {
    const std::string name = std::to_string(i);
    const nanoseconds wait = milliseconds(1 + 7919 * ((i * 37) % 60));
    Attach(name, wait);
    ends[name] = begin + wait;
  }
  // Another job of a name does not inherit the wait of the first.
  HangUp("7");
  Attach("7", seconds(900));
  ends["7"] = begin + seconds(900);
  executor_.Pass(std::chrono::hours(1));
  for (const auto& [name, end] : ends) {
    ASSERT_EQ(answers_[name].size(), 1u) << name;
    EXPECT_EQ(answers_[name][0].reason, Reason::kAttachTimeout);
    EXPECT_EQ(answers_[name][0].at, end) << name;
  }
  EXPECT_EQ(executor_.pending(), 0u);
}

class HomePlacesTest : public HomeTimersTest {
 protected:
  void Hold(const std::string& tenant, size_t jobs) {
    JobPlan plan = HomeRig::Running(&rules_).job().plan();
    plan.tenant = tenant;
    for (size_t i = 0; i < jobs; ++i) {
      plan.spec.name = std::to_string(i);
      plan.job = next_++;
      homes_.Recover(plan, /*making=*/false);
    }
  }
  Reason AttachOf(const std::string& tenant) {
    AttachCall call = HomeCall(0, kFirst);
    call.spec.name = "new";
    call.caller = {.secured = true, .identity = {.role = Role::kTrainer, .tenant = tenant}};
    call.resume = Resume::kNever;
    Reason reason = Reason::kUnspecified;
    homes_.Attach(call, [&](const absl::StatusOr<AttachResult>& result) {
      reason = ReasonOf(result.status());
    });
    executor_.Run();
    return reason;
  }
  const home::Rules rules_ = TestRules();
  uint64_t next_ = 1;
};

TEST_F(HomePlacesTest, ATenantWithItsShareOfJobsMakesRoomAmongItsOwnAlone) {
  Hold("a", self_.config().jobs_max / 2);
  EXPECT_EQ(AttachOf("a"), Reason::kOverBudget);
  EXPECT_THAT(shares_.dropped, ::testing::ElementsAre("a")) << "another tenant's can be read on";
}

TEST_F(HomePlacesTest, AFullServerMakesRoomAmongItsCallersEndedJobsFirst) {
  Hold("a", self_.config().jobs_max / 2);
  Hold("b", self_.config().jobs_max / 2 - 1);
  Hold("c", 1);
  EXPECT_EQ(AttachOf("c"), Reason::kOverBudget);
  EXPECT_THAT(shares_.dropped, ::testing::ElementsAre("c", "all"));
}

TEST(HomeWaitsTest, AnAttachWaitsNoLongerThanTheServersTimeOut) {
  const home::Rules rules = TestRules();
  for (const auto& [asked, granted] :
       {std::pair{milliseconds(0), seconds(600)}, std::pair{milliseconds(5000), seconds(5)},
        std::pair{milliseconds(86'400'000), seconds(600)}}) {
    AttachCall call = HomeCall(0, kFirst);
    call.wait = asked;
    HomeRig rig(HomeJob::New(&rules, call));
    EXPECT_EQ(One<home::Arm>(rig.Attach(call)).after, granted);
    EXPECT_EQ(rules.WaitOf(call), granted);
  }
}

// --- Trainers that never come -------------------------------------------------------------------

const home::Rules kWaitRules = TestRules();

TEST(HomeWaitsTest, AJobWhoseTrainersOpenNoStreamInTimeRests) {
  HomeRig rig = HomeRig::Running(&kWaitRules);
  const home::FailJob end = One<home::FailJob>(rig.FeedDue(home::EpochDueInput{1, true}));
  EXPECT_TRUE(end.unless_opened);
  EXPECT_EQ(end.job, rig.job().plan().job);
  EXPECT_EQ(ReasonOf(end.status), Reason::kJobFinished);
  EXPECT_THAT(std::string(end.status.message()), HasSubstr("within 700 s of taking its seat"));
  EXPECT_EQ(rig.phase(), HomeJob::Phase::kRunning) << "only its engine knows of streams";
}

// Those for trainers.
std::vector<home::Arm> WaitsForTrainers(const home::Effects& effects) {
  std::vector<home::Arm> arms = All<home::Arm>(effects);
  std::erase_if(arms, [](const home::Arm& arm) {
    const auto* const due = std::get_if<home::EpochDueInput>(&arm.due);
    return due == nullptr || !due->trainers;
  });
  return arms;
}

TEST(HomeWaitsTest, WhileAProcessWaitsForASeatTheJobDoesNotRest) {
  HomeRig rig = HomeRig::Running(&kWaitRules);
  rig.Attach(HomeCall(1, kFirst + 7));
  const home::Effects due = rig.FeedDue(home::EpochDueInput{1, true});
  EXPECT_FALSE(Has<home::FailJob>(due));
  EXPECT_EQ(WaitsForTrainers(due).size(), 1u);
}

TEST(HomeWaitsTest, TheTimeForAStreamBeginsWhenADurableJobIsMadeOrWoken) {
  for (const auto durability : {Durability::kProcess, Durability::kNone}) {
    AttachCall zero = HomeCall(0, kFirst), one = HomeCall(1, kFirst + 1);
    zero.spec.durability = one.spec.durability = durability;
    HomeRig made(HomeJob::New(&kWaitRules, zero));
    for (const AttachCall& call : {zero, one}) made.Attach(call);
    home::Effects last;
    for (const uint32_t server : {0u, 1u}) last = made.Feed(home::MadeInput{server, {}});
    if (Has<home::SaveRecord>(last)) last = made.Feed(home::SavedInput{absl::OkStatus()});
    ASSERT_EQ(made.phase(), HomeJob::Phase::kRunning);
    ASSERT_EQ(WaitsForTrainers(last).size(), durability == Durability::kNone ? 0u : 1u);
  }
  HomeRig woken(HomeJob::Woken(&kWaitRules, HomeRig::Running(&kWaitRules).job().plan()));
  woken.Attach(HomeCall(1, kSecond));
  woken.Feed(home::StartInput{});
  woken.Feed(home::MadeInput{0, absl::OkStatus()});
  const std::vector<home::Arm> awake =
      WaitsForTrainers(woken.Feed(home::MadeInput{1, absl::OkStatus()}));
  ASSERT_EQ(awake.size(), 1u);
  EXPECT_EQ(awake[0].after, kWaitRules.trainerless);
}

TEST(HomeWaitsTest, ATrainerThatTakesASeatMeanwhileHasTheWholeTime) {
  HomeRig rig = HomeRig::Running(&kWaitRules);
  rig.Attach(HomeCall(1, kSecond));
  rig.Seen(1, /*open=*/false);
  ASSERT_EQ(rig.phase(), HomeJob::Phase::kSealing);
  for (const bool changed : {false, true}) {
    if (changed) rig.Change(2);
    const home::Effects effects = rig.FeedDue(home::EpochDueInput{1, true});
    EXPECT_FALSE(Has<home::FailJob>(effects));
    const home::Due again = One<home::Arm>(effects).due;
    EXPECT_EQ(std::get<home::EpochDueInput>(again).epoch, changed ? 2u : 1u);
  }
  EXPECT_TRUE(Has<home::FailJob>(rig.FeedDue(home::EpochDueInput{2, true})));
}

TEST(LatestReportsTest, OfEachProcessOnlyTheNewestWaits) {
  LatestReports reports;
  const Member zero{0, 100, ""};
  EXPECT_TRUE(reports.Put({7, zero, Doing{.bucket = 1}}));
  for (uint32_t i = 2; i <= 1000; ++i) EXPECT_FALSE(reports.Put({7, zero, Doing{.bucket = i}}));
  EXPECT_FALSE(reports.Put({7, {0, 101, ""}, Doing{.bucket = 3}}));
  EXPECT_FALSE(reports.Put({8, zero, Doing{.bucket = 4}}));
  const std::vector<DoingReport> taken = reports.Take();
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_EQ(taken[0].doing.bucket, 1000u);
  EXPECT_EQ(taken[1].rank.incarnation, 101u);
  EXPECT_EQ(taken[2].job, 8u);
  EXPECT_TRUE(reports.Put({7, zero, Doing{}}));
}

}  // namespace
}  // namespace ballast::server::testing
