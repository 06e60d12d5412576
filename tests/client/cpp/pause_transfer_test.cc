// A durable job's client against servers that go away while initial weights, uploads or fetches are
// under way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "tests/client/cpp/pause_fixture.h"

namespace ballast::client {
namespace {

using ::testing::HasSubstr;

TEST_F(PauseTest, LostInitialWeightsAreUploadedAgainBeforeTheRound) {
  StartJob(2);
  const std::vector<std::string> before = model_.weights;
  {
    std::lock_guard<std::mutex> lock(Server(1).mutex());
    Server(1).ForgetInit();
    FakeServer::Break(Server(1).stream);
  }
  AwaitHellos(&Server(1), 2);
  // The fake checks that it has all initial weights when the round begins.
  std::string sent;
  Server(1).on_frame = [&](FakeStream*, const DecodedFrame& frame) {
    if (frame.header.kind == FrameKind::kInit) {
      sent.resize(sent.size() + frame.header.length_bytes);
      frame.payload.CopyTo(sent.data() + sent.size() - frame.header.length_bytes);
    }
    return false;
  };
  ExpectGoodStep(1, 1);
  EXPECT_EQ(Server(1).begins.size(), 1u);
  uint64_t owned = 0;
  for (const uint32_t extent : Server(1).Owned()) {
    owned += Server(1).layout().ExtentWireBytes(extent);
  }
  EXPECT_EQ(sent.size(), owned);
  std::string all;
  for (const std::string& weight : before) all += weight;
  EXPECT_THAT(all, HasSubstr(sent.substr(0, 256)));
}

TEST_F(PauseTest, InitialWeightsLostInTheMiddleOfTheFirstRoundAreUploadedAgain) {
  StartJob(1);
  Server(0).on_frame = [&, seen = 0](FakeStream* stream, const DecodedFrame&) mutable {
    if (++seen == 3) {
      Server(0).ForgetInit();
      FakeServer::Break(stream);
    }
    return false;
  };
  ExpectGoodStep(1, 1);
  EXPECT_EQ(Server(0).begins.size(), 2u);
}

TEST_F(PauseTest, FetchingWeightsThatAServerHasLostIsRefusedWithTheNextStep) {
  StartJob(1);
  {
    std::lock_guard<std::mutex> lock(Server(0).mutex());
    Server(0).ForgetInit();
    FakeServer::Break(Server(0).stream);
  }
  // Whether the fetch or its reconnection comes first.
  AwaitHellos(&Server(0), 2);
  absl::Status status;
  ExpectReason(status = client_->FetchWeights(model_.Buffers()),
               absl::StatusCode::kFailedPrecondition, "NOT_BEGUN");
  EXPECT_THAT(std::string(status.message()), HasSubstr("run a step"));
}

TEST_F(PauseTest, InitialWeightsThatRoundsHaveChangedCannotComeAgain) {
  StartJob(1);
  ExpectGoodStep(1, 0);
  {
    std::lock_guard<std::mutex> lock(Server(0).mutex());
    Server(0).ForgetInit();
    FakeServer::Break(Server(0).stream);
  }
  ExpectBroken(Step().status(), absl::StatusCode::kDataLoss, "STATE_LOST");
}

TEST_F(PauseTest, AnUploadIsTakenUpAgain) {
  StartServers(2);
  options_.durability = Durability::kPower;
  int frames = 0;
  Server(1).on_frame = [&](FakeStream* stream, const DecodedFrame&) {
    if (++frames == 2) FakeServer::Break(stream);
    return false;
  };
  ASSERT_TRUE(Attach().ok());
  // The frame before the break came through; the extent it was cut from may come again as a whole.
  EXPECT_EQ(Server(1).hellos.size(), 2u);
  EXPECT_TRUE(Server(1).begins.empty());
  ExpectGoodStep(1, 1);
}

TEST_F(PauseTest, ABroadcastIsReceivedFromTheStart) {
  StartServers(2);
  options_.durability = Durability::kProcess;
  options_.world = 2;
  options_.slot = 1;
  options_.init = InitMode::kBroadcast;
  Server(1).weights_before_break = 2;
  ASSERT_TRUE(Attach().ok());
  for (const std::string& weight : model_.weights) {
    EXPECT_EQ(weight, std::string(weight.size(), 'w'));
  }
  EXPECT_TRUE(Server(1).frames.empty());
}

TEST_F(PauseTest, AFetchIsAskedAgainAndOnlyOfTheServerThatBroke) {
  StartJob(2);
  const std::vector<std::string> before = model_.weights;
  int asked[2] = {0, 0};
  for (size_t i = 0; i < 2; ++i) {
    Server(i).on_control = [&, i](FakeStream*, const v1::ClientMessage& message) {
      if (message.has_fetch_state()) ++asked[i];
      return false;
    };
  }
  Server(1).weights_before_break = 1;
  for (std::string& weight : model_.weights) weight.assign(weight.size(), '?');
  ASSERT_TRUE(client_->FetchWeights(model_.Buffers()).ok());
  EXPECT_TRUE(model_.weights == before);
  EXPECT_EQ(asked[0], 1);
  EXPECT_EQ(asked[1], 2);
}

}  // namespace
}  // namespace ballast::client
