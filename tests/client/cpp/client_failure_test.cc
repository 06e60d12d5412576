// The whole client against fake servers that damage, refuse, vanish or disagree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/cpp/client_fixture.h"

namespace ballast::client {
namespace {

using ::testing::HasSubstr;

TEST_F(ClientTest, ADamagedFrameIsSentAgainOnceThenTheStepFails) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  bool once = true;
  Server(0).on_frame = [&](FakeStream* stream, const DecodedFrame& frame) {
    if (frame.header.kind != FrameKind::kGradient || !once) return false;
    once = false;
    Server(0).Ack(stream, frame.header.round, 0);
    Server(0).Refuse(stream, frame.header, v1::REASON_BAD_CHECKSUM);
    return true;
  };
  ASSERT_TRUE(Step().ok());
  EXPECT_TRUE(model_.weights == model_.grads);
  {
    std::lock_guard<std::mutex> lock(Server(0).mutex());
    Server(0).on_frame = [&](FakeStream* stream, const DecodedFrame& frame) {
      Server(0).Refuse(stream, frame.header, v1::REASON_BAD_CHECKSUM);
      return true;
    };
  }
  ExpectBroken(Step().status(), absl::StatusCode::kDataLoss, "BAD_CHECKSUM");
}

TEST_F(ClientTest, AConflictBreaksTheClient) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  Server(0).on_frame = [&](FakeStream* stream, const DecodedFrame& frame) {
    Server(0).Refuse(stream, frame.header, v1::REASON_CONFLICT);
    return true;
  };
  ExpectBroken(Step().status(), absl::StatusCode::kInternal, "CONFLICT");
}

TEST_F(ClientTest, AnErrorOfTheServerIsTheErrorOfTheStep) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  Server(1).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (!message.has_begin()) return false;
    ErrorFields fields;
    fields.job = "test";
    fields.round = 1;
    fields.slot = 3;
    v1::ServerMessage error;
    *error.mutable_error() = DetailOf(ReasonedError(
        absl::StatusCode::kUnavailable, Reason::kTrainerLost, "slot 3 is gone", fields));
    stream->Send(error);
    return true;
  };
  // A server that has failed the job finishes no round.
  Server(1).on_frame = [](FakeStream*, const DecodedFrame&) { return true; };
  const absl::Status status = Step().status();
  ExpectBroken(status, absl::StatusCode::kUnavailable, "TRAINER_LOST");
  EXPECT_EQ(GetErrorInfo(status).slot, 3);
  EXPECT_EQ(status.message(), "slot 3 is gone");
}

TEST_F(ClientTest, AVanishedServerIsNamed) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  std::atomic<bool> begun{false};
  Server(1).on_control = [&](FakeStream*, const v1::ClientMessage& message) {
    if (message.has_begin()) begun = true;
    return message.has_begin();
  };
  Server(1).on_frame = [](FakeStream*, const DecodedFrame&) { return true; };
  std::thread killer([&] {
    while (!begun) std::this_thread::yield();
    Server(1).Kill();
  });
  const absl::Status status = Step().status();
  killer.join();
  ExpectBroken(status, absl::StatusCode::kUnavailable, "SERVER_LOST");
  EXPECT_EQ(GetErrorInfo(status).server, 4);
  EXPECT_EQ(GetErrorInfo(status).round, 1u);
  EXPECT_EQ(GetErrorInfo(status).job, "test");
  EXPECT_THAT(std::string(status.message()), HasSubstr(Server(1).address()));
}

TEST_F(ClientTest, ASilentServerIsNamed) {
  job_.heartbeat_ms = 50;
  job_.report_after_ms = 1000;
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  Server(1).on_control = [](FakeStream*, const v1::ClientMessage&) { return true; };
  Server(1).on_frame = [](FakeStream*, const DecodedFrame&) { return true; };
  const absl::Status status = Step().status();
  ExpectBroken(status, absl::StatusCode::kUnavailable, "SERVER_LOST");
  EXPECT_EQ(GetErrorInfo(status).server, 4);
  EXPECT_EQ(GetErrorInfo(status).round, 1u);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not responding"));
}

TEST_F(ClientTest, HeartbeatsKeepASlowRoundAlive) {
  job_.heartbeat_ms = 20;
  job_.report_after_ms = 2000;
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  int beats = 0;
  Server(0).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    // The round ends only after many heartbeats.
    if (message.has_heartbeat() && ++beats == 120) Server(0).FinishRound(stream);
    return false;
  };
  Server(0).on_frame = [&](FakeStream*, const DecodedFrame&) { return true; };
  EXPECT_TRUE(Step().ok());
}

TEST_F(ClientTest, ServersThatDisagreeFailTheStep) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  Server(1).change_result = [](v1::RoundResult* result) { result->set_grad_norm(2); };
  ExpectBroken(Step().status(), absl::StatusCode::kAborted, "VOTE_MISMATCH");
}

TEST_F(ClientTest, ASkippedRoundLeavesTheWeights) {
  StartServers(2);
  ASSERT_TRUE(Attach().ok());
  const std::vector<std::string> before = model_.weights;
  for (auto& server : servers_) {
    server->change_result = [](v1::RoundResult* result) {
      result->set_applied(false);
      result->set_nonfinite(1);
      result->set_weight_bytes(0);
    };
  }
  auto report = Step();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->applied);
  EXPECT_EQ(report->nonfinite, 1u);
  EXPECT_TRUE(model_.weights == before);
  EXPECT_EQ(client_->round(), 2u);
}

TEST_F(ClientTest, DamagedWeightsFailTheStep) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  Server(0).on_control = [&](FakeStream* stream, const v1::ClientMessage& message) {
    if (message.has_begin()) Server(0).FinishRound(stream, /*flip=*/true);
    return message.has_begin();
  };
  Server(0).on_frame = [](FakeStream*, const DecodedFrame&) { return true; };
  ExpectBroken(Step().status(), absl::StatusCode::kDataLoss, "BAD_CHECKSUM");
}

TEST_F(ClientTest, GarbageFromAServerBreaksTheClient) {
  StartServers(1);
  ASSERT_TRUE(Attach().ok());
  Server(0).on_control = [](FakeStream* stream, const v1::ClientMessage& message) {
    const grpc::Slice slice(std::string("\x7a\x05xxx"));
    if (message.has_begin()) stream->Send(grpc::ByteBuffer(&slice, 1));
    return message.has_begin();
  };
  Server(0).on_frame = [](FakeStream*, const DecodedFrame&) { return true; };
  ExpectBroken(Step().status(), absl::StatusCode::kInternal, "BAD_FRAME");
}

}  // namespace
}  // namespace ballast::client
