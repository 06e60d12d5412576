// InitialWeights of a job on NVMe: the first vote waits until every extent that is complete
// survives.
#include "server/round/initial_weights.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/optim/dispatch.h"
#include "tests/server/round/fsm_fixture.h"
#include "tests/server/tier/memory_images.h"

namespace ballast::server {
namespace {

constexpr uint32_t kElements = 128;  // of an extent
constexpr size_t kWeightBytes = kElements * sizeof(float);

class InitialWeightsTest : public ::testing::Test {
 protected:
  InitialWeightsTest()
      : plan_(testing::Durable(testing::MakePlan({kElements, kElements}, 1, {0}))),
        fsm_(plan_),
        disk_(3 * kWeightBytes) {}

  void SetUp() override {
    const RoundFsm& fsm = fsm_.fsm_;
    auto tier = NvmeTier::Create({.shape = StateShapeOf(plan_.spec),
                                  .extent_elements = kElements,
                                  .buffers = kNvmeBuffersMin});
    ASSERT_TRUE(tier.ok()) << tier.status();
    NvmeTier* const nvme = tier->get();
    nvme->Connect(
        &disk_, [](ImageIo::Done done) { return done; },
        [this](const absl::Status& status) { failures_.push_back(status); });
    ExtentStore store(*std::move(tier), &optim::Kernels(simd::Isa::kScalar));
    ASSERT_TRUE(store.Add(fsm.layout(), fsm.owned()).ok());
    state_ = std::make_unique<ModelState>(
        ModelState{std::move(store), nvme, Weights(fsm.layout(), fsm.owned())});
    auto checkpointer = Checkpointer::Create(fsm.layout(), /*arrays=*/3, {}, {}, /*rounds=*/1);
    ASSERT_TRUE(checkpointer.ok()) << checkpointer.status();
    images_ = std::make_unique<ImageKeeper>(ImageKeeper::Deps{.fsm = &fsm, .state = state_.get()},
                                            *std::move(checkpointer));
    initial_ = std::make_unique<InitialWeights>(
        &fsm, state_.get(), images_.get(),
        [this](const absl::Status& status) { failures_.push_back(status); }, [] {});
  }

  // All frames of the extent arrive.
  void Arrive(uint32_t extent) {
    const FrameHeader frame = testing::MakeFrame(plan_, FrameKind::kInit, 0, 1, extent,
                                                 {0, static_cast<uint32_t>(kWeightBytes)});
    ASSERT_TRUE(initial_->Put(frame, Payload::FromString(std::string(kWeightBytes, 'w'))).ok());
    initial_->Complete(extent);
  }
  void Wait() {
    initial_->WhenDurable([this] { ++durable_; });
  }

  const JobPlan plan_;
  testing::FsmFixture fsm_;
  testing::MemoryImages disk_;
  std::unique_ptr<ModelState> state_;
  std::unique_ptr<ImageKeeper> images_;
  std::unique_ptr<InitialWeights> initial_;
  std::vector<absl::Status> failures_;
  int durable_ = 0;
};

TEST_F(InitialWeightsTest, TheCallWaitsForTheWriteAndTheFlush) {
  Arrive(0);
  Wait();
  ASSERT_EQ(disk_.kept.size(), 1u);
  disk_.RunOne();
  EXPECT_EQ(disk_.writes, 1);
  EXPECT_EQ(durable_, 0) << "the image is written, and not flushed";
  disk_.Run();
  EXPECT_EQ(durable_, 1);
  EXPECT_EQ(disk_.writes_flushed, 1);
  Wait();
  EXPECT_EQ(durable_, 2) << "nothing is left to wait for";
}

TEST_F(InitialWeightsTest, WhatIsSavedDuringAFlushNeedsAnotherOne) {
  Arrive(0);
  disk_.RunOne();  // Its flush is under way.
  Arrive(1);
  Wait();
  ASSERT_EQ(disk_.kept.size(), 2u);
  std::swap(disk_.kept[0], disk_.kept[1]);
  disk_.RunOne();
  EXPECT_EQ(disk_.writes, 2);
  disk_.RunOne();
  EXPECT_EQ(disk_.flushes, 1);
  EXPECT_EQ(durable_, 0) << "the flush began before the second write";
  disk_.Run();
  EXPECT_EQ(durable_, 1);
  EXPECT_EQ(disk_.flushes, 2);
  EXPECT_TRUE(failures_.empty());
}

TEST_F(InitialWeightsTest, WhatArrivesDuringAFlushIsWaitedFor) {
  Arrive(0);
  disk_.RunOne();
  Arrive(1);
  Wait();
  disk_.RunOne();
  EXPECT_EQ(disk_.flushes, 1);
  EXPECT_EQ(durable_, 0) << "the second extent is not written";
  disk_.Run();
  EXPECT_EQ(durable_, 1);
  EXPECT_EQ(disk_.writes_flushed, 2);
}

TEST_F(InitialWeightsTest, AFailedWriteIsReportedAndNothingCountsAsDurable) {
  disk_.write_error = absl::DataLossError("the disk is broken");
  Arrive(0);
  Wait();
  disk_.Run();
  EXPECT_FALSE(failures_.empty());
  EXPECT_EQ(durable_, 0);
}

}  // namespace
}  // namespace ballast::server
