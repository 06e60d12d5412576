// A durable job's client against servers that go away and come back: the data it sends again and
// receives again, its news, and when it gives up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/cpp/pause_fixture.h"

namespace ballast::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(PauseTest, TheJobSaysHowDurableItIs) {
  StartJob(1);
  EXPECT_EQ(Server(0).attach.spec().durability(), v1::DURABILITY_PROCESS);
  EXPECT_EQ(Server(0).hellos[0].round(), 1u);
}

TEST_F(PauseTest, AServerThatBreaksBetweenRoundsIsBackForTheNext) {
  StartJob(2);
  ExpectGoodStep(1, 0);
  {
    std::lock_guard<std::mutex> lock(Server(1).mutex());
    FakeServer::Break(Server(1).stream);
  }
  AwaitHellos(&Server(1), 2);
  ExpectGoodStep(2, 1);
  EXPECT_EQ(Server(1).hellos[1].round(), 2u);
  EXPECT_THAT(Kinds(pauses_), ElementsAre("lost4", "back4"));
  EXPECT_THAT(pauses_[0].error, HasSubstr("broken by the test"));
  EXPECT_EQ(pauses_[0].address, Server(1).address());
  EXPECT_EQ(pauses_[1].round, 2u);
  ExpectGoodStep(3, 0);
}

TEST_F(PauseTest, AStepCanBeginWhileAServerIsAway) {
  StartJob(2);
  Server(1).Kill();
  ASSERT_TRUE(client_->BeginStep(std::vector<Hyper>(2, AdamWHyper()), model_.Buffers()).ok());
  RoundReport report;
  while (pauses_.empty()) {
    const auto done = client_->Wait(std::chrono::milliseconds(10), &report);
    ASSERT_TRUE(done.ok()) << done.status();
    ASSERT_FALSE(*done);
  }
  Server(1).Start();
  absl::StatusOr<bool> done = false;
  while (done.ok() && !*done) done = client_->Wait(std::chrono::milliseconds(10), &report);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(report.reconnects, 1u);
  EXPECT_GT(report.paused_ns, 0u);
  EXPECT_TRUE(model_.weights == model_.grads);
  EXPECT_THAT(Kinds(pauses_), ElementsAre("lost4", "back4"));
  EXPECT_GT(pauses_[1].away, pauses_[0].away);
}

TEST_F(PauseTest, OnlyTheMissingFramesAreSentAgain) {
  StartJob(1);
  BreakAfterFrames(&Server(0), {5});
  ExpectGoodStep(1, 1);
  ASSERT_EQ(Server(0).begins.size(), 2u);
  EXPECT_EQ(Server(0).begins[0].SerializeAsString(), Server(0).begins[1].SerializeAsString());
  // The first five frames were in: extents of which all frames were among them do not come again.
  std::map<uint32_t, uint32_t> bytes;
  for (size_t i = 0; i < 5; ++i) {
    bytes[Server(0).frames[i].header.extent] += Server(0).frames[i].header.length_bytes;
  }
  int spared = 0;
  for (const auto& [frame, times] : Arrivals(Server(0))) {
    const bool begun = bytes.count(frame.first) > 0;
    const bool complete =
        begun && bytes[frame.first] == Server(0).layout().ExtentWireBytes(frame.first);
    spared += complete ? 1 : 0;
    if (complete || !begun) {
      EXPECT_EQ(times, 1) << "extent " << frame.first << " offset " << frame.second;
    }
  }
  EXPECT_GT(spared, 0);
}

TEST_F(PauseTest, FramesLostAfterTheirAckAreSentAgain) {
  StartJob(1);
  uint32_t forgotten = 0;
  Server(0).on_complete = [&](FakeStream* stream) {
    Server(0).on_complete = nullptr;
    forgotten = Server(0).Owned().front();
    Server(0).ForgetGradients(forgotten);
    FakeServer::Break(stream);
    return true;
  };
  ExpectGoodStep(1, 1);
  for (const auto& [frame, times] : Arrivals(Server(0))) {
    EXPECT_EQ(times, frame.first == forgotten ? 2 : 1) << "extent " << frame.first;
  }
}

TEST_F(PauseTest, AWindowThatHasMovedBeforeTheBreakStaysMoved) {
  job_.window_extents = 1;
  job_.chunk_bytes = 4096;  // One frame per extent.
  StartJob(1);
  const std::vector<uint32_t> order = Server(0).layout().push_order();
  ASSERT_GT(order.size(), 3u);
  Server(0).acknowledge = false;
  Server(0).on_frame = [&](FakeStream* stream, const DecodedFrame& frame) {
    const uint32_t before = static_cast<uint32_t>(Server(0).Complete().size());
    EXPECT_EQ(frame.header.extent, order[before]);
    if (before == 2 && Server(0).hellos.size() == 1) {
      FakeServer::Break(stream);
    } else {
      Server(0).Ack(stream, frame.header.round, before + 1);
    }
    return false;
  };
  // The new stream is told of the window, even before the Welcome, and only then.
  Server(0).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (message.has_hello()) Server(0).Ack(stream, 1, 3);
    return false;
  };
  ExpectGoodStep(1, 1);
  EXPECT_EQ(Server(0).frames.size(), order.size());
}

TEST_F(PauseTest, ABreakBeforeTheResultNeedsNoGradientAgain) {
  StartJob(2);
  Server(1).on_complete = [&](FakeStream* stream) {
    Server(1).on_complete = nullptr;
    FakeServer::Break(stream);
    return true;
  };
  ExpectGoodStep(1, 1);
  for (const auto& [frame, times] : Arrivals(Server(1))) EXPECT_EQ(times, 1);
  EXPECT_EQ(Server(1).begins.size(), 2u);
  EXPECT_EQ(Server(1).hellos[1].round(), 1u);
}

TEST_F(PauseTest, ABreakInTheMiddleOfTheWeightsStartsThemOver) {
  StartJob(2);
  Server(1).weights_before_break = 2;
  ExpectGoodStep(1, 1);
  // The server had decided: it was sent nothing, and its hello told where this slot stood.
  EXPECT_EQ(Server(1).begins.size(), 1u);
  EXPECT_EQ(Server(1).hellos[1].round(), 1u);
  for (const auto& [frame, times] : Arrivals(Server(1))) EXPECT_EQ(times, 1);
  ExpectGoodStep(2, 0);
}

TEST_F(PauseTest, AServerThatHadDecidedMayComeBackUndecided) {
  StartJob(1);
  Server(0).weights_before_break = 1;
  // Its decision was not on disk, the gradients are: it decides again.
  Server(0).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (message.has_hello()) {
      v1::ServerMessage reply;
      reply.mutable_welcome()->set_round(1);
      for (const uint32_t extent : Server(0).Owned()) {
        reply.mutable_welcome()->add_complete(extent);
      }
      stream->Send(reply);
    } else if (message.has_begin() && Server(0).begins.size() == 2) {
      Server(0).FinishRound(stream);
    } else {
      return false;
    }
    return true;
  };
  ExpectGoodStep(1, 1);
  for (const auto& [frame, times] : Arrivals(Server(0))) EXPECT_EQ(times, 1);
}

TEST_F(PauseTest, AServerThatIsDoneDoesNotHoldUpTheStep) {
  StartJob(2);
  std::atomic<FakeStream*> held{nullptr};
  Server(0).on_complete = [&](FakeStream* stream) {
    Server(0).on_complete = nullptr;
    Server(0).Decide();
    held = stream;
    return true;
  };
  // Server 1 breaks right after its RoundDone, and is not ready until the step has returned. The
  // step continues only after the first try to reach it.
  Server(1).on_complete = [&](FakeStream* stream) {
    Server(1).on_complete = nullptr;
    while (held == nullptr) std::this_thread::yield();
    Server(1).FinishRound(stream);
    FakeServer::Break(stream);
    return true;
  };
  std::atomic<bool> ready{false};
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (!message.has_hello() || ready) return false;
    FakeServer::Break(stream);
    if (Server(1).hellos.size() > 2) return true;
    std::lock_guard<std::mutex> lock(Server(0).mutex());
    Server(0).FinishRound(held);
    return true;
  };
  ExpectGoodStep(1, 0);
  ready = true;
  ExpectGoodStep(2, 1);
  // It was told that this slot held its new weights already, while the round was open.
  EXPECT_EQ(Server(1).hellos[1].round(), 2u);
  EXPECT_EQ(Server(1).begins.size(), 2u);
  EXPECT_THAT(Kinds(pauses_), ElementsAre("lost4", "back4"));
}

TEST_F(PauseTest, OneOfTwoServersBreaksTwiceInARound) {
  StartJob(2);
  BreakAfterFrames(&Server(1), {1, 3});
  ExpectGoodStep(1, 2);
  EXPECT_THAT(Kinds(pauses_), ElementsAre("lost4", "back4", "lost4", "back4"));
  EXPECT_EQ(Server(0).hellos.size(), 1u);
  for (const auto& [frame, times] : Arrivals(Server(0))) EXPECT_EQ(times, 1);
  ExpectGoodStep(2, 0);
}

TEST_F(PauseTest, AServerThatDiesAndStartsAgainIsFound) {
  StartJob(2);
  std::atomic<bool> pushed{false};
  Server(1).on_complete = [&](FakeStream*) {
    Server(1).on_complete = nullptr;
    pushed = true;
    return true;
  };
  std::thread operator_of_server([&] {
    while (!pushed) std::this_thread::yield();
    Server(1).Kill();
    Server(1).Start();
  });
  ExpectGoodStep(1, 1);
  operator_of_server.join();
}

TEST_F(PauseTest, AServerThatFallsSilentIsOpenedAgain) {
  job_.heartbeat_ms = 50;
  job_.report_after_ms = 1000;
  StartJob(2);
  int hellos = 0;
  const auto deaf = [&](FakeStream*, const v1::ClientMessage& message) {
    if (message.has_hello()) ++hellos;
    return hellos == 0;
  };
  Server(1).on_control = deaf;
  Server(1).on_frame = [&](FakeStream*, const DecodedFrame&) { return hellos == 0; };
  ExpectGoodStep(1, 1);
  ASSERT_THAT(Kinds(pauses_), ElementsAre("lost4", "back4"));
  // The end of the stream that was broken off is no news.
  for (const Pause& pause : pauses_) EXPECT_THAT(pause.error, HasSubstr("not responding"));
}

TEST_F(PauseTest, AServerThatIsNotReadyYetIsAskedAgain) {
  StartJob(2);
  BreakAfterFrames(&Server(1), {2});
  const std::vector<absl::Status> answers = {
      ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering, "reading its log"),
      absl::UnavailableError("starting"),
      ReasonedError(absl::StatusCode::kUnavailable, Reason::kShuttingDown, "stopping"),
  };
  size_t next = 0;
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (!message.has_hello() || next == answers.size()) return false;
    const absl::Status& answer = answers[next++];
    if (next % 2 == 0) {  // As an error message, or as the status alone.
      v1::ServerMessage error;
      *error.mutable_error() = DetailOf(answer);
      stream->Send(error);
    }
    stream->End(ToGrpc(answer));
    return true;
  };
  ExpectGoodStep(1, 1);
  EXPECT_EQ(Server(1).hellos.size(), 2 + answers.size());
  EXPECT_THAT(Kinds(pauses_), ElementsAre("lost4", "back4"));
}

TEST_F(PauseTest, FinalErrorsStayFinal) {
  struct Case {
    absl::StatusCode code;
    Reason reason;
    const char* name;
  };
  const Case cases[] = {
      {absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation, "WRONG_INCARNATION"},
      {absl::StatusCode::kFailedPrecondition, Reason::kJobFailed, "JOB_FAILED"},
      {absl::StatusCode::kUnavailable, Reason::kTrainerLost, "TRAINER_LOST"},
      {absl::StatusCode::kFailedPrecondition, Reason::kProtocolMismatch, "PROTOCOL_MISMATCH"},
      {absl::StatusCode::kDataLoss, Reason::kStateLost, "STATE_LOST"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    client_.reset();
    servers_.clear();
    job_.servers.clear();
    StartJob(2);
    BreakAfterFrames(&Server(1), {2});
    Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
      if (message.has_hello()) stream->End(ToGrpc(ReasonedError(c.code, c.reason, "no")));
      return message.has_hello();
    };
    ExpectBroken(Step().status(), c.code, c.name);
  }
}

// Its data directory may be mounted yet.
TEST_F(PauseTest, AServerThatHasNothingOfTheJobIsWaitedFor) {
  StartJob(2);
  BreakAfterFrames(&Server(1), {2});
  int refused = 0;
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    const bool refuse = message.has_hello() && refused++ < 2;
    if (refuse) {
      stream->End(ToGrpc(ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob, "no")));
    }
    return refuse;
  };
  const auto report = Step();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(refused, 3);
}

TEST_F(PauseTest, AServerThatHasNothingOfTheJobForTooLongHasLostItsState) {
  options_.reconnect_timeout = std::chrono::milliseconds(300);
  StartJob(2);
  BreakAfterFrames(&Server(1), {2});
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (message.has_hello()) {
      stream->End(ToGrpc(ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob, "no")));
    }
    return message.has_hello();
  };
  const absl::Status status = Step().status();
  ExpectBroken(status, absl::StatusCode::kDataLoss, "STATE_LOST");
  EXPECT_THAT(std::string(status.message()), HasSubstr("data directory"));
}

TEST_F(PauseTest, ATrainerThatIsAwayIsTold) {
  StartJob(2);
  Server(0).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (!message.has_begin()) return false;
    for (const bool away : {true, true, false, false}) {
      v1::ServerMessage news;
      news.mutable_trainer()->set_slot(3);
      news.mutable_trainer()->set_away(away);
      news.mutable_trainer()->set_why(away ? "no heartbeat" : "");
      stream->Send(news);
    }
    return false;
  };
  ExpectGoodStep(1, 0);
  ASSERT_EQ(pauses_.size(), 2u) << "what is said twice is told once";
  EXPECT_EQ(pauses_[0].kind, Pause::Kind::kTrainerLost);
  EXPECT_EQ(pauses_[0].slots, (std::vector<uint32_t>{3}));
  EXPECT_EQ(pauses_[0].error, "no heartbeat");
  EXPECT_EQ(pauses_[1].kind, Pause::Kind::kTrainerBack);
}

TEST_F(PauseTest, AnErrorOfTheJobIsNoPause) {
  StartJob(2);
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (!message.has_begin()) return false;
    v1::ServerMessage error;
    *error.mutable_error() = DetailOf(
        ReasonedError(absl::StatusCode::kAborted, Reason::kHyperparamMismatch, "lr differs"));
    stream->Send(error);
    return true;
  };
  ExpectBroken(Step().status(), absl::StatusCode::kAborted, "HYPERPARAM_MISMATCH");
  EXPECT_TRUE(pauses_.empty());
}

TEST_F(PauseTest, AServerThatDoesNotComeBackIsNamedWithTheLastError) {
  options_.reconnect_timeout = std::chrono::milliseconds(300);
  StartJob(2);
  Server(1).Kill();
  const absl::Status status = Step().status();
  ExpectBroken(status, absl::StatusCode::kUnavailable, "SERVER_LOST");
  EXPECT_EQ(GetErrorInfo(status).server, 4);
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("state server 4 at " + Server(1).address() + " has been away for "));
  EXPECT_THAT(text, HasSubstr("last error: state server 4"));
  EXPECT_THAT(text, HasSubstr("start it again on its data"));
  EXPECT_THAT(text, HasSubstr("more than 300ms with reconnect_timeout"));
}

TEST_F(PauseTest, AnotherVersionIsAnErrorThatNamesBoth) {
  StartJob(2);
  BreakAfterFrames(&Server(1), {1});
  Server(1).change_welcome = [](v1::Welcome* welcome) { welcome->set_round(7); };
  const absl::Status status = Step().status();
  ExpectBroken(status, absl::StatusCode::kFailedPrecondition, "WRONG_VERSION");
  EXPECT_EQ(GetErrorInfo(status).server, 4);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at version 7"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds version 1"));
}

TEST_F(PauseTest, AServerInThePreviousRoundGetsTimeToCatchUp) {
  StartJob(1);
  ExpectGoodStep(1, 0);
  int behind = 3;
  Server(0).change_welcome = [&](v1::Welcome* welcome) {
    if (behind-- > 0) welcome->set_round(1);
  };
  {
    std::lock_guard<std::mutex> lock(Server(0).mutex());
    FakeServer::Break(Server(0).stream);
  }
  AwaitHellos(&Server(0), 2);
  ExpectGoodStep(2, 1);
  EXPECT_EQ(Server(0).hellos.size(), 5u);
  EXPECT_EQ(Server(0).begins.size(), 2u);
}

TEST_F(PauseTest, AttachWaitsForAServerThatIsNotReady) {
  StartServers(2);
  options_.durability = Durability::kProcess;
  int refused = 0;
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (!message.has_hello() || ++refused > 2) return false;
    stream->End(ToGrpc(
        ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering, "reading its log")));
    return true;
  };
  ASSERT_TRUE(Attach().ok());
  EXPECT_EQ(Server(1).hellos.size(), 3u);
}

TEST_F(PauseTest, AttachCanBeStoppedWhileAServerIsAway) {
  StartServers(2);
  options_.durability = Durability::kProcess;
  std::atomic<bool> refused{false};
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (message.has_hello()) FakeServer::Break(stream);
    refused = true;
    return true;
  };
  options_.should_stop = [&] { return refused.load(); };
  ExpectReason(Attach(), absl::StatusCode::kCancelled, "CLOSED");
}

TEST_F(PauseTest, AbortEndsAPause) {
  StartJob(2);
  Server(1).Kill();
  on_pause_ = [&](const Pause&) { client_->Abort(); };
  ExpectBroken(Step().status(), absl::StatusCode::kCancelled, "CLOSED");
}

TEST_F(PauseTest, DestroyingAClientInAPauseIsSafe) {
  StartJob(2);
  Server(1).Kill();
  ASSERT_TRUE(client_->BeginStep(std::vector<Hyper>(2, AdamWHyper()), model_.Buffers()).ok());
  RoundReport report;
  while (pauses_.empty()) {
    ASSERT_TRUE(client_->Wait(std::chrono::milliseconds(10), &report).ok());
  }
  client_.reset();
}

TEST_F(PauseTest, LeaveDoesNotWaitLongForAServerThatIsAway) {
  job_.report_after_ms = 300;
  StartJob(2);
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (message.has_hello()) FakeServer::Break(stream);
    return message.has_hello();
  };
  {
    std::lock_guard<std::mutex> lock(Server(1).mutex());
    FakeServer::Break(Server(1).stream);
  }
  AwaitHellos(&Server(1), 2);
  EXPECT_TRUE(client_->Leave().ok());
  EXPECT_EQ(Server(0).leaves.size(), 1u);
  EXPECT_TRUE(Server(1).leaves.empty());
  ExpectReason(Step().status(), absl::StatusCode::kFailedPrecondition, "CLOSED");
}

TEST_F(PauseTest, LeaveReachesAServerThatComesBackInTime) {
  StartJob(2);
  std::atomic<bool> left{false};
  Server(0).on_control = [&](FakeStream*, const v1::ClientMessage& message) {
    if (message.has_leave()) left = true;
    return false;
  };
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (message.has_hello() && !left) FakeServer::Break(stream);
    return message.has_hello() && !left;
  };
  {
    std::lock_guard<std::mutex> lock(Server(1).mutex());
    FakeServer::Break(Server(1).stream);
  }
  AwaitHellos(&Server(1), 2);
  EXPECT_TRUE(client_->Leave().ok());
  EXPECT_EQ(Server(1).leaves.size(), 1u);
}

TEST_F(PauseTest, WithoutDurabilityALostServerEndsTheJob) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  Server(1).on_complete = [](FakeStream* stream) {
    FakeServer::Break(stream);
    return true;
  };
  const absl::Status status = Step().status();
  ExpectBroken(status, absl::StatusCode::kUnavailable, "SERVER_LOST");
  EXPECT_EQ(GetErrorInfo(status).server, 4);
  EXPECT_EQ(Server(1).hellos.size(), 1u);
}

}  // namespace
}  // namespace ballast::client
