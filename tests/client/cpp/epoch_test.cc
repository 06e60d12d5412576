// A durable job's client when trainers are replaced: as one that was there before, and as one whose
// seat was taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/cpp/pause_fixture.h"

namespace ballast::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- One that was there before ------------------------------------------------------------------

class SurvivorTest : public PauseTest {
 protected:
  void StartWorld(size_t servers, uint32_t world = 2) {
    options_.world = world;
    StartJob(servers);
  }

  // Slot 1 gets a new process, and this server is the first to say so. Under its lock.
  void Replace(FakeServer* server, uint64_t start_round) {
    job_.NextEpoch(1, start_round);
    server->Adopt();
  }

  void ExpectReplaced(std::vector<std::string> kinds = {"replacing1", "replaced1"}) {
    EXPECT_EQ(Kinds(pauses_), kinds);
    for (const Pause& pause : pauses_) EXPECT_THAT(pause.slots, ElementsAre(1));
  }

  // It does not vote on the round before it is in `epoch`.
  static void DecideFrom(FakeServer* server, uint32_t epoch) {
    server->on_complete = [server, epoch](FakeStream*) {
      return server->hellos.back().epoch() < epoch;
    };
  }

  // Once, `action` instead of the vote.
  static void OnceComplete(FakeServer* server, std::function<void()> action) {
    server->on_complete = [server, action](FakeStream*) {
      const std::function<void()> once = action;
      server->on_complete = nullptr;
      once();
      return true;
    };
  }
};

TEST_F(SurvivorTest, BeforeItsFirstRound) {
  StartWorld(2);
  {
    std::lock_guard<std::mutex> lock(Server(1).mutex());
    Replace(&Server(1), 1);
  }
  AwaitHellos(&Server(0), 2);
  ExpectGoodStep(1, 0);
  ExpectReplaced();
  for (auto& server : servers_) {
    ASSERT_EQ(server->hellos.size(), 2u);
    EXPECT_EQ(server->hellos[1].epoch(), 2u);
    EXPECT_EQ(server->hellos[1].incarnation(), server->hellos[0].incarnation());
  }
  EXPECT_EQ(pauses_[0].epoch, 2u);
  EXPECT_EQ(pauses_[1].epoch, 2u);
}

TEST_F(SurvivorTest, AsksTheHomeAsTheProcessThatItIs) {
  StartWorld(1);
  {
    std::lock_guard<std::mutex> lock(Server(0).mutex());
    Replace(&Server(0), 1);
  }
  AwaitHellos(&Server(0), 2);
  ASSERT_EQ(Server(0).attaches.size(), 2u);
  const v1::AttachRequest& first = Server(0).attaches[0];
  const v1::AttachRequest& again = Server(0).attaches[1];
  EXPECT_EQ(again.incarnation(), first.incarnation());
  EXPECT_EQ(again.slot(), first.slot());
  EXPECT_EQ(again.spec().SerializeAsString(), first.spec().SerializeAsString());
  // It must never take a seat back that somebody else has got.
  EXPECT_EQ(again.resume(), v1::RESUME_NEVER);
}

TEST_F(SurvivorTest, BetweenTwoRounds) {
  StartWorld(2);
  ExpectGoodStep(1, 0);
  {
    std::lock_guard<std::mutex> lock(Server(0).mutex());
    Replace(&Server(0), 2);
  }
  AwaitHellos(&Server(1), 2);
  ExpectGoodStep(2, 0);
  ExpectReplaced();
  for (auto& server : servers_) EXPECT_EQ(server->hellos[1].round(), 2u);
}

TEST_F(SurvivorTest, InTheMiddleOfAPushAllFramesGoOutAgain) {
  StartWorld(2);
  DecideFrom(&Server(0), 2);
  Server(1).on_frame = [&, seen = 0](FakeStream*, const DecodedFrame&) mutable {
    if (++seen != 3) return false;
    Replace(&Server(1), 1);
    return true;
  };
  ExpectGoodStep(1, 0);
  ExpectReplaced();
  ASSERT_EQ(Server(1).begins.size(), 2u);
  EXPECT_EQ(Server(1).begins[0].SerializeAsString(), Server(1).begins[1].SerializeAsString());
  // The fake checks that each frame carries the epoch that it is in.
  for (size_t i = 0; i < 3; ++i) {
    const FrameHeader& header = Server(1).frames[i].header;
    EXPECT_EQ(Arrivals(Server(1)).at({header.extent, header.offset_bytes}), 2);
  }
  ExpectGoodStep(2, 0);
}

TEST_F(SurvivorTest, CompleteExtentsAreNotSentAgainInTheNewEpoch) {
  StartWorld(1);
  OnceComplete(&Server(0), [&] {
    Server(0).kept = {Server(0).Owned().front()};
    Replace(&Server(0), 1);
  });
  ExpectGoodStep(1, 0);
  for (const auto& [frame, times] : Arrivals(Server(0))) {
    EXPECT_EQ(times, Server(0).kept.count(frame.first) > 0 ? 1 : 2) << "extent " << frame.first;
  }
}

TEST_F(SurvivorTest, AfterAPushTheRoundIsRunAgain) {
  StartWorld(2);
  std::atomic<bool> other{false};
  OnceComplete(&Server(0), [&] { other = true; });
  OnceComplete(&Server(1), [&] {
    while (!other) std::this_thread::yield();
    Replace(&Server(1), 1);
  });
  ExpectGoodStep(1, 0);
  ExpectReplaced();
  for (auto& server : servers_) {
    EXPECT_EQ(server->begins.size(), 2u);
    for (const auto& [frame, times] : Arrivals(*server)) EXPECT_EQ(times, 2);
  }
}

TEST_F(SurvivorTest, AfterAPushTheRoundMayBeDecided) {
  StartWorld(2);
  std::atomic<bool> other{false};
  OnceComplete(&Server(0), [&] {
    Server(0).Decide();
    other = true;
  });
  OnceComplete(&Server(1), [&] {
    while (!other) std::this_thread::yield();
    Server(1).Decide();
    Replace(&Server(1), 2);
  });
  ExpectGoodStep(1, 0);
  ExpectReplaced();
  for (auto& server : servers_) {
    EXPECT_EQ(server->begins.size(), 1u);
    for (const auto& [frame, times] : Arrivals(*server)) EXPECT_EQ(times, 1);
  }
  ExpectGoodStep(2, 0);
}

TEST_F(SurvivorTest, ADecisionMayComeBeforeTheAcks) {
  job_.credit_bytes = 1 << 20;
  StartWorld(1);
  Server(0).acknowledge = false;
  OnceComplete(&Server(0), [&] {
    Server(0).Decide();
    Replace(&Server(0), 2);
  });
  ExpectGoodStep(1, 0);
  for (const auto& [frame, times] : Arrivals(Server(0))) EXPECT_EQ(times, 1);
}

// Then the round is decided, and the epoch begins with the next one.
TEST_F(SurvivorTest, InTheMiddleOfTheWeightsTheyComeAgain) {
  StartWorld(2);
  OnceComplete(&Server(0), [&] { Server(0).Decide(); });
  Server(1).weights_before_break = 2;
  Server(1).break_weights = [&](FakeStream*) { Replace(&Server(1), 2); };
  ExpectGoodStep(1, 0);
  ExpectReplaced();
  for (auto& server : servers_) EXPECT_EQ(server->begins.size(), 1u);
  ExpectGoodStep(2, 0);
}

TEST_F(SurvivorTest, AServerWhoseWeightsAreAllInSendsNoneAgain) {
  StartWorld(2);
  std::atomic<bool> complete{false};
  OnceComplete(&Server(1), [&] {
    Server(1).Decide();
    complete = true;
  });
  // After its RoundDone comes a message that the client counts.
  OnceComplete(&Server(0), [&] {
    while (!complete) std::this_thread::yield();
    Server(0).FinishRound(Server(0).stream);
    Server(0).Refuse(Server(0).stream, Server(0).frames.back().header, v1::REASON_DUPLICATE);
  });
  ASSERT_TRUE(client_->BeginStep(std::vector<Hyper>(2, AdamWHyper()), model_.Buffers()).ok());
  while (client_->counters().frames_refused == 0) std::this_thread::yield();
  {
    std::lock_guard<std::mutex> lock(Server(1).mutex());
    Replace(&Server(1), 2);
  }
  RoundReport report;
  absl::StatusOr<bool> done = false;
  while (done.ok() && !*done) done = client_->Wait(std::chrono::milliseconds(10), &report);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_TRUE(model_.weights == model_.grads);
  AwaitHellos(&Server(0), 2);
  EXPECT_EQ(Server(0).hellos.back().round(), 2u);
  EXPECT_EQ(Server(1).hellos.back().round(), 1u);
}

TEST_F(SurvivorTest, AnUploadGoesOnInTheNewEpoch) {
  StartServers(2);
  options_.durability = Durability::kPower;
  options_.world = 2;
  Server(1).on_frame = [&, seen = 0](FakeStream*, const DecodedFrame&) mutable {
    if (++seen == 2) Replace(&Server(1), 1);
    return false;
  };
  ASSERT_TRUE(Attach().ok());
  EXPECT_FALSE(client_->resumed());
  EXPECT_EQ(Server(1).hellos.back().epoch(), 2u);
  ExpectGoodStep(1, 0);
}

TEST_F(SurvivorTest, AFetchGoesOnInTheNewEpoch) {
  StartWorld(2);
  ExpectGoodStep(1, 0);
  Server(1).weights_before_break = 1;
  Server(1).break_weights = [&](FakeStream*) { Replace(&Server(1), 2); };
  for (std::string& weight : model_.weights) weight.assign(weight.size(), '?');
  ASSERT_TRUE(client_->FetchWeights(model_.Buffers()).ok());
  EXPECT_TRUE(model_.weights == model_.grads);
}

TEST_F(SurvivorTest, TheNextChangeMayComeWithTheFirstHello) {
  StartWorld(2);
  Server(1).on_frame = [&, seen = 0](FakeStream*, const DecodedFrame&) mutable {
    if (++seen == 3) Replace(&Server(1), 1);
    return seen == 3;
  };
  for (auto& server : servers_) DecideFrom(server.get(), 3);
  // Epoch 2 is over before this server has welcomed anybody in it.
  Server(0).on_control = [&](FakeStream*, const v1::ClientMessage& message) {
    if (message.has_hello() && message.hello().epoch() == 2) job_.NextEpoch(1, 1);
    return false;
  };
  ExpectGoodStep(1, 0);
  EXPECT_EQ(Server(0).hellos.back().epoch(), 3u);
  EXPECT_EQ(Server(1).hellos.back().epoch(), 3u);
  EXPECT_EQ(pauses_.back().kind, Pause::Kind::kReplaced);
  EXPECT_EQ(pauses_.back().epoch, 3u);
  ExpectGoodStep(2, 0);
}

TEST_F(SurvivorTest, TwoChangesInOneRound) {
  StartWorld(1);
  Server(0).on_frame = [&, seen = 0](FakeStream*, const DecodedFrame&) mutable {
    const bool now = ++seen == 3 || seen == 7;
    if (now) Replace(&Server(0), 1);
    return now;
  };
  ExpectGoodStep(1, 0);
  ExpectReplaced({"replacing1", "replaced1", "replacing1", "replaced1"});
  EXPECT_EQ(Server(0).begins.size(), 3u);
  EXPECT_EQ(pauses_.back().epoch, 3u);
}

TEST_F(SurvivorTest, AHomeThatDoesNotKnowTheNewEpochYetIsAskedAgain) {
  StartWorld(2);
  DecideFrom(&Server(0), 2);
  OnceComplete(&Server(1), [&] { Replace(&Server(1), 1); });
  int stale = 2;
  Server(0).change_attach = [&](v1::AttachReply* reply) {
    if (stale-- > 0) reply->mutable_epoch()->set_epoch(1);
  };
  ExpectGoodStep(1, 0);
  EXPECT_EQ(Server(0).attaches.size(), 4u);
  ExpectReplaced();
}

TEST_F(SurvivorTest, AHomeThatIsNotReadyIsAskedAgain) {
  StartWorld(2);
  DecideFrom(&Server(0), 2);
  const std::vector<absl::Status> answers = {
      ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost, "server 4 is away"),
      ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering, "reading its log"),
      absl::UnavailableError("starting"),
      ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob, "server 4 is behind"),
  };
  Server(0).on_attach = [&, next = size_t{0}](const v1::AttachRequest&) mutable {
    return next < answers.size() ? answers[next++] : absl::OkStatus();
  };
  OnceComplete(&Server(1), [&] { Replace(&Server(1), 1); });
  ExpectGoodStep(1, 0);
  EXPECT_EQ(Server(0).attaches.size(), 2 + answers.size());
  ExpectReplaced();
}

TEST_F(SurvivorTest, AHomeThatDiesDuringTheChangeIsFoundWhenItIsBack) {
  StartWorld(2);
  std::atomic<bool> changed{false};
  Server(0).hold_attach = true;
  OnceComplete(&Server(1), [&] {
    Replace(&Server(1), 1);
    changed = true;
  });
  DecideFrom(&Server(0), 2);
  std::thread operator_of_home([&] {
    const auto asked = [&] {
      std::lock_guard<std::mutex> lock(Server(0).mutex());
      return changed && Server(0).attaches.size() == 2;
    };
    while (!asked()) std::this_thread::yield();
    Server(0).Kill();
    Server(0).hold_attach = false;
    Server(0).Start();
  });
  ExpectGoodStep(1, 1);  // The home's own return.
  operator_of_home.join();
  EXPECT_EQ(Server(0).hellos.back().epoch(), 2u);
  EXPECT_EQ(Server(1).hellos.back().epoch(), 2u);
}

TEST_F(SurvivorTest, AServerThatComesBackInALaterEpochLeadsThere) {
  StartWorld(2);
  std::atomic<bool> pushed{false};
  OnceComplete(&Server(1), [&] { pushed = true; });
  DecideFrom(&Server(0), 2);
  std::thread operator_of_server([&] {
    while (!pushed) std::this_thread::yield();
    Server(1).Kill();
    {
      std::lock_guard<std::mutex> lock(Server(1).mutex());
      Replace(&Server(1), 1);
    }
    Server(1).Start();
  });
  ExpectGoodStep(1, 1);
  operator_of_server.join();
  EXPECT_EQ(Kinds(pauses_),
            (std::vector<std::string>{"lost4", "back4", "replacing1", "replaced1"}));
}

TEST_F(SurvivorTest, AFrameThatIsRefusedForItsEpochIsThePauseToo) {
  StartWorld(1);
  Server(0).on_frame = [&, seen = 0](FakeStream* stream, const DecodedFrame& frame) mutable {
    if (++seen != 3) return false;
    job_.NextEpoch(1, 1);
    Server(0).Refuse(stream, frame.header, v1::REASON_STALE_EPOCH);
    return true;
  };
  ExpectGoodStep(1, 0);
  ExpectReplaced();
}

TEST_F(SurvivorTest, TimeOfTheChangeIsTimeOfTheRound) {
  StartWorld(1);
  OnceComplete(&Server(0), [&] { Replace(&Server(0), 1); });
  const auto report = Step();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->paused_ns, 0u);
  EXPECT_EQ(report->reconnects, 0u);
  EXPECT_GT(pauses_[1].away, pauses_[0].away);
  const auto calm = Step();
  ASSERT_TRUE(calm.ok()) << calm.status();
  EXPECT_EQ(calm->paused_ns, 0u);
}

TEST_F(SurvivorTest, GivesUpWhenTheHomeDoesNotAnswerInTime) {
  options_.reconnect_timeout = std::chrono::milliseconds(300);
  StartWorld(2);
  Server(0).hold_attach = true;
  OnceComplete(&Server(1), [&] { Replace(&Server(1), 1); });
  const absl::Status status = Step().status();
  ExpectBroken(status, absl::StatusCode::kUnavailable, "SERVER_LOST");
  EXPECT_EQ(GetErrorInfo(status).server, 1);
  EXPECT_THAT(std::string(status.message()), HasSubstr("next epoch for 300ms"));
}

TEST_F(SurvivorTest, AHomeThatHasForgottenTheJobEndsIt) {
  const std::function<void()> ways[] = {
      [&] { Server(0).change_attach = [](v1::AttachReply* reply) { reply->set_job(77); }; },
      [&] {
        Server(0).on_attach = [](const v1::AttachRequest& request) {
          EXPECT_EQ(request.wait_timeout_ms(), 1u);
          return ReasonedError(absl::StatusCode::kDeadlineExceeded, Reason::kAttachTimeout,
                               "waited in vain for slots 1");
        };
      },
  };
  for (const auto& forget : ways) {
    client_.reset();
    servers_.clear();
    job_.servers.clear();
    job_.record.Clear();
    job_.newcomers.clear();
    StartWorld(2);
    forget();
    OnceComplete(&Server(1), [&] { Replace(&Server(1), 1); });
    const absl::Status status = Step().status();
    ExpectBroken(status, absl::StatusCode::kFailedPrecondition, "UNKNOWN_JOB");
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not know job \"test\" any more"));
  }
}

TEST_F(SurvivorTest, AnotherPlanInTheNewEpochIsAnError) {
  StartWorld(2);
  Server(0).change_attach = [](v1::AttachReply* reply) {
    reply->mutable_plan()->set_owner(0, reply->plan().owner(0) == 1 ? 4 : 1);
  };
  OnceComplete(&Server(1), [&] { Replace(&Server(1), 1); });
  ExpectBroken(Step().status(), absl::StatusCode::kInternal, "BAD_FRAME");
}

TEST_F(SurvivorTest, AbortEndsTheChange) {
  StartWorld(2);
  Server(0).hold_attach = true;
  Server(0).on_attach = [&](const v1::AttachRequest&) {
    client_->Abort();
    return absl::OkStatus();
  };
  OnceComplete(&Server(1), [&] { Replace(&Server(1), 1); });
  ExpectBroken(Step().status(), absl::StatusCode::kCancelled, "CLOSED");
}

TEST_F(SurvivorTest, AttachCanBeStoppedDuringTheChange) {
  StartServers(2);
  options_.durability = Durability::kProcess;
  options_.world = 2;
  std::atomic<bool> asked{false};
  Server(0).on_attach = [&](const v1::AttachRequest&) {
    Server(0).hold_attach = Server(0).attaches.size() > 1;
    asked = Server(0).hold_attach;
    return absl::OkStatus();
  };
  Server(1).on_frame = [&](FakeStream*, const DecodedFrame&) {
    Replace(&Server(1), 1);
    return true;
  };
  options_.should_stop = [&] { return asked.load(); };
  ExpectReason(Attach(), absl::StatusCode::kCancelled, "CLOSED");
}

TEST_F(SurvivorTest, AClientCanBeDestroyedDuringTheChange) {
  StartWorld(2);
  std::atomic<bool> asked{false};
  Server(0).hold_attach = true;
  Server(0).on_attach = [&](const v1::AttachRequest&) {
    asked = true;
    return absl::OkStatus();
  };
  OnceComplete(&Server(1), [&] { Replace(&Server(1), 1); });
  ASSERT_TRUE(client_->BeginStep(std::vector<Hyper>(2, AdamWHyper()), model_.Buffers()).ok());
  while (!asked) std::this_thread::yield();
  client_.reset();
}

TEST_F(SurvivorTest, AfterTheStepNothingTouchesTheBuffers) {
  StartWorld(2);
  OnceComplete(&Server(1), [&] { Replace(&Server(1), 1); });
  DecideFrom(&Server(0), 2);
  ExpectGoodStep(1, 0);
  const std::vector<std::string> after = model_.weights;
  for (std::string& grad : model_.grads) {
    std::string().swap(grad);  // Under AddressSanitizer a late read fails.
  }
  {
    std::lock_guard<std::mutex> lock(Server(1).mutex());
    Replace(&Server(1), 2);
  }
  AwaitHellos(&Server(0), 3);
  AwaitHellos(&Server(1), 3);
  client_.reset();
  EXPECT_TRUE(model_.weights == after);
}

// --- One whose seat was taken -------------------------------------------------------------------

class ZombieTest : public SurvivorTest {
 protected:
  void ExpectZombie(const absl::Status& status) {
    ExpectBroken(status, absl::StatusCode::kFailedPrecondition, "WRONG_INCARNATION");
    EXPECT_EQ(GetErrorInfo(status).slot, 0);
    EXPECT_THAT(std::string(status.message()), HasSubstr("slot 0 of job \"test\""));
    EXPECT_THAT(std::string(status.message()), HasSubstr("nothing is lost. End this one"));
  }
};

TEST_F(ZombieTest, IsToldByTheHome) {
  for (const Reason reason : {Reason::kNameInUse, Reason::kSlotTaken}) {
    client_.reset();
    servers_.clear();
    job_.servers.clear();
    job_.record.Clear();
    StartWorld(2);
    Server(0).on_attach = [&](const v1::AttachRequest&) {
      return ReasonedError(absl::StatusCode::kAlreadyExists, reason, "no seat for you");
    };
    OnceComplete(&Server(1), [&] { Replace(&Server(1), 1); });
    ExpectZombie(Step().status());
  }
}

TEST_F(ZombieTest, IsToldByTheRecord) {
  StartWorld(2);
  OnceComplete(&Server(1), [&] {
    job_.NextEpoch(0, 1);
    Server(1).Adopt();
  });
  ExpectZombie(Step().status());
  EXPECT_TRUE(pauses_.empty());
}

TEST_F(ZombieTest, IsToldByTheAnswerToItsHello) {
  StartWorld(2);
  BreakAfterFrames(&Server(1), {2});
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (message.has_hello()) {
      stream->End(ToGrpc(ReasonedError(absl::StatusCode::kFailedPrecondition,
                                       Reason::kWrongIncarnation, "held by another process")));
    }
    return message.has_hello();
  };
  ExpectZombie(Step().status());
}

TEST_F(SurvivorTest, WithoutDurabilityAnotherEpochIsAnError) {
  StartServers(1);
  options_.world = 2;
  ASSERT_TRUE(Attach().ok());
  OnceComplete(&Server(0), [&] { Replace(&Server(0), 1); });
  ExpectBroken(Step().status(), absl::StatusCode::kFailedPrecondition, "STALE_EPOCH");
  EXPECT_EQ(Server(0).attaches.size(), 1u);
}

}  // namespace
}  // namespace ballast::client
