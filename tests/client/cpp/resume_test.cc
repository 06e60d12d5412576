// A durable job's client that takes the seat of an earlier process: attach, upload of state missing
// at the servers, weights and the round it continues in.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "tests/client/cpp/pause_fixture.h"

namespace ballast::client {
namespace {

constexpr char kStill[] = "a process that is alive";

class ResumeTest : public PauseTest {
 protected:
  // A job that another process of `slot` has left at `round`.
  void StartResumable(uint32_t slot, uint64_t round) {
    StartServers(2);
    job_.first_round = round;
    job_.NextEpoch(slot, round);
    job_.newcomers.clear();
    options_.durability = Durability::kPower;
    options_.resume = Resume::kAuto;
    options_.world = 2;
    options_.slot = slot;
    for (auto& server : servers_) server->has_state = true;
  }

  void ExpectServersWeights() {
    for (const std::string& weight : model_.weights) {
      EXPECT_EQ(weight, std::string(weight.size(), 'w'));
    }
  }

  // Attach is answered so, one after the other, and then well.
  void AnswerAttach(std::vector<absl::Status> answers) {
    Server(0).on_attach = [answers, next = size_t{0}](const v1::AttachRequest&) mutable {
      return next < answers.size() ? answers[next++] : absl::OkStatus();
    };
  }
};

TEST_F(ResumeTest, ReceivesTheWeightsAndStartsWhereTheJobStands) {
  for (const uint32_t slot : {0u, 1u}) {
    SCOPED_TRACE(slot);
    client_.reset();
    servers_.clear();
    job_.servers.clear();
    StartResumable(slot, 5);
    ASSERT_TRUE(Attach().ok());
    EXPECT_TRUE(client_->resumed());
    EXPECT_EQ(client_->round(), 5u);
    ExpectServersWeights();
    EXPECT_EQ(Server(0).attaches.back().resume(), v1::RESUME_AUTO);
    for (auto& server : servers_) {
      EXPECT_TRUE(server->frames.empty());
      EXPECT_EQ(server->hellos.back().round(), 5u);
    }
    ExpectGoodStep(5, 0);
  }
}

TEST_F(ResumeTest, ANewJobIsNotResumed) {
  StartServers(1);
  options_.durability = Durability::kProcess;
  options_.resume = Resume::kAuto;
  ASSERT_TRUE(Attach().ok());
  EXPECT_FALSE(client_->resumed());
  EXPECT_EQ(client_->round(), 1u);
  EXPECT_FALSE(Server(0).frames.empty());
  ExpectGoodStep(1, 0);
}

TEST_F(ResumeTest, SlotZeroUploadsOnlyTheMissingExtents) {
  StartResumable(0, 1);
  Server(1).has_state = false;
  const Model before;
  ASSERT_TRUE(Attach().ok());
  EXPECT_TRUE(client_->resumed());
  EXPECT_TRUE(Server(0).frames.empty());
  EXPECT_FALSE(Server(1).frames.empty());
  // The weights that come back are the first server's own, and the ones uploaded to the second.
  size_t kept = 0;
  size_t received = 0;
  for (size_t i = 0; i < model_.weights.size(); ++i) {
    for (size_t at = 0; at < model_.weights[i].size(); ++at) {
      const char byte = model_.weights[i][at];
      kept += byte == before.weights[i][at] ? 1 : 0;
      received += byte == 'w' ? 1 : 0;
      ASSERT_TRUE(byte == before.weights[i][at] || byte == 'w');
    }
  }
  EXPECT_GT(kept, 0u);
  EXPECT_GT(received, 0u);
  ExpectGoodStep(1, 0);
}

TEST_F(ResumeTest, InitialWeightsThatTheLastProcessHadUploadedAreKeptAndReceived) {
  StartResumable(0, 1);
  for (auto& server : servers_) {
    server->has_state = false;
    server->on_frame = [fake = server.get()](FakeStream* stream, const DecodedFrame& frame) {
      if (frame.header.kind != FrameKind::kInit) return false;
      fake->weights[frame.header.extent].assign(fake->layout().ExtentWireBytes(frame.header.extent),
                                                'w');
      fake->Refuse(stream, frame.header, v1::REASON_CONFLICT);
      fake->Ack(stream, frame.header.round, 0);
      fake->has_state = true;
      return true;
    };
  }
  ASSERT_TRUE(Attach().ok());
  ExpectServersWeights();
}

TEST_F(ResumeTest, AnotherSlotWaitsForTheUploadAndSendsNothing) {
  StartResumable(1, 1);
  for (auto& server : servers_) server->has_state = false;
  ASSERT_TRUE(Attach().ok());
  ExpectServersWeights();
  for (auto& server : servers_) EXPECT_TRUE(server->frames.empty());
}

TEST_F(ResumeTest, InitialWeightsAreNotUploadedIntoALaterRound) {
  StartResumable(0, 5);
  Server(1).has_state = false;
  const absl::Status status = Attach();
  ExpectReason(status, absl::StatusCode::kDataLoss, "STATE_LOST");
  EXPECT_EQ(GetErrorInfo(status).server, 4);
  EXPECT_TRUE(Server(1).frames.empty());
}

TEST_F(ResumeTest, InitialWeightsOfGroupsThatWereAddedLastAreUploadedIntoALaterRound) {
  StartResumable(0, 5);
  job_.fresh_tensors = static_cast<uint32_t>(model_.tensors.size());
  Server(1).has_state = false;
  ASSERT_TRUE(Attach().ok());
  EXPECT_FALSE(Server(1).frames.empty());
}

TEST_F(ResumeTest, AServerThatStillEndsTheRoundBeforeIsAskedAgain) {
  StartResumable(1, 5);
  int behind = 2;
  Server(1).change_welcome = [&](v1::Welcome* welcome) {
    if (behind-- > 0) welcome->set_round(4);
  };
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(Server(1).hellos.size(), 3u);
  EXPECT_EQ(client_->round(), 5u);
  ExpectServersWeights();
}

TEST_F(ResumeTest, AServerThatHasNotFollowedIntoTheEpochIsAskedAgain) {
  StartResumable(1, 5);
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (!message.has_hello() || Server(1).hellos.size() > 2) return false;
    stream->End(ToGrpc(ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kFutureEpoch,
                                     "the job is in epoch 1")));
    return true;
  };
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(Server(1).hellos.size(), 3u);
}

TEST_F(ResumeTest, AttachIsTriedAgainWhileAServerIsAway) {
  StartResumable(1, 5);
  AnswerAttach({
      ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost, "server 4 is away"),
      ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering, "reading its log"),
      ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kFutureEpoch, "one is behind"),
  });
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(Server(0).attaches.size(), 4u);
  EXPECT_EQ(Server(0).attaches[0].incarnation(), Server(0).attaches[3].incarnation());
}

TEST_F(ResumeTest, ANewJobWaitsForAServerThatIsAwayToo) {
  for (const Durability durability : {Durability::kNone, Durability::kPower}) {
    client_.reset();
    servers_.clear();
    job_.servers.clear();
    StartServers(1);
    options_.durability = durability;
    options_.resume = Resume::kNever;
    AnswerAttach({ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                                "server 4 was lost (killed)")});
    ASSERT_TRUE(Attach().ok());
    EXPECT_EQ(Server(0).attaches.size(), 2u);
  }
}

TEST_F(ResumeTest, AnAttachTellsWhichServerKeepsItWaiting) {
  StartResumable(1, 5);
  options_.time_scale = 0.01;  // 3 s become 30 ms
  std::atomic<int> told{0};
  options_.on_pause = [&](const Pause& pause) {
    pauses_.push_back(pause);
    ++told;
  };
  // Until it has been told, and told again.
  Server(0).on_attach = [&](const v1::AttachRequest&) {
    ErrorFields fields;
    fields.server = 4;
    fields.address = "10.0.0.4:7";
    if (told >= 2) return absl::OkStatus();
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                         "server 4 does not answer", fields);
  };
  ASSERT_TRUE(Attach().ok());
  const std::vector<std::string> kinds = Kinds(pauses_);
  ASSERT_GE(kinds.size(), 3u);
  EXPECT_EQ(kinds[0], "lost4");
  EXPECT_EQ(kinds[1], "waiting4");
  EXPECT_EQ(kinds.back(), "back4");
  for (const Pause& pause : pauses_) {
    EXPECT_EQ(pause.address, "10.0.0.4:7");
    EXPECT_EQ(pause.error, "server 4 does not answer");
    EXPECT_EQ(pause.round, 0u);
  }
}

TEST_F(ResumeTest, AnUnknownServerIsReportedByItsAddress) {
  StartResumable(1, 5);
  options_.time_scale = 0.01;
  options_.attach_timeout = std::chrono::seconds(60);
  options_.endpoints = {"127.0.0.1:1"};  // Nobody listens there.
  options_.should_stop = [this] { return !pauses_.empty(); };
  options_.on_pause = [this](const Pause& pause) { pauses_.push_back(pause); };
  EXPECT_EQ(Attach().code(), absl::StatusCode::kCancelled);
  ASSERT_EQ(pauses_.size(), 1u);
  EXPECT_EQ(pauses_[0].kind, Pause::Kind::kLost);
  EXPECT_EQ(pauses_[0].server, kServerUnknown);
  EXPECT_EQ(pauses_[0].address, "127.0.0.1:1");
}

TEST_F(ResumeTest, AnAttachThatIsQuickTellsNothing) {
  StartResumable(1, 5);
  options_.on_pause = [this](const Pause& pause) { pauses_.push_back(pause); };
  AnswerAttach({ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost, "one is away")});
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(Kinds(pauses_), std::vector<std::string>{});
}

TEST_F(ResumeTest, TheseErrorsEndAnAttach) {
  struct Case {
    absl::StatusCode code;
    Reason reason;
    const char* name;
  };
  const Case cases[] = {
      {absl::StatusCode::kAlreadyExists, Reason::kSlotTaken, "SLOT_TAKEN"},
      {absl::StatusCode::kNotFound, Reason::kUnknownJob, "UNKNOWN_JOB"},
      {absl::StatusCode::kFailedPrecondition, Reason::kSpecMismatch, "SPEC_MISMATCH"},
  };
  StartResumable(1, 5);
  options_.resume = Resume::kMust;
  for (const Case& c : cases) {
    AnswerAttach({ReasonedError(c.code, c.reason, kStill)});
    ExpectReason(Attach(), c.code, c.name);
  }
  EXPECT_EQ(Server(0).attaches.size(), std::size(cases));
  EXPECT_EQ(Server(0).attaches[0].resume(), v1::RESUME_MUST);
}

TEST_F(ResumeTest, WithoutDurabilityThereIsNothingToResume) {
  StartServers(1);
  options_.resume = Resume::kMust;
  ExpectReason(Attach(), absl::StatusCode::kInvalidArgument, "BAD_ARGUMENT");
  EXPECT_TRUE(Server(0).attaches.empty());
  options_.resume = Resume::kAuto;
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(Server(0).attaches.back().resume(), v1::RESUME_NEVER);
  options_.resume = static_cast<Resume>(4);
  ExpectReason(Attach(), absl::StatusCode::kInvalidArgument, "BAD_ARGUMENT");
}

TEST_F(ResumeTest, TheNextNewcomerMayComeWhileThisOneReceives) {
  StartResumable(1, 5);
  Server(1).weights_before_break = 1;
  Server(1).break_weights = [&](FakeStream*) {
    job_.NextEpoch(0, 5);
    Server(1).Adopt();
  };
  ASSERT_TRUE(Attach().ok());
  ExpectServersWeights();
  EXPECT_EQ(Server(1).hellos.back().epoch(), 3u);
  ExpectGoodStep(5, 0);
}

}  // namespace
}  // namespace ballast::client
