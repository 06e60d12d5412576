// The send planner: order, presence, window, credits and resending, without any I/O.
#include "client/cpp/job/send_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reason.h"

namespace ballast::client {
namespace {

using ::ballast::DType;

// Extents of 128 fp32 elements = 512 bytes = 4 chunks of 128 bytes; five tensors of 128 elements.
Layout FiveExtents() {
  std::vector<LayoutTensor> tensors(5);
  for (LayoutTensor& tensor : tensors) tensor.elements = 128;
  return *Layout::Build(tensors, 64, 128);
}

const std::vector<uint32_t> kOrder = {4, 3, 2, 1, 0};

SendLimits Limits(uint64_t credit_bytes, uint32_t window_extents) {
  return {128, credit_bytes, window_extents};
}

std::vector<FrameRange> Take(SendPlan* plan) {
  std::vector<FrameRange> frames;
  while (auto frame = plan->Next()) frames.push_back(*frame);
  return frames;
}

TEST(SendPlan, FramesFollowTheGivenOrderAndCoverEveryByte) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 64));
  plan.Start(1, kOrder, {}, true);
  const std::vector<FrameRange> frames = Take(&plan);
  ASSERT_EQ(frames.size(), 20u);
  for (size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ(frames[i].position, i / 4);
    EXPECT_EQ(frames[i].extent, kOrder[i / 4]);
    EXPECT_EQ(frames[i].offset, i % 4 * 128);
    EXPECT_EQ(frames[i].length, 128u);
  }
  EXPECT_TRUE(plan.all_sent());
  EXPECT_FALSE(plan.all_received());
  EXPECT_EQ(plan.sent_bytes(), 5u * 512);
  plan.OnAck(5 * 512, 1, 0);
  EXPECT_TRUE(plan.all_received());
}

TEST(SendPlan, AbsentTensorsAreNotSent) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 64));
  plan.Start(1, kOrder, {false, true, false, true, false}, true);
  std::set<uint32_t> extents;
  for (const FrameRange& frame : Take(&plan)) extents.insert(frame.extent);
  EXPECT_EQ(extents, (std::set<uint32_t>{1, 3}));
  EXPECT_TRUE(plan.all_sent());
}

TEST(SendPlan, NothingPresentIsSentAtOnce) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 64));
  plan.Start(1, kOrder, std::vector<bool>(5, false), true);
  EXPECT_FALSE(plan.Next().has_value());
  EXPECT_TRUE(plan.all_received());
  plan.Start(2, {}, {}, true);
  EXPECT_TRUE(plan.all_received());
}

TEST(SendPlan, WindowHoldsBackLaterExtents) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 2));
  plan.Start(7, kOrder, {}, true);
  EXPECT_EQ(Take(&plan).size(), 8u);
  plan.OnAck(0, 6, 5);  // speaks of the round before
  EXPECT_EQ(Take(&plan).size(), 0u);
  plan.OnAck(0, 7, 1);
  EXPECT_EQ(Take(&plan).size(), 4u);
  plan.OnAck(0, 7, 5);
  EXPECT_EQ(Take(&plan).size(), 8u);
  EXPECT_TRUE(plan.all_sent());
}

TEST(SendPlan, TheWindowOfAGrownJobCountsFromTheNextRoundOn) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 2));
  plan.SetWindow(0);  // of a server that does not say
  plan.Start(1, kOrder, {}, true);
  EXPECT_EQ(Take(&plan).size(), 8u);
  plan.SetWindow(4);
  plan.Start(2, kOrder, {}, true);
  EXPECT_EQ(Take(&plan).size(), 16u);
}

TEST(SendPlan, WindowBeginsAnewWithEachRound) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 2));
  plan.Start(1, kOrder, {}, true);
  plan.OnAck(0, 1, 5);
  EXPECT_EQ(Take(&plan).size(), 20u);
  plan.Start(2, kOrder, {}, true);
  EXPECT_EQ(Take(&plan).size(), 8u);
}

TEST(SendPlan, AWindowThatIsToldBeforeTheRoundStartsCounts) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 2));
  plan.OnAck(0, 1, 3);
  plan.Resume(1, kOrder, {}, {});
  EXPECT_EQ(Take(&plan).size(), 20u);
  plan.Start(2, kOrder, {}, true);
  EXPECT_EQ(Take(&plan).size(), 8u);
}

TEST(SendPlan, AnotherStreamBeginsWithFullCreditAndNothingToSend) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(256, 64));
  plan.Start(1, kOrder, {}, true);
  EXPECT_EQ(Take(&plan).size(), 2u);
  plan.OnAck(128, 1, 5);
  plan.OnNewStream();
  EXPECT_EQ(Take(&plan).size(), 0u);
  EXPECT_EQ(plan.sent_bytes(), 0u);
  plan.Resume(1, kOrder, {}, {});
  EXPECT_EQ(Take(&plan).size(), 2u);
  // The old stream's byte counts and window hold no more.
  plan.OnAck(128, 1, 0);
  EXPECT_EQ(Take(&plan).size(), 1u);
}

TEST(SendPlan, ResumingLeavesOutCompleteExtentsAndKeepsPositions) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 2));
  plan.Resume(1, kOrder, {}, {4, 2});
  std::vector<FrameRange> frames = Take(&plan);
  ASSERT_EQ(frames.size(), 4u);
  EXPECT_EQ(frames[0].extent, 3u);
  EXPECT_EQ(frames[0].position, 1u);
  plan.OnAck(0, 1, 2);
  frames = Take(&plan);
  ASSERT_EQ(frames.size(), 4u);
  EXPECT_EQ(frames[0].extent, 1u);
  EXPECT_EQ(frames[0].position, 3u);
  plan.Resume(1, kOrder, {}, kOrder);
  EXPECT_TRUE(plan.all_sent());
}

TEST(SendPlan, AfterResumingAClosedRoundIsNoError) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 64));
  plan.Resume(3, kOrder, {}, {});
  Take(&plan);
  EXPECT_TRUE(plan.OnRefused(Reason::kRoundClosed, 3, 1, 256, "").ok());
  EXPECT_FALSE(plan.OnRefused(Reason::kConflict, 3, 1, 256, "").ok());
  plan.Start(4, kOrder, {}, true);
  EXPECT_FALSE(plan.OnRefused(Reason::kRoundClosed, 4, 1, 256, "").ok());
}

TEST(SendPlan, UploadsHaveNoWindow) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 1));
  plan.Start(1, kOrder, {}, false);
  EXPECT_EQ(Take(&plan).size(), 20u);
}

TEST(SendPlan, CreditsBoundTheBytesInTransit) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(300, 64));
  plan.Start(1, kOrder, {}, true);
  EXPECT_EQ(Take(&plan).size(), 2u);
  plan.OnAck(128, 1, 0);
  EXPECT_EQ(Take(&plan).size(), 1u);
  plan.OnAck(100, 1, 0);  // an older ack takes nothing back
  EXPECT_EQ(Take(&plan).size(), 0u);
  uint64_t received = 128;
  while (!plan.all_sent()) {
    received += 128;
    plan.OnAck(received, 1, 0);
    Take(&plan);
    EXPECT_LE(plan.sent_bytes() - received, 300u);
  }
}

TEST(SendPlan, CreditsCarryOnOverRounds) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(256, 64));
  plan.Start(1, {0}, {}, false);
  EXPECT_EQ(Take(&plan).size(), 2u);
  plan.OnAck(256, 1, 0);
  EXPECT_EQ(Take(&plan).size(), 2u);
  plan.Start(2, kOrder, {}, true);
  EXPECT_EQ(Take(&plan).size(), 0u);
  plan.OnAck(512, 1, 0);
  EXPECT_EQ(Take(&plan).size(), 2u);
}

TEST(SendPlan, AFrameBiggerThanAllCreditGoesAlone) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(10, 64));
  plan.Start(1, {0}, {}, true);
  EXPECT_EQ(Take(&plan).size(), 1u);
  plan.OnAck(128, 1, 0);
  EXPECT_EQ(Take(&plan).size(), 1u);
}

TEST(SendPlan, FramesOutOfWindowGoAgainWhenTheWindowMoves) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 5));
  plan.Start(3, kOrder, {}, true);
  Take(&plan);
  EXPECT_TRUE(plan.OnRefused(Reason::kOutOfWindow, 3, 1, 256, "").ok());
  EXPECT_FALSE(plan.all_sent());
  EXPECT_FALSE(plan.Next().has_value());
  plan.OnAck(2560, 3, 1);
  const auto frame = plan.Next();
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->extent, 1u);
  EXPECT_EQ(frame->position, 3u);
  EXPECT_EQ(frame->offset, 256u);
  EXPECT_EQ(frame->length, 128u);
  EXPECT_TRUE(plan.all_sent());
  EXPECT_FALSE(plan.all_received());  // its bytes count again
}

TEST(SendPlan, AMoveOfTheWindowThatOvertakesTheRefusalCounts) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 5));
  plan.Start(3, kOrder, {}, true);
  Take(&plan);
  plan.OnAck(0, 3, 1);
  EXPECT_TRUE(plan.OnRefused(Reason::kOutOfWindow, 3, 1, 256, "").ok());
  EXPECT_EQ(Take(&plan).size(), 1u);
  // Sent with the window as it is, it waits for the next move.
  EXPECT_TRUE(plan.OnRefused(Reason::kOutOfWindow, 3, 1, 256, "").ok());
  EXPECT_FALSE(plan.Next().has_value());
  plan.OnAck(0, 3, 2);
  EXPECT_EQ(Take(&plan).size(), 1u);
}

TEST(SendPlan, RefusedFramesGoAgainAfterATimeToo) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 5));
  plan.Start(3, kOrder, {}, true);
  Take(&plan);
  EXPECT_TRUE(plan.OnRefused(Reason::kOutOfWindow, 3, 1, 256, "").ok());
  plan.RetryRefused();
  EXPECT_TRUE(plan.Next().has_value());
}

TEST(SendPlan, DuplicatesAndAnswersToEarlierRoundsAreIgnored) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 64));
  plan.Start(3, kOrder, {}, true);
  Take(&plan);
  EXPECT_TRUE(plan.OnRefused(Reason::kDuplicate, 3, 1, 256, "").ok());
  EXPECT_TRUE(plan.OnRefused(Reason::kRoundClosed, 2, 1, 256, "").ok());
  EXPECT_FALSE(plan.Next().has_value());
}

TEST(SendPlan, ADamagedFrameGoesAgainOnce) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 64));
  plan.Start(3, kOrder, {}, true);
  Take(&plan);
  EXPECT_TRUE(plan.OnRefused(Reason::kBadChecksum, 3, 1, 256, "crc").ok());
  EXPECT_TRUE(plan.Next().has_value());
  const absl::Status status = plan.OnRefused(Reason::kBadChecksum, 3, 1, 256, "crc");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(status), Reason::kBadChecksum);
}

TEST(SendPlan, EveryOtherRefusalIsAnError) {
  const Layout layout = FiveExtents();
  for (const Reason reason : {Reason::kConflict, Reason::kStaleEpoch, Reason::kRoundClosed,
                              Reason::kWrongOwner, Reason::kBadFrame, Reason::kNotBegun}) {
    SendPlan plan(&layout, Limits(1 << 20, 64));
    plan.Start(3, kOrder, {}, true);
    Take(&plan);
    const absl::Status status = plan.OnRefused(reason, 3, 1, 256, "why");
    EXPECT_EQ(ReasonOf(status), reason);
    EXPECT_EQ(FieldsOf(status).round, 3u);
  }
}

TEST(SendPlan, RefusalsOfFramesNeverSentAreErrors) {
  const Layout layout = FiveExtents();
  SendPlan plan(&layout, Limits(1 << 20, 64));
  plan.Start(3, {4, 3}, {}, true);
  plan.Next();
  EXPECT_FALSE(plan.OnRefused(Reason::kOutOfWindow, 3, 0, 0, "").ok());    // not ours
  EXPECT_FALSE(plan.OnRefused(Reason::kOutOfWindow, 3, 3, 0, "").ok());    // not sent yet
  EXPECT_FALSE(plan.OnRefused(Reason::kOutOfWindow, 3, 4, 100, "").ok());  // no such frame
}

}  // namespace
}  // namespace ballast::client
