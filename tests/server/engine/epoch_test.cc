// The promise of a server that seals an epoch: it survives a restart, and ends when the server
// adopts the next epoch: an engine on a disk, with a peer that the test plays.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "common/bytes/crc32c.h"
#include "common/faults/failpoint.h"
#include "common/io/memory_disk.h"
#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"
#include "server/engine/round_engine.h"
#include "server/recovery/recovery.h"
#include "tests/server/answer.h"
#include "tests/server/engine/engine_cluster.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::IncarnationOf;
using testing::kChunk;
using testing::LayoutOf;
using testing::MakeBegin;
using testing::MakeFrame;
using testing::MakePlan;
using testing::RecordingSink;

constexpr char kDirectory[] = "/jobs/1";
constexpr uint32_t kSelf = 0, kPeer = 1;

using Sealed = Answer<absl::StatusOr<SealAnswer>>;

class EpochTest : public ::testing::Test, public VoteSink {
 protected:
  EpochTest() : plan_(MakePlan({300, 200}, /*world=*/1, {kSelf, kPeer})), layout_(LayoutOf(plan_)) {
    plan_.spec.durability = Durability::kPower;
    Start(/*fresh=*/true);
  }
  ~EpochTest() override { Stop(); }

  void SendVote(uint64_t, uint32_t epoch, uint64_t round, uint32_t to, const Vote& vote) override {
    MutexLock lock(&mu_);
    EXPECT_EQ(to, kPeer);
    sent_.push_back({epoch, round, vote});
    changed_.NotifyAll();
  }
  void DropVotes(uint64_t) override {}

  void Start(bool fresh) {
    const absl::Status opened = Open(fresh);
    ASSERT_TRUE(opened.ok()) << opened;
    engine_->Start();
  }
  absl::Status Open(bool fresh) {
    executor_ = std::make_unique<ThreadExecutor>("test", 2);
    workers_ = std::make_unique<ThreadWorkerPool>(1);
    EngineConfig config{.self = kSelf, .chunk_bytes = kChunk, .checkpoint_rounds = 1};
    config.open_timeout = std::chrono::hours(1);
    config.return_wait = std::chrono::hours(1);
    EngineDeps deps{.executor = executor_.get(),
                    .workers = workers_.get(),
                    .clock = RealClock::Get(),
                    .isa = simd::DetectIsa(),
                    .votes = this};
    deps.storage_failed = [this](const absl::Status&) { ++storage_failures_; };
    const StorageOptions options = StorageOptionsOf(plan_, layout_, kSelf, 1);
    auto storage = fresh ? JobStorage::Create(&disk_, kDirectory, options)
                         : JobStorage::Open(&disk_, kDirectory, options);
    BALLAST_RETURN_IF_ERROR(storage.status());
    for (const char* parent : {"/", "/jobs"}) {
      BALLAST_RETURN_IF_ERROR(disk_.SyncDirectory(parent));
    }
    BALLAST_ASSIGN_OR_RETURN(engine_,
                             RoundEngine::Create(plan_, config, deps, *std::move(storage)));
    return absl::OkStatus();
  }
  void Stop() {
    engine_.reset();
    executor_->Shutdown();
    workers_.reset();
  }
  void Restart() {
    Stop();
    disk_.Crash([] { return 1; });
    Start(/*fresh=*/false);
  }

  absl::Status Attach(uint32_t epoch, uint64_t incarnation = IncarnationOf(0)) {
    sink_ = std::make_shared<RecordingSink>(layout_.extents().size());
    Answer<absl::StatusOr<SlotWelcome>> welcome;
    engine_->trainers().AttachSlot({.slot = 0, .incarnation = incarnation, .epoch = epoch}, sink_,
                                   welcome.Setter());
    return welcome.Get().status();
  }
  void Send(FrameKind kind, uint64_t round, float value) {
    for (uint32_t extent = 0; extent < layout_.extents().size(); ++extent) {
      if (plan_.owner[extent] != kSelf) continue;
      for (const ChunkRange& range : ChunkRanges(layout_, extent, kChunk, {})) {
        const std::vector<float> values(range.length_bytes / sizeof(float), value);
        const std::string bytes(reinterpret_cast<const char*>(values.data()), range.length_bytes);
        FrameHeader header = MakeFrame(plan_, kind, 0, round, extent, range);
        header.epoch = plan_.epoch.epoch;
        header.incarnation = plan_.epoch.members[0].incarnation;
        header.crc32c = Crc32c(bytes.data(), bytes.size(), IdentityCrc(header));
        engine_->Frame(header, Payload::FromString(bytes));
      }
    }
  }
  // Everything that makes this server vote on `round`.
  void Push(uint64_t round) {
    if (round == 1) Send(FrameKind::kInit, 1, 0.5f);
    engine_->Begin(0, MakeBegin(round));
    Send(FrameKind::kGradient, round, 0.25f);
  }
  Vote WaitForVote(uint64_t round) {
    MutexLock lock(&mu_);
    for (;;) {
      for (const SentVote& sent : sent_) {
        if (sent.round == round && sent.epoch == plan_.epoch.epoch) return sent.vote;
      }
      changed_.Wait(&mu_);
    }
  }
  size_t VotesSent() {
    MutexLock lock(&mu_);
    return sent_.size();
  }
  // The peer agrees: it has the other extents, all of them harmless.
  void AnswerVote(uint64_t round, Vote own) {
    own.server = kPeer;
    own.scalars.clear();
    own.norms.clear();
    for (uint32_t extent = 0; extent < layout_.extents().size(); ++extent) {
      if (plan_.owner[extent] == kPeer) own.norms.push_back({extent, 1.0});
    }
    engine_->PeerVote(plan_.epoch.epoch, round, own, [](const VoteAnswer&) {});
  }
  JobStatus Status() {
    Answer<JobStatus> status;
    engine_->Status(status.Setter());
    return status.Get();
  }
  // All that was pushed has been summed.
  void WaitForWorkers() {
    Status();
    workers_->Run(1, [](size_t) {});
    Status();
  }
  absl::StatusOr<SealAnswer> Seal(uint32_t epoch) {
    Sealed sealed;
    engine_->changes().Seal(epoch, Saver(), sealed.Setter());
    return sealed.Get();
  }
  // Stores a sealed plan as the directory does.
  std::function<absl::Status(const JobPlan&)> Saver() {
    return [this](const JobPlan& sealed) {
      MutexLock lock(&mu_);
      saved_.push_back(sealed);
      return save_status_;
    };
  }
  std::vector<JobPlan> Saved() {
    MutexLock lock(&mu_);
    return saved_;
  }
  JobPlan NextPlan(uint64_t start_round) const {
    JobPlan next = plan_;
    ++next.epoch.epoch;
    next.epoch.start_round = start_round;
    next.epoch.members[0].incarnation = 900;
    return next;
  }
  absl::Status Adopt(const JobPlan& plan) {
    Answer<absl::Status> adopted;
    engine_->changes().Adopt({plan, 64, [&, plan] { return Saver()(plan); }, adopted.Setter()});
    return adopted.Get();
  }

  struct SentVote {
    uint32_t epoch = 0;
    uint64_t round = 0;
    Vote vote;
  };

  MemoryDisk disk_;
  JobPlan plan_;
  const Layout layout_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<WorkerPool> workers_;
  std::shared_ptr<RoundEngine> engine_;
  std::shared_ptr<RecordingSink> sink_;
  std::atomic<int> storage_failures_{0};
  Mutex mu_;
  CondVar changed_;
  std::vector<SentVote> sent_ ABSL_GUARDED_BY(mu_);
  std::vector<JobPlan> saved_ ABSL_GUARDED_BY(mu_);
  absl::Status save_status_ ABSL_GUARDED_BY(mu_);
};

// --- Seal ---------------------------------------------------------------------------------------

TEST_F(EpochTest, ASealSaysWhereTheServerStandsOnceThePromiseIsSaved) {
  const auto answer = Seal(1);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->version, 1u);
  EXPECT_FALSE(answer->prepared);
  ASSERT_EQ(Saved().size(), 1u);
  EXPECT_EQ(Saved()[0].sealed_epoch, 1u);
  EXPECT_EQ(Saved()[0].epoch.epoch, 1u);
  EXPECT_EQ(Saved()[0].owner, plan_.owner) << "the whole plan";
}

TEST_F(EpochTest, ASealThatCannotBeSavedIsNoAnswer) {
  {
    MutexLock lock(&mu_);
    save_status_ = absl::DataLossError("EIO");
  }
  EXPECT_EQ(Seal(1).status().code(), absl::StatusCode::kDataLoss);
  Status();
  EXPECT_EQ(storage_failures_, 1);
}

TEST_F(EpochTest, ASealedServerVotesOnNothingMore) {
  ASSERT_TRUE(Attach(1).ok());
  ASSERT_TRUE(Seal(1).ok());
  Push(1);
  WaitForWorkers();
  const auto answer = Seal(1);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_FALSE(answer->prepared);
  EXPECT_EQ(Status().phase, "collect");
  EXPECT_EQ(VotesSent(), 0u);
}

TEST_F(EpochTest, AVoteThatWasGivenStandsAndItsRoundGoesOn) {
  ASSERT_TRUE(Attach(1).ok());
  Push(1);
  const Vote vote = WaitForVote(1);
  const auto answer = Seal(1);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->version, 1u);
  EXPECT_TRUE(answer->prepared);
  AnswerVote(1, vote);
  ASSERT_TRUE(sink_->Wait(1).ok());
  EXPECT_EQ(Seal(1)->version, 2u);
  EXPECT_FALSE(Seal(1)->prepared);
}

// The home waits for the answer.
TEST_F(EpochTest, ASealThatWaitsForAVoteGetsTheErrorWhenTheJobEnds) {
  ASSERT_TRUE(Attach(1).ok());
  ASSERT_TRUE(Failpoints::Configure("log.before_sync=pause").ok());
  Push(1);
  Failpoints::WaitForPause("log.before_sync");
  Sealed sealed;
  engine_->changes().Seal(1, Saver(), sealed.Setter());
  Status();  // The seal waits now.
  disk_.Fail(MemoryDisk::Operation::kSync, 1, EIO);
  Failpoints::Reset();
  engine_->Fail(absl::CancelledError("the test ends it"));
  EXPECT_EQ(sealed.Get().status().message(), "the test ends it");
}

// All have left while the epoch's end was on its way to the disk.
TEST_F(EpochTest, AnAdoptionThatWaitsForTheDiskGetsTheErrorWhenTheJobEnds) {
  ASSERT_TRUE(Attach(1).ok());
  ASSERT_TRUE(Failpoints::Configure("log.before_sync=pause").ok());
  Push(1);
  Failpoints::WaitForPause("log.before_sync");
  Answer<absl::Status> adopted;
  engine_->changes().Adopt({NextPlan(1), 64, [] { return absl::OkStatus(); }, adopted.Setter()});
  Status();  // The adoption waits now.
  engine_->Fail(absl::CancelledError("the test ends it"));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // The job is closing its log.
  Failpoints::Reset();
  EXPECT_EQ(adopted.Get().message(), "the test ends it");
}

TEST_F(EpochTest, ASealedServerThatIsStartedAgainStaysSealed) {
  ASSERT_TRUE(Attach(1).ok());
  ASSERT_TRUE(Seal(1).ok());
  plan_ = Saved().back();  // As its manifest says.
  Restart();
  ASSERT_TRUE(Attach(1).ok());
  Push(1);
  WaitForWorkers();
  EXPECT_FALSE(Seal(1)->prepared);
  EXPECT_EQ(VotesSent(), 0u);
  // The same pushes in the next epoch are voted on.
  plan_ = NextPlan(1);
  ASSERT_TRUE(Adopt(plan_).ok());
  ASSERT_TRUE(Attach(2, 900).ok());
  Push(1);
  WaitForVote(1);
}

TEST_F(EpochTest, APreparedAndSealedServerThatIsStartedAgainStillSaysPrepared) {
  ASSERT_TRUE(Attach(1).ok());
  Push(1);
  const Vote vote = WaitForVote(1);
  ASSERT_TRUE(Seal(1)->prepared);
  plan_ = Saved().back();
  Restart();
  EXPECT_TRUE(Seal(1)->prepared);
  EXPECT_EQ(Seal(1)->version, 1u);
  AnswerVote(1, vote);
  ASSERT_TRUE(Attach(1).ok()) << "after the round";
  EXPECT_EQ(Seal(1)->version, 2u);
}

// --- Adopt --------------------------------------------------------------------------------------

TEST_F(EpochTest, AdoptingTwiceSavesOnceAndOlderEpochsChangeNothing) {
  const JobPlan next = NextPlan(1);
  ASSERT_TRUE(Adopt(next).ok());
  ASSERT_TRUE(Adopt(next).ok());
  ASSERT_TRUE(Adopt(plan_).ok());
  EXPECT_EQ(Saved().size(), 1u);
  EXPECT_EQ(ReasonOf(Attach(1)), Reason::kStaleEpoch);
  EXPECT_EQ(ReasonOf(Attach(3)), Reason::kFutureEpoch);
  EXPECT_EQ(ReasonOf(Attach(2)), Reason::kWrongIncarnation) << "the old holder";
  EXPECT_TRUE(Attach(2, 900).ok());
}

// The owner of the engine saves in which epoch the job has ended.
TEST_F(EpochTest, AnEpochWhoseMembersHaveAllLeftIsAdoptedBeforeTheJobEnds) {
  JobPlan both = NextPlan(1);
  both.epoch.members = {plan_.epoch.members[0], {1, 900}};
  both.epoch.contributors = AllContribute(both.epoch.members, both.spec.group_count);
  ASSERT_TRUE(Adopt(both).ok());
  engine_->trainers().Leave(0, IncarnationOf(0));
  JobPlan first = both;
  first.epoch = plan_.epoch;
  first.epoch.epoch = 3;
  std::vector<std::string> heard;
  Answer<bool> ended;
  engine_->OnEnd([&](const absl::Status&, uint64_t) {
    heard.emplace_back("ended");
    ended.Setter()(true);
  });
  engine_->changes().Adopt({first, 64, [] { return absl::OkStatus(); },
                            [&](const absl::Status&) { heard.emplace_back("adopted"); }});
  ended.Get();
  Status();
  EXPECT_EQ(heard, (std::vector<std::string>{"adopted", "ended"}));
}

TEST_F(EpochTest, VotesOfTheOldEpochAreDiscarded) {
  ASSERT_TRUE(Attach(1).ok());
  Push(1);
  const Vote old = WaitForVote(1);
  ASSERT_TRUE(Seal(1)->prepared);
  plan_ = NextPlan(1);  // The peer had not prepared.
  ASSERT_TRUE(Adopt(plan_).ok());
  EXPECT_EQ(ReasonOf(sink_->Wait(1)), Reason::kStaleEpoch);
  EXPECT_EQ(Status().round, 1u);
  EXPECT_EQ(Status().phase, "idle");
  // A late vote of the old epoch does not help the round along.
  Vote late = old;
  late.server = kPeer;
  engine_->PeerVote(1, 1, late, [](const VoteAnswer&) {});
  ASSERT_TRUE(Attach(2, 900).ok());
  engine_->Begin(0, MakeBegin(1));
  Send(FrameKind::kGradient, 1, -3.0f);
  const Vote fresh = WaitForVote(1);
  EXPECT_NE(fresh.norms[0].sumsq, old.norms[0].sumsq) << "the new gradients";
  AnswerVote(1, fresh);
  EXPECT_TRUE(sink_->Wait(1).ok());
}

TEST_F(EpochTest, AServerThatStillOwesTheRoundBeforeAdoptsWhenItIsOver) {
  ASSERT_TRUE(Attach(1).ok());
  Push(1);
  const Vote vote = WaitForVote(1);
  ASSERT_TRUE(Seal(1)->prepared);
  const JobPlan next = NextPlan(2);
  Answer<absl::Status> adopted;
  engine_->changes().Adopt({next, 64, [&] { return Saver()(next); }, adopted.Setter()});
  Status();
  EXPECT_FALSE(adopted.Has());
  AnswerVote(1, vote);
  ASSERT_TRUE(adopted.Get().ok()) << adopted.Get();
  EXPECT_EQ(Status().round, 2u);
}

TEST_F(EpochTest, TheDecisionBeforeAnAdoptedEpochSurvivesPowerLoss) {
  ASSERT_TRUE(Attach(1).ok());
  Push(1);
  AnswerVote(1, WaitForVote(1));
  ASSERT_TRUE(sink_->Wait(1).ok());
  ASSERT_TRUE(Seal(1).ok());
  plan_ = NextPlan(2);
  ASSERT_TRUE(Adopt(plan_).ok());
  Restart();
  EXPECT_EQ(Status().round, 2u);
  EXPECT_EQ(Status().opt_step, 1u);
}

// A disk has lost a write that it had acknowledged.
TEST_F(EpochTest, AServerWhoseLogLacksTheRoundBeforeItsEpochIsRefused) {
  Stop();
  plan_ = NextPlan(2);
  const absl::Status status = Open(/*fresh=*/false);
  EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << status;
  EXPECT_NE(status.message().find("the log lacks round 1"), absl::string_view::npos) << status;
}

TEST_F(EpochTest, ARecordThatContradictsWhereTheServerStandsIsRefused) {
  ASSERT_TRUE(Attach(1).ok());
  Push(1);
  AnswerVote(1, WaitForVote(1));
  ASSERT_TRUE(sink_->Wait(1).ok());
  // Round 1 is over here; the record says that it is run again.
  EXPECT_EQ(Adopt(NextPlan(1)).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Status().round, 2u);
}

TEST_F(EpochTest, ARecordThatCannotBeSavedIsNotAdopted) {
  {
    MutexLock lock(&mu_);
    save_status_ = absl::DataLossError("EIO");
  }
  const JobPlan next = NextPlan(1);
  Answer<absl::Status> adopted;
  engine_->changes().Adopt({next, 64, [&] { return Saver()(next); }, adopted.Setter()});
  while (storage_failures_ == 0) Status();
  EXPECT_FALSE(adopted.Has());
  EXPECT_TRUE(Attach(1).ok()) << "the old epoch";
}

// --- Votes that were lost -----------------------------------------------------------------------

absl::Status TooLongAgo() {
  return ReasonedError(absl::StatusCode::kDataLoss, Reason::kStateLost,
                       "server 0 votes on round 1");
}

TEST_F(EpochTest, AServerWhosePeersFinishedItsRoundEndsItsJob) {
  ASSERT_TRUE(Attach(1).ok());
  Push(1);
  WaitForVote(1);
  engine_->VoteRefused(1, TooLongAgo());
  EXPECT_EQ(ReasonOf(sink_->Wait(1)), Reason::kStateLost);
  EXPECT_EQ(ReasonOf(Attach(1)), Reason::kStateLost) << "and says so to whoever comes";
}

TEST_F(EpochTest, AnAnswerToALateQuestionEndsNothing) {
  ASSERT_TRUE(Attach(1).ok());
  Push(1);
  AnswerVote(1, WaitForVote(1));
  ASSERT_TRUE(sink_->Wait(1).ok());
  engine_->VoteRefused(1, TooLongAgo());
  Push(2);
  AnswerVote(2, WaitForVote(2));
  EXPECT_TRUE(sink_->Wait(2).ok());
}

// Whoever is two rounds ahead has had the other's vote on the round between, which was durable.
TEST_F(EpochTest, APeerThatIsTwoRoundsLateLearnsThatItsDiskLostVotes) {
  ASSERT_TRUE(Attach(1).ok());
  Vote vote;
  for (const uint64_t round : {1, 2}) {
    Push(round);
    vote = WaitForVote(round);
    AnswerVote(round, vote);
    ASSERT_TRUE(sink_->Wait(round).ok());
  }
  vote.server = kPeer;
  const auto ask = [this, &vote](uint64_t round) {
    Answer<VoteAnswer> answer;
    engine_->PeerVote(1, round, vote, answer.Setter());
    return answer.Get();
  };
  EXPECT_FALSE(ask(3)->has_value()) << "not yet";
  EXPECT_TRUE(ask(2)->has_value());
  const absl::Status lost = ask(1).status();
  EXPECT_EQ(ReasonOf(lost), Reason::kStateLost);
  for (const char* part : {"server 1 votes on round 1", "server 0 is at round 3"}) {
    EXPECT_NE(lost.message().find(part), absl::string_view::npos) << lost;
  }
}

// --- Seats --------------------------------------------------------------------------------------

TEST_F(EpochTest, ASeatIsOpenWhileItsStreamIsAndWhileItsProcessIsOnItsWayBack) {
  const auto open = [this] {
    Answer<SeatUse> answer;
    engine_->trainers().SlotOpen(0, answer.Setter());
    return answer.Get().open;
  };
  EXPECT_FALSE(open());
  ASSERT_TRUE(Attach(1).ok());
  EXPECT_TRUE(open());
  engine_->trainers().SlotLost({0, sink_.get(), "killed"});
  EXPECT_FALSE(open());
  ASSERT_TRUE(Attach(1).ok());
  JobPlan next = NextPlan(1);
  next.epoch.members = plan_.epoch.members;
  ASSERT_TRUE(Adopt(next).ok());
  EXPECT_TRUE(open()) << "told to attach again";
  ASSERT_TRUE(Attach(2).ok());
  engine_->trainers().SlotLost({0, sink_.get(), "killed"});
  EXPECT_FALSE(open()) << "it came, and went";
  Answer<SeatUse> other;
  engine_->trainers().SlotOpen(7, other.Setter());
  EXPECT_FALSE(other.Get().open) << "no such seat";
}

TEST_F(EpochTest, AJobHasTrainersWhileAnyStreamIsOpen) {
  const auto anybody = [this] {
    Answer<SeatUse> answer;
    engine_->trainers().SlotOpen(7, answer.Setter());
    return answer.Get().anybody;
  };
  EXPECT_FALSE(anybody());
  ASSERT_TRUE(Attach(1).ok());
  EXPECT_TRUE(anybody());
  engine_->trainers().SlotLost({0, sink_.get(), "killed"});
  EXPECT_FALSE(anybody());
}

// --- The end ------------------------------------------------------------------------------------

TEST_F(EpochTest, AServersStopIsNoErrorInTheLog) {
  ASSERT_TRUE(Attach(1).ok());
  ::testing::internal::CaptureStderr();
  engine_->Fail(
      ReasonedError(absl::StatusCode::kUnavailable, Reason::kShuttingDown, "it is stopped"));
  EXPECT_EQ(ReasonOf(Attach(1)), Reason::kShuttingDown);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("INFO"), std::string::npos) << log;
  EXPECT_NE(log.find("job waits for the next start of this server"), std::string::npos) << log;
  EXPECT_EQ(log.find("ERROR"), std::string::npos) << log;
}

TEST_F(EpochTest, OtherEndsOfAJobAreErrorsInTheLog) {
  ::testing::internal::CaptureStderr();
  engine_->Fail(ReasonedError(absl::StatusCode::kInternal, Reason::kVoteMismatch, "a defect"));
  EXPECT_EQ(ReasonOf(Attach(1)), Reason::kVoteMismatch);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("ERROR"), std::string::npos) << log;
  EXPECT_NE(log.find("job failed: a defect"), std::string::npos) << log;
}

TEST_F(EpochTest, TheEndIsToldWhenNothingIsWrittenAnyMore) {
  ASSERT_TRUE(Attach(1).ok());
  Push(1);
  const Vote vote = WaitForVote(1);
  ASSERT_TRUE(Failpoints::Configure("images.before_write=pause").ok());
  AnswerVote(1, vote);
  ASSERT_TRUE(sink_->Wait(1).ok());
  Failpoints::WaitForPause("images.before_write");  // A checkpoint is under way.
  std::atomic<bool> let_go{false};
  Answer<bool> told_after;
  engine_->OnEnd([&](const absl::Status&, uint64_t) { told_after.Setter()(let_go); });
  engine_->trainers().Leave(0, IncarnationOf(0));
  // Time for the engine to tell it too early: many turns of the same threads.
  for (int turn = 0; turn < 200; ++turn) {
    Answer<int> done;
    executor_->Post([&done, turn] { done.Setter()(turn); });
    done.Get();
  }
  let_go = true;
  Failpoints::Reset();
  EXPECT_TRUE(told_after.Get());
  // So another engine may open the files at once.
  EXPECT_TRUE(
      JobStorage::Open(&disk_, kDirectory, StorageOptionsOf(plan_, layout_, kSelf, 1)).ok());
}

}  // namespace
}  // namespace ballast::server
