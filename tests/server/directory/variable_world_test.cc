// Worlds that change: joins and departures, the meaning of a lease, and the completion of an epoch
// change once begun, through hang-ups and restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/server/directory/durable_cluster.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::AttachAnswer;
using testing::DurableDirectories;
using testing::RecordingSink;
using testing::SeatCall;

constexpr uint64_t kFirst = 100;  // + slot: the processes that made the job

class VariableWorldTest : public ::testing::Test {
 protected:
  // Two trainers make the job on two servers.
  void Make(const DurableDirectories::Options& options = {}, bool variable = true) {
    variable_ = variable;
    cluster_ = std::make_unique<DurableDirectories>(2, options);
    AttachAnswer zero = Ask(0, kFirst), one = Ask(1, kFirst + 1);
    ASSERT_TRUE(one.Get().ok()) << one.Get().status();
    ASSERT_TRUE(zero.Get().ok()) << zero.Get().status();
    job_ = zero.Get()->plan.job;
  }
  AttachCall Call(uint32_t slot, uint64_t incarnation, uint32_t world = 2) {
    AttachCall call = SeatCall(slot, incarnation);
    call.spec.variable_world = variable_;
    call.spec.world = world;
    return call;
  }
  AttachAnswer Ask(uint32_t slot, uint64_t incarnation, uint32_t world = 2) {
    AttachAnswer answer;
    AttachCall call = Call(slot, incarnation, world);
    call.min_world = min_world_;
    call.wait = wait_;
    cluster_->At(0)->apis().trainers->Attach(call, answer.Setter());
    return answer;
  }
  // Both trainers leave, the second one last, and the job rests in an epoch of its own; the servers
  // then start with `lease`.
  void MakeAndRest(std::chrono::milliseconds lease) {
    Make();
    Rest();
    cluster_->SetLease(lease);
    for (const uint32_t id : {0u, 1u}) cluster_->Restart(id);
  }
  void Rest() {
    for (const uint32_t slot : {0u, 1u}) {
      for (const uint32_t id : {0u, 1u}) OpenStream(id, slot, kFirst + slot);
    }
    for (const uint32_t slot : {0u, 1u}) {
      for (const uint32_t id : {0u, 1u})
        cluster_->Engine(id, job_)->trainers().Leave(slot, kFirst + slot);
    }
    for (const uint32_t id : {0u, 1u}) {
      while (!cluster_->Record(id, job_).resting) Settle(id);
    }
  }
  // The slots of the epoch in which these three processes were let in.
  std::vector<uint32_t> SlotsWith(AttachAnswer* answer) {
    const auto result = answer->Get();
    EXPECT_TRUE(result.ok()) << result.status();
    std::vector<uint32_t> slots;
    if (result.ok()) {
      for (const Member& member : result->plan.epoch.members) slots.push_back(member.slot);
    }
    return slots;
  }
  std::shared_ptr<RecordingSink> OpenStream(uint32_t server, uint32_t slot, uint64_t incarnation,
                                            uint32_t epoch = 1) {
    return cluster_->OpenStream(server, job_,
                                {.slot = slot, .incarnation = incarnation, .epoch = epoch});
  }
  void Settle(uint32_t server) {
    Answer<JobStatus> snapshot;
    if (const auto engine = cluster_->Engine(server, job_)) {
      engine->Status(snapshot.Setter());
      snapshot.Get();
    }
    Answer<std::vector<JobStatus>> jobs;
    cluster_->At(server)->apis().jobs->Status(jobs.Setter());
    jobs.Get();
  }
  // Waits until every server has `epoch` on disk; its members' slots.
  std::vector<uint32_t> SlotsOnceIn(uint32_t epoch) {
    std::vector<uint32_t> slots;
    for (const uint32_t id : {0u, 1u}) {
      while (cluster_->Record(id, job_).epoch.epoch < epoch) Settle(id);
      const JobPlan plan = cluster_->Record(id, job_);
      EXPECT_EQ(plan.epoch.epoch, epoch) << "server " << id;
      EXPECT_EQ(plan.epoch.contributors[0].divisor, plan.epoch.world());
      std::vector<uint32_t> here;
      for (const Member& member : plan.epoch.members) here.push_back(member.slot);
      if (id != 0) {
        EXPECT_EQ(here, slots);
      }
      slots = here;
    }
    return slots;
  }
  uint32_t EpochNow() {
    Settle(0);
    return cluster_->Record(0, job_).epoch.epoch;
  }

  bool variable_ = true;
  uint32_t min_world_ = 1;
  std::chrono::milliseconds wait_{0};
  std::unique_ptr<DurableDirectories> cluster_;
  uint64_t job_ = 0;
};

const std::chrono::milliseconds kShort(30);

// --- Coming -------------------------------------------------------------------------------------

TEST_F(VariableWorldTest, ARankBeyondTheWorldGetsASeatInTheNextEpoch) {
  Make();
  const auto result = Ask(2, 900, 3).Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->resumed);
  EXPECT_EQ(SlotsOnceIn(2), (std::vector<uint32_t>{0, 1, 2}));
  const auto survivor = Ask(0, kFirst).Get();
  ASSERT_TRUE(survivor.ok()) << survivor.status();
  EXPECT_EQ(survivor->plan.epoch.world(), 3u);
  for (const uint32_t id : {0u, 1u}) OpenStream(id, 2, 900, 2);
}

TEST_F(VariableWorldTest, InAFixedWorldThereIsNoSuchSeat) {
  Make({}, /*variable=*/false);
  EXPECT_EQ(ReasonOf(Ask(2, 900, 3).Get().status()), Reason::kSpecMismatch);
  EXPECT_EQ(EpochNow(), 1u);
}

TEST_F(VariableWorldTest, AJobStartsWithTheWorldThatAllOfItsTrainersName) {
  cluster_ = std::make_unique<DurableDirectories>(2);
  AttachAnswer zero = Ask(0, kFirst);
  const absl::Status other = Ask(1, kFirst + 1, 3).Get().status();
  EXPECT_EQ(ReasonOf(other), Reason::kSpecMismatch);
  EXPECT_THAT(std::string(other.message()), ::testing::HasSubstr("world is 3"));
  EXPECT_EQ(ReasonOf(zero.Get().status()), Reason::kSpecMismatch);
}

TEST_F(VariableWorldTest, ANewcomerThatDoesNotFitIsTurnedAwayAndTheOthersGoOn) {
  Make();
  const uint64_t used = std::max(cluster_->At(0)->apis().jobs->Load().memory_used_bytes,
                                 cluster_->At(1)->apis().jobs->Load().memory_used_bytes);
  Make({.memory_bytes = {used + 100, used + 100}});
  const absl::Status status = Ask(7, 900, 8).Get().status();
  EXPECT_EQ(ReasonOf(status), Reason::kOverBudget) << status;
  EXPECT_EQ(SlotsOnceIn(2), (std::vector<uint32_t>{0, 1})) << "the old epoch was sealed";
  EXPECT_TRUE(Ask(0, kFirst).Get().ok());
}

TEST_F(VariableWorldTest, MemoryFollowsTheWorld) {
  Make();
  const uint64_t two = cluster_->At(0)->apis().jobs->Load().memory_used_bytes;
  ASSERT_TRUE(Ask(2, 900, 3).Get().ok());
  Settle(0);
  EXPECT_GT(cluster_->At(0)->apis().jobs->Load().memory_used_bytes, two);
}

// --- Going --------------------------------------------------------------------------------------

TEST_F(VariableWorldTest, WhoLeavesIsNotWaitedFor) {
  Make();
  for (const uint32_t id : {0u, 1u}) {
    OpenStream(id, 0, kFirst);
    OpenStream(id, 1, kFirst + 1);
  }
  // The first word of it may begin the next epoch, in which streams of this one are refused.
  for (const uint32_t id : {0u, 1u}) cluster_->Engine(id, job_)->trainers().Leave(1, kFirst + 1);
  EXPECT_EQ(SlotsOnceIn(2), (std::vector<uint32_t>{0}));
  EXPECT_EQ(ReasonOf(Ask(1, kFirst + 1).Get().status()), Reason::kUnspecified)
      << "with resume it may come again";
}

TEST_F(VariableWorldTest, WhenAllHaveLeftTheJobIsFinished) {
  Make();
  for (const uint32_t id : {0u, 1u}) {
    for (const uint32_t slot : {0u, 1u}) {
      OpenStream(id, slot, kFirst + slot);
    }
  }
  for (const uint32_t slot : {0u, 1u}) {
    for (const uint32_t id : {0u, 1u})
      cluster_->Engine(id, job_)->trainers().Leave(slot, kFirst + slot);
  }
  for (const uint32_t id : {0u, 1u}) {
    while (!cluster_->Record(id, job_).resting) Settle(id);
  }
  // And a server that continues it finds servers that agree on the epoch.
  const auto next = Ask(0, 900, 1).Get();
  ASSERT_TRUE(next.ok()) << next.status();
}

// The home continues without the first one that leaves; the second one leaves meanwhile.
TEST_F(VariableWorldTest, APeerThatFinishesBeforeItAdoptsEndsTheHomesJobToo) {
  Make();
  for (const uint32_t id : {0u, 1u}) {
    for (const uint32_t slot : {0u, 1u}) OpenStream(id, slot, kFirst + slot);
  }
  cluster_->Keep("adopt", 1);
  for (const uint32_t id : {1u, 0u}) cluster_->Engine(id, job_)->trainers().Leave(1, kFirst + 1);
  cluster_->WaitForKept(1);
  cluster_->Engine(1, job_)->trainers().Leave(0, kFirst);
  while (!cluster_->Record(1, job_).resting) Settle(1);
  cluster_->KeepNoMore();
  cluster_->Release();
  while (!cluster_->Record(0, job_).resting) Settle(0);
  const auto next = Ask(0, 900, 1).Get();
  ASSERT_TRUE(next.ok()) << next.status();
}

TEST_F(VariableWorldTest, WhoseLeaseRunsOutIsGoneOnWithout) {
  Make({.lease = kShort});
  OpenStream(0, 0, kFirst);
  const auto lost = OpenStream(0, 1, kFirst + 1);
  cluster_->Engine(0, job_)->trainers().SlotLost({1, lost.get(), "killed"});
  EXPECT_EQ(SlotsOnceIn(2), (std::vector<uint32_t>{0}));
  // Woken up, it is told that it is nobody: it must not make a job of the name, nor take the seat.
  AttachCall zombie = Call(1, kFirst + 1);
  zombie.resume = Resume::kNever;
  AttachAnswer answer;
  cluster_->At(0)->apis().trainers->Attach(zombie, answer.Setter());
  EXPECT_EQ(ReasonOf(answer.Get().status()), Reason::kNameInUse);
}

TEST_F(VariableWorldTest, WhoIsBackBeforeItsLeaseRunsOutStays) {
  Make({.lease = std::chrono::hours(1)});
  OpenStream(0, 0, kFirst);
  const auto lost = OpenStream(0, 1, kFirst + 1);
  cluster_->Engine(0, job_)->trainers().SlotLost({1, lost.get(), "a switch was rebooted"});
  OpenStream(0, 1, kFirst + 1);
  EXPECT_EQ(EpochNow(), 1u);
}

TEST_F(VariableWorldTest, InAFixedWorldAnEmptySeatIsKept) {
  Make({.lease = std::chrono::milliseconds(1)}, /*variable=*/false);
  const auto lost = OpenStream(0, 1, kFirst + 1);
  cluster_->Engine(0, job_)->trainers().SlotLost({1, lost.get(), "killed"});
  ASSERT_TRUE(Ask(1, 900).Get().ok());
  EXPECT_EQ(SlotsOnceIn(2), (std::vector<uint32_t>{0, 1}));
}

TEST_F(VariableWorldTest, TheLastOneIsWaitedFor) {
  Make({.lease = std::chrono::milliseconds(1)});
  // Nobody has a stream. One of both leases is the first to run out; the other seat remains.
  EXPECT_EQ(SlotsOnceIn(2).size(), 1u);
  EXPECT_EQ(EpochNow(), 2u);
}

// --- Beginning again ----------------------------------------------------------------------------

TEST_F(VariableWorldTest, AJobThatRestsBeginsAgainWithAllWhoComeInWhateverOrder) {
  for (const std::vector<uint32_t>& order :
       {std::vector<uint32_t>{0, 1, 2}, std::vector<uint32_t>{2, 1, 0}}) {
    Make();
    Rest();
    std::vector<AttachAnswer> answers;
    for (const uint32_t slot : order) {
      cluster_->PassTime(0, std::chrono::milliseconds(50));
      for (AttachAnswer& early : answers) EXPECT_FALSE(early.Has()) << "before slot " << slot;
      answers.push_back(Ask(slot, 900 + slot, 3));
    }
    for (AttachAnswer& answer : answers) {
      EXPECT_EQ(SlotsWith(&answer), (std::vector<uint32_t>{0, 1, 2}));
    }
  }
}

TEST_F(VariableWorldTest, SoDoesOneWhoseServersWereStartedAgain) {
  Make();
  for (const uint32_t id : {0u, 1u}) cluster_->Restart(id);
  AttachAnswer two = Ask(2, 902, 3), zero = Ask(0, 900, 3);
  for (int i = 0; i < 20; ++i) Settle(0);
  EXPECT_FALSE(zero.Has());
  Answer<std::vector<JobStatus>> jobs;
  cluster_->At(0)->apis().jobs->Status(jobs.Setter());
  ASSERT_EQ(jobs.Get().size(), 1u);
  EXPECT_EQ(jobs.Get()[0].state, "attaching");
  ASSERT_EQ(jobs.Get()[0].slots.size(), 3u);
  EXPECT_EQ(jobs.Get()[0].slots[0].state, "attached");
  EXPECT_EQ(jobs.Get()[0].slots[1].state, "absent");
  AttachAnswer one = Ask(1, 901, 3);
  for (AttachAnswer* const answer : {&two, &zero, &one}) {
    EXPECT_EQ(SlotsWith(answer), (std::vector<uint32_t>{0, 1, 2}));
  }
}

TEST_F(VariableWorldTest, AfterALeaseItBeginsWithThoseWhoAreThere) {
  MakeAndRest(kShort);
  AttachAnswer zero = Ask(0, 900, 4);
  EXPECT_EQ(SlotsWith(&zero), std::vector<uint32_t>{0});
}

TEST_F(VariableWorldTest, ButNotWithFewerThanTheyAskFor) {
  MakeAndRest(std::chrono::milliseconds(1));
  min_world_ = 2;
  AttachAnswer zero = Ask(0, 900, 3);
  cluster_->PassTime(0, std::chrono::milliseconds(250));
  EXPECT_FALSE(zero.Has());
  AttachAnswer two = Ask(2, 902, 3);
  EXPECT_EQ(SlotsWith(&zero), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(zero.Get()->plan.epoch.min_world, 2u);
  EXPECT_TRUE(two.Get().ok());
}

TEST_F(VariableWorldTest, ATimedOutTrainerLearnsWhichSlotIsMissing) {
  MakeAndRest(std::chrono::milliseconds(1));
  min_world_ = 3;
  wait_ = std::chrono::milliseconds(200);
  const absl::Status status = Ask(1, 900, 3).Get().status();
  EXPECT_EQ(ReasonOf(status), Reason::kAttachTimeout);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("slots 0, 2 of a world of 3"));
}

TEST_F(VariableWorldTest, ATrainerThatIsThereIsJoinedAtOnceAlsoAfterARestartOfTheHome) {
  Make();
  cluster_->Restart(0);
  for (const uint32_t id : {0u, 1u}) OpenStream(id, 0, kFirst);
  AttachAnswer three = Ask(3, 903, 4);  // Nobody has asked for seat 2.
  EXPECT_EQ(SlotsWith(&three), (std::vector<uint32_t>{0, 1, 3}));
}

// --- The fewest that continue
// ----------------------------------------------------------------------

TEST_F(VariableWorldTest, WhoIsLostIsWaitedForWhenTooFewWouldBeLeft) {
  min_world_ = 2;
  Make({.lease = std::chrono::milliseconds(1)});
  for (const uint32_t slot : {0u, 1u}) OpenStream(0, slot, kFirst + slot);
  const auto lost = OpenStream(0, 1, kFirst + 1);
  cluster_->Engine(0, job_)->trainers().SlotLost({1, lost.get(), "killed"});
  cluster_->PassTime(0, std::chrono::milliseconds(100));
  EXPECT_EQ(EpochNow(), 1u);
  AttachAnswer next = Ask(1, 901);
  EXPECT_EQ(SlotsWith(&next), (std::vector<uint32_t>{0, 1}));
}

TEST_F(VariableWorldTest, AllTrainersOfANewJobAskForTheSame) {
  cluster_ = std::make_unique<DurableDirectories>(2);
  AttachAnswer zero = Ask(0, kFirst);
  min_world_ = 2;
  const absl::Status other = Ask(1, kFirst + 1).Get().status();
  EXPECT_EQ(ReasonOf(other), Reason::kSpecMismatch);
  EXPECT_THAT(std::string(other.message()), ::testing::HasSubstr("min_world is 2"));
}

// --- Leases -------------------------------------------------------------------------------------

TEST_F(VariableWorldTest, AProcessThatFellSilentKeepsItsSeatForTheRestOfItsLease) {
  Make({.lease = std::chrono::hours(1)}, /*variable=*/false);
  const auto hung = OpenStream(0, 1, kFirst + 1);
  cluster_->Engine(0, job_)->trainers().SlotLost(
      {1, hung.get(), "no heartbeat", std::chrono::seconds(3)});
  AttachAnswer newcomer = Ask(1, 900);
  for (int i = 0; i < 20; ++i) Settle(0);
  EXPECT_FALSE(newcomer.Has());
  // Its end, once the process is killed, frees the seat.
  const auto again = OpenStream(0, 1, kFirst + 1);
  cluster_->Engine(0, job_)->trainers().SlotLost({1, again.get(), "its connection closed"});
  ASSERT_TRUE(newcomer.Get().ok()) << newcomer.Get().status();
}

TEST_F(VariableWorldTest, AfterItsLeaseAnotherMayHaveTheSeatOfASilentProcess) {
  Make({.lease = kShort}, /*variable=*/false);
  const auto hung = OpenStream(0, 1, kFirst + 1);
  cluster_->Engine(0, job_)->trainers().SlotLost(
      {1, hung.get(), "no heartbeat", std::chrono::milliseconds(10)});
  const auto newcomer = Ask(1, 900).Get();
  ASSERT_TRUE(newcomer.ok()) << newcomer.status();
  EXPECT_TRUE(newcomer->plan.epoch.Holds(1, 900));
}

TEST_F(VariableWorldTest, ARestartOfTheHomeGivesNoSeatAwayWhoseProcessIsOnItsWayBack) {
  Make({.return_wait = std::chrono::hours(1)}, /*variable=*/false);
  cluster_->Restart(0);
  AttachAnswer impostor = Ask(1, 900);
  for (int i = 0; i < 20; ++i) Settle(0);
  EXPECT_FALSE(impostor.Has());
  const auto back = OpenStream(0, 1, kFirst + 1);
  cluster_->Engine(0, job_)->trainers().SlotLost({1, back.get(), "killed"});
  ASSERT_TRUE(impostor.Get().ok()) << impostor.Get().status();
}

TEST_F(VariableWorldTest, TheHomeTellsTheOthersWhoIsAwayAndWhoIsBack) {
  Make();
  const auto other = OpenStream(0, 0, kFirst);
  const auto elsewhere = OpenStream(1, 0, kFirst);
  for (const uint32_t id : {0u, 1u}) {
    const auto lost = OpenStream(id, 1, kFirst + 1);
    cluster_->Engine(id, job_)->trainers().SlotLost(
        {1, lost.get(), "no heartbeat", std::chrono::minutes(30)});
  }
  const auto late = OpenStream(0, 0, kFirst);  // A new stream is told, too.
  OpenStream(0, 1, kFirst + 1);
  Settle(0);
  Settle(1);
  {
    MutexLock lock(&other->mu_);
    ASSERT_EQ(other->news_.size(), 1u);
    EXPECT_EQ(other->news_[0].slot, 1u);
    EXPECT_TRUE(other->news_[0].away);
    EXPECT_EQ(other->news_[0].why, "no heartbeat");
    EXPECT_GT(other->news_[0].lease_left_ms, 0u);
    EXPECT_LE(other->news_[0].lease_left_ms, 30u * 60 * 1000);
  }
  {
    MutexLock lock(&late->mu_);
    ASSERT_EQ(late->news_.size(), 2u);
    EXPECT_TRUE(late->news_[0].away);
    EXPECT_FALSE(late->news_[1].away);
  }
  MutexLock lock(&elsewhere->mu_);
  EXPECT_TRUE(elsewhere->news_.empty()) << "only the home tells";
}

// --- Changes that are interrupted ---------------------------------------------------------------

TEST_F(VariableWorldTest, AChangeThatTheHomesEndBrokeOffIsTakenUpAgain) {
  Make({}, /*variable=*/false);
  cluster_->Keep("seal", 1);
  AttachAnswer newcomer = Ask(1, 900);
  cluster_->WaitForKept(1);
  EXPECT_EQ(cluster_->Record(0, job_).sealed_epoch, 1u) << "the home has sealed first";
  cluster_->KeepNoMore();
  cluster_->Restart(0);
  // Nobody asks for anything, but no round of the sealed epoch could be prepared any more.
  EXPECT_EQ(SlotsOnceIn(2), (std::vector<uint32_t>{0, 1}));
  EXPECT_TRUE(cluster_->Record(0, job_).epoch.Holds(1, kFirst + 1));
}

TEST_F(VariableWorldTest, AJobThatTheHomesEndLeftHalfMadeIsMade) {
  variable_ = false;
  cluster_ = std::make_unique<DurableDirectories>(2);
  cluster_->Keep("create", 1);
  AttachAnswer zero = Ask(0, kFirst), one = Ask(1, kFirst + 1);
  cluster_->WaitForKept(1);
  cluster_->KeepNoMore();
  cluster_->Restart(0);  // It has its part of the job on disk, the other server has none.
  AttachAnswer same = Ask(0, kFirst), other = Ask(1, 900);
  ASSERT_TRUE(same.Get().ok()) << same.Get().status();
  ASSERT_TRUE(other.Get().ok()) << other.Get().status();
  EXPECT_TRUE(other.Get()->plan.epoch.Holds(1, 900)) << "a process that was started again";
  job_ = same.Get()->plan.job;
  EXPECT_EQ(SlotsOnceIn(2), (std::vector<uint32_t>{0, 1}));
  EXPECT_FALSE(cluster_->Record(0, job_).making);
  OpenStream(1, 0, kFirst, 2);
}

TEST_F(VariableWorldTest, AChangeThatNobodyWaitsForAnyMoreComesToItsEnd) {
  Make({}, /*variable=*/false);
  auto failures = std::make_shared<std::atomic<int>>(1);
  cluster_->SetRule([failures](const std::string& call, uint32_t) {
    return call == "seal" && failures->fetch_sub(1) > 0 ? absl::UnavailableError("away")
                                                        : absl::OkStatus();
  });
  EXPECT_FALSE(Ask(1, 900).Get().ok());
  EXPECT_EQ(SlotsOnceIn(2), (std::vector<uint32_t>{0, 1}));
}

TEST_F(VariableWorldTest, ASeatIsWaitedForWhileAServerIsAway) {
  Make({}, /*variable=*/false);
  const auto sink = OpenStream(0, 1, kFirst + 1);
  AttachAnswer newcomer = Ask(1, 900);
  cluster_->At(0)->PeerLost(1, "killed");
  Settle(0);
  EXPECT_FALSE(newcomer.Has());
  cluster_->Engine(0, job_)->trainers().SlotLost({1, sink.get(), "killed"});
  EXPECT_TRUE(newcomer.Get().ok()) << newcomer.Get().status();
}

}  // namespace
}  // namespace ballast::server
