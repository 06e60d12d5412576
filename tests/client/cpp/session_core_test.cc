// The trainer's side of a job over a transport without threads: whole rounds, silence and returns
// in virtual time. Servers' possible actions on a session are tested in client_test, pause_test and
// epoch_test.
#include "tests/client/cpp/session_core_fixture.h"

namespace ballast::client {
namespace {

TEST_F(SessionCoreTest, RunsRoundsAndGivesTheMemoryBack) {
  Start(Durability::kNone);
  for (uint64_t round = 1; round <= 3; ++round) {
    grads_[0].assign(kElements, static_cast<float>(round));
    BeginStep();
    EXPECT_FALSE(core_->Done());
    EXPECT_FALSE(core_->CheckIdle().ok());
    ASSERT_TRUE(RunStep());
    ASSERT_TRUE(core_->error().ok()) << core_->error();
    RoundReport report;
    ASSERT_TRUE(core_->EndRound(&report).ok());
    EXPECT_EQ(report.round, round);
    EXPECT_EQ(report.bytes_up, kTensors * kElements * sizeof(float));
    EXPECT_EQ(weights_, grads_);
    EXPECT_TRUE(lease_.WaitReleased(std::chrono::nanoseconds(0)));
  }
  EXPECT_EQ(core_->job().round, 4u);
  EXPECT_GT(changes_, 0);
}

TEST_F(SessionCoreTest, ASilentServerIsLostAfterReportAfterAndHalfAHeartbeatAtMost) {
  Start(Durability::kNone);
  BeginStep();
  server_.silent = true;
  const Time silent_since = now();
  ASSERT_TRUE(RunStep());
  EXPECT_EQ(ReasonOf(core_->error()), Reason::kServerLost) << core_->error();
  const JobView& job = core_->job();
  EXPECT_GE(now() - silent_since, job.report_after - job.heartbeat);
  EXPECT_LE(now() - silent_since, job.report_after + job.heartbeat / 2);
}

TEST_F(SessionCoreTest, ADurableServerThatComesBackGetsItsPartOfTheRoundAgain) {
  Start(Durability::kPower);
  server_.frames_until_stop = 2;
  BeginStep();
  ASSERT_TRUE(RunUntil([this] { return core_->servers()[0]->reconnect().away(); }));
  const Time back_at = now() + std::chrono::seconds(3);
  ASSERT_TRUE(RunUntil([&] { return now() >= back_at; }));
  peer_->Restart();
  ASSERT_TRUE(RunStep());
  ASSERT_TRUE(core_->error().ok()) << core_->error();
  RoundReport report;
  ASSERT_TRUE(core_->EndRound(&report).ok());
  EXPECT_EQ(report.reconnects, 1u);
  EXPECT_GE(std::chrono::nanoseconds(report.paused_ns), std::chrono::seconds(3));
  EXPECT_EQ(weights_, grads_);
  EXPECT_EQ(peer_->opened, 2);
  EXPECT_TRUE(core_->pauses().has_news());
}

TEST_F(SessionCoreTest, ADurableServerThatStaysAwayIsGivenUpAtTheReconnectTimeout) {
  options_.reconnect_timeout = std::chrono::minutes(2);
  Start(Durability::kPower);
  peer_->Stop();
  BeginStep();
  const Time began = now();
  ASSERT_TRUE(RunStep());
  EXPECT_EQ(ReasonOf(core_->error()), Reason::kServerLost) << core_->error();
  EXPECT_GE(now() - began, std::chrono::minutes(2));
  EXPECT_LT(now() - began, std::chrono::minutes(2) + std::chrono::seconds(1));
}

// --- Servers that forget -------------------------------------------------------------------------

class DecidedRoundTest : public SessionCoreTest {
 protected:
  static constexpr int kFrames = 2 * kTensors;

  // A round of which the server has sent the result and a part of the weights.
  void RunUntilDecided() {
    Start(Durability::kPower);
    server_.lacking = 1;
    BeginStep();
    ASSERT_TRUE(RunUntil([this] { return server_.frames == kFrames; }));
    const Time later = now() + std::chrono::seconds(1);
    ASSERT_TRUE(RunUntil([&] { return now() >= later; }));
    server_.lacking = 0;
  }
  void ExpectStateLost(const std::string& text) {
    ASSERT_TRUE(RunStep());
    EXPECT_EQ(ReasonOf(core_->error()), Reason::kStateLost) << core_->error();
    EXPECT_EQ(FieldsOf(core_->error()).server, 1);
    EXPECT_NE(core_->error().message().find(text), std::string::npos) << core_->error();
    EXPECT_EQ(server_.frames, kFrames) << "nothing is sent again";
  }
  // The home's answer to attach: epoch 2 begins with `round`.
  void NextEpochFrom(uint64_t round) {
    v1::AttachReply reply = MakeAttachedJob(kTensors).reply;
    reply.mutable_epoch()->set_epoch(2);
    reply.mutable_epoch()->set_start_round(round);
    peer_->AnswerCalls(reply.SerializeAsString());
    server_.NextEpoch();
  }
};

TEST_F(DecidedRoundTest, AServerThatStillHasItSendsItAgain) {
  RunUntilDecided();
  peer_->Stop();
  peer_->Restart();
  ASSERT_TRUE(RunStep());
  ASSERT_TRUE(core_->error().ok()) << core_->error();
  RoundReport report;
  ASSERT_TRUE(core_->EndRound(&report).ok());
  EXPECT_EQ(weights_, grads_);
  EXPECT_EQ(server_.frames, kFrames);
}

TEST_F(DecidedRoundTest, AServerThatHasForgottenItHasLostState) {
  RunUntilDecided();
  server_.forgets = true;
  peer_->Stop();
  peer_->Restart();
  ExpectStateLost("state server 1 at server:1 has lost its part of round 1");
}

TEST_F(DecidedRoundTest, AnEpochThatBeginsWithItMeansLostState) {
  RunUntilDecided();
  server_.forgets = true;
  NextEpochFrom(1);
  ExpectStateLost("epoch 2 begins with round 1 again, says state server 1");
}

TEST_F(DecidedRoundTest, AnEpochThatBeginsAfterItIsTheNextOne) {
  RunUntilDecided();
  NextEpochFrom(2);
  ASSERT_TRUE(RunStep());
  ASSERT_TRUE(core_->error().ok()) << core_->error();
}

// --- Handshakes ---------------------------------------------------------------------------------

TEST_F(SessionCoreTest, AServerThatRefusesTheHandshakeIsAwayBecauseOfThat) {
  options_.reconnect_timeout = std::chrono::minutes(2);
  Start(Durability::kPower);
  transport_.explanations[kAddress] = "the server's certificate has expired";
  peer_->Stop();
  BeginStep();
  const Reconnect& tries = core_->servers()[0]->reconnect();
  ASSERT_TRUE(RunUntil([&] { return tries.last_error().find("expired") != std::string::npos; }));
  EXPECT_EQ(tries.last_error(),
            "state server 1 at server:1 is gone: the server's certificate has expired");
  EXPECT_EQ(transport_.explained, 1);
  // The first fault is mended, and the server is away again for another reason.
  transport_.explanations[kAddress] = "";
  peer_->Restart();
  ASSERT_TRUE(RunUntil([&] { return !tries.away(); }));
  peer_->Stop();
  ASSERT_TRUE(RunStep());
  EXPECT_EQ(ReasonOf(core_->error()), Reason::kServerLost);
  EXPECT_NE(core_->error().message().find("nothing listens there"), std::string::npos)
      << core_->error();
}

TEST_F(SessionCoreTest, AServerThatNeverLetsTheFirstLinkInIsNotRespondingBecauseOfThat) {
  transport_.explanations[kAddress] = "the port speaks no TLS";
  peer_->Stop();
  ASSERT_FALSE(TryStart(Durability::kNone, MakeAttachedJob(kTensors)));
  EXPECT_EQ(core_->error().message(),
            "state server 1 at server:1 is not responding: the port speaks no TLS");
}

// --- Contributors -------------------------------------------------------------------------------

// Slot 0 pushes the gradients equal everywhere, and this trainer, in slot 3, nothing, until slot 0
// is gone.
TEST_F(SessionCoreTest, GradientsOfAnotherSlotArePushedInTheNextEpoch) {
  options_.slot = server_.slot = 3;
  Start(Durability::kPower, WithMembers({0, 3}));
  BeginStep();
  ASSERT_TRUE(RunUntil([this] { return server_.begun == 1; }));
  const Time later = now() + std::chrono::seconds(3);
  ASSERT_TRUE(RunUntil([&] { return now() >= later; }));
  EXPECT_EQ(server_.frames, 0);
  v1::AttachReply reply = WithMembers({3}).reply;
  reply.mutable_epoch()->set_epoch(2);
  peer_->AnswerCalls(reply.SerializeAsString());
  server_.NextEpoch();
  ASSERT_TRUE(RunStep());
  ASSERT_TRUE(core_->error().ok()) << core_->error();
  RoundReport report;
  ASSERT_TRUE(core_->EndRound(&report).ok());
  EXPECT_EQ(report.bytes_up, kTensors * kElements * sizeof(float));
  EXPECT_EQ(weights_, grads_);
}

TEST_F(SessionCoreTest, GradientsAreComparedWhereSeveralSayThatTheyAreEqual) {
  options_.slot = 3;
  JobView several(options_, WithMembers({0, 3}));
  several.round = 10;
  EXPECT_TRUE(several.ComparesGradients());
  several.round = 11;
  EXPECT_FALSE(several.ComparesGradients());
  JobView alone(options_, WithMembers({3}));
  alone.round = 1;
  EXPECT_FALSE(alone.ComparesGradients());
  const float gradient[2] = {1, 2};
  const std::vector<LayoutTensor> tensors(2, {2, ::ballast::DType::kF32, 0});
  const std::vector<TensorBuffers> buffers = {{gradient, nullptr}, {nullptr, nullptr}};
  EXPECT_EQ(*GradientDigests(tensors, buffers, nullptr),
            (std::vector<uint32_t>{Crc32c(gradient, sizeof(gradient)), 0}));
  EXPECT_TRUE(GradientDigests(tensors, {}, nullptr)->empty()) << "refused later, by name";
}

// --- Sums of an epoch's members -----------------------------------------------------------------

// A trainer has been replaced, and the record of the new epoch is here before the step begins.
TEST_F(SessionCoreTest, SumsOfAnEpochThatIsOverAreRefusedBeforeAnythingIsSent) {
  Start(Durability::kPower);
  AnswerAttach(kTensors, 2);
  server_.NextEpoch();
  ASSERT_TRUE(RunUntil([this] { return core_->job().epoch == 2; }));
  const absl::Status stale = TryStep(1);
  EXPECT_EQ(stale.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(stale), Reason::kStaleEpoch);
  EXPECT_EQ(stale.message(),
            "job \"test\" went from epoch 1 to 2 in round 1, so its trainers are other processes "
            "than those whose gradients were summed. Nothing of round 1 was applied; sum the "
            "gradients of the new processes and step again");
  EXPECT_TRUE(core_->CheckIdle().ok());
  ASSERT_TRUE(TryStep(2).ok());
  ASSERT_TRUE(RunStep());
  EXPECT_EQ(server_.begun, 1);
  RoundReport report;
  ASSERT_TRUE(core_->EndRound(&report).ok());
  EXPECT_EQ(weights_, grads_);
}

TEST_F(SessionCoreTest, SumsWhoseEpochEndsInThePushEndTheStepAndNotTheSession) {
  Start(Durability::kPower);
  AnswerAttach(kTensors, 2);
  server_.hold = true;  // the round
  ASSERT_TRUE(TryStep(1).ok());
  ASSERT_TRUE(RunUntil([this] { return server_.frames > 0; }));
  server_.NextEpoch();
  ASSERT_TRUE(RunUntil([this] { return core_->job().epoch == 2; }));
  ASSERT_TRUE(RunUntil([this] { return core_->servers()[0]->welcomed(); }));
  const Time later = now() + std::chrono::seconds(1);
  ASSERT_TRUE(RunUntil([&] { return now() >= later; }));
  ASSERT_EQ(server_.begun, 1) << "the old sums are pushed again";
  ASSERT_TRUE(core_->Done());
  RoundReport report;
  EXPECT_EQ(ReasonOf(core_->EndRound(&report)), Reason::kStaleEpoch);
  ASSERT_TRUE(core_->error().ok()) << core_->error();
  for (auto& gradient : grads_) gradient.assign(kElements, 7.0f);
  server_.hold = false;
  ASSERT_TRUE(TryStep(2).ok());
  ASSERT_TRUE(RunStep());
  ASSERT_TRUE(core_->EndRound(&report).ok());
  EXPECT_EQ(report.round, 1u);
  EXPECT_EQ(weights_, grads_);
}

// --- Growth and epochs --------------------------------------------------------------------------

// The home has answered a second Extend call: the plan it names is in the next epoch already.
TEST_F(SessionCoreTest, AnAnswerOfExtendInAPassageLeavesTheEpochToThePassage) {
  Start(Durability::kPower);
  AnswerAttach(kTensors + 1, 2);
  server_.NextEpoch();
  ASSERT_TRUE(RunUntil([this] { return !core_->servers()[0]->has_link(); }));
  Grow(2);
  EXPECT_EQ(core_->job().epoch, 1u);
  ExpectARoundInEpoch(2);
}

TEST_F(SessionCoreTest, AnAnswerOfExtendBeforeAPassageLeavesTheEpochToThePassage) {
  Start(Durability::kPower);
  AnswerAttach(kTensors + 1, 2);
  Grow(2);
  server_.NextEpoch();
  ASSERT_TRUE(RunUntil([this] { return !core_->servers()[0]->has_link(); }));
  ExpectARoundInEpoch(2);
}

// The home answers attach with the grown job before it answers Extend.
TEST_F(SessionCoreTest, AJobThatGrowsInAPassageIsNoErrorOfTheHome) {
  Start(Durability::kPower);
  AnswerAttach(kTensors + 1, 2);
  server_.NextEpoch();
  ASSERT_TRUE(RunUntil([this] {
    return (core_->job().epoch == 2 && core_->servers()[0]->welcomed()) || !core_->error().ok();
  }));
  ASSERT_TRUE(core_->error().ok()) << core_->error();
  EXPECT_EQ(core_->job().layout_version, 1u);
  Grow(1);
  ExpectARoundInEpoch(2);
}

TEST_F(SessionCoreTest, AnExtentWithAnotherOwnerInAPassageIsAnErrorOfTheHome) {
  for (const size_t tensors : {kTensors - 1, kTensors, kTensors + 1}) {
    SCOPED_TRACE(tensors);
    Start(Durability::kPower);
    v1::AttachReply reply = MakeAttachedJob(tensors).reply;
    reply.set_layout_version(tensors > kTensors ? 2 : 1);
    reply.mutable_epoch()->set_epoch(2);
    if (tensors >= kTensors) reply.mutable_plan()->set_owner(0, 2);
    peer_->AnswerCalls(reply.SerializeAsString());
    server_.NextEpoch();
    ASSERT_TRUE(RunUntil([this] { return !core_->error().ok(); }));
    EXPECT_EQ(ReasonOf(core_->error()), Reason::kBadFrame) << core_->error();
  }
}

}  // namespace
}  // namespace ballast::client
