// InitialWeights, in memory and on NVMe: frames become the state of an extent and its weights, and
// the first vote waits until every extent that is complete survives.
#include "server/engine/initial_weights.h"

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
constexpr uint32_t kWeightBytes = kElements * sizeof(float);

class InitialWeightsTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  InitialWeightsTest()
      : plan_(testing::Durable(testing::MakePlan({kElements, kElements}, 1, {0}))),
        fsm_(plan_),
        disk_(3 * kWeightBytes),
        state_(*MakeModelState({.shape = StateShapeOf(plan_.spec), .buffers = GetParam()},
                               fsm_.fsm_.layout(), fsm_.fsm_.owned(),
                               &optim::Kernels(simd::Isa::kScalar))),
        initial_(&fsm_.fsm_, &state_, [] {}) {
    state_.placement->Connect(
        {.images = &disk_,
         .wrap = [](ImageIo::Done done) { return done; },
         .failed = [](const absl::Status& status) { ADD_FAILURE() << status; },
         .progress =
             [this] {
               state_.placement->KeepImages(1, /*short_of_room=*/false);
               initial_.Check();
             }},
        /*version=*/1);
  }

  // Half of the extent's frames arrive.
  void Put(uint32_t extent, uint32_t half, float value) {
    const FrameHeader frame = testing::MakeFrame(plan_, FrameKind::kInit, 0, 1, extent,
                                                 {half * kWeightBytes / 2, kWeightBytes / 2});
    const std::vector<float> values(kElements / 2, value);
    ASSERT_TRUE(initial_
                    .Put(frame, Payload::FromString({reinterpret_cast<const char*>(values.data()),
                                                     kWeightBytes / 2}))
                    .ok());
  }
  void Arrive(uint32_t extent) {
    Put(extent, 1, 4);
    Put(extent, 0, 3);
    initial_.Complete(extent);
  }

  const JobPlan plan_;
  testing::FsmFixture fsm_;
  testing::MemoryImages disk_;
  ModelState state_;
  InitialWeights initial_;
};

TEST_P(InitialWeightsTest, TheFramesOfAnExtentBecomeItsStateAndItsWeights) {
  Arrive(1);
  disk_.Run();
  bool ready = false;
  state_.store.tier()->Acquire(1, [&](const absl::Status& status) { ready = status.ok(); });
  ASSERT_TRUE(ready);
  for (uint32_t t = 0; t < 2; ++t) {
    const TileView tile = state_.store.Tile(1, t);
    for (uint32_t i = 0; i < tile.elements; ++i) {
      ASSERT_EQ(tile.master()[i], t == 0 ? 3 : 4);
      ASSERT_EQ(tile.array[1][i], 0);
    }
  }
  const BufferRef weights = state_.weights.Find(1);
  ASSERT_TRUE(weights);
  EXPECT_EQ(reinterpret_cast<const float*>(weights.data())[0], 3);
  EXPECT_EQ(reinterpret_cast<const float*>(weights.data())[kElements - 1], 4);
  EXPECT_FALSE(state_.weights.Find(0));
}

TEST_P(InitialWeightsTest, TheCallWaitsUntilTheLastOfThemSurvives) {
  int durable = 0;
  Arrive(0);
  initial_.WhenDurable([&] { ++durable; });
  disk_.RunOne();
  Arrive(1);
  while (!disk_.kept.empty()) {
    disk_.RunOne();
    EXPECT_EQ(durable, disk_.Survives(0) == 1 && disk_.Survives(1) == 1 ? 1 : 0);
  }
  EXPECT_EQ(durable, 1);
  initial_.WhenDurable([&] { ++durable; });
  EXPECT_EQ(durable, 2) << "nothing is left to wait for";
}

INSTANTIATE_TEST_SUITE_P(Placements, InitialWeightsTest, ::testing::Values(0u, 4u));

}  // namespace
}  // namespace ballast::server
