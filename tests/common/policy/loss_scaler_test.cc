// Tests of common/policy/loss_scaler.h.
#include "common/policy/loss_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "common/base/reason.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Scale after each of `calls` rounds; those in `overflows` (counted from 1) overflow.
std::vector<double> Scales(const LossScalerConfig& config, int calls,
                           const std::set<int>& overflows) {
  LossScalerState state = StartLossScaler(config);
  std::vector<double> scales;
  for (int call = 1; call <= calls; ++call) {
    state = StepLossScaler(config, state, overflows.contains(call)).state;
    scales.push_back(state.scale);
  }
  return scales;
}

TEST(LossScalerTest, FallsAtEveryOverflowWithoutHysteresis) {
  EXPECT_THAT(Scales({.loss_scale_window = 3, .hysteresis = 1}, 8, {3, 4, 8}),
              ElementsAre(65536, 65536, 32768, 16384, 16384, 16384, 16384, 8192));
}

TEST(LossScalerTest, HysteresisLetsTheFirstOverflowPass) {
  EXPECT_THAT(Scales({.loss_scale_window = 3}, 8, {3, 4, 8}),
              ElementsAre(65536, 65536, 65536, 32768, 32768, 32768, 32768, 16384));
}

TEST(LossScalerTest, CleanRoundsRefillConsecutiveHysteresis) {
  EXPECT_THAT(Scales({.loss_scale_window = 3, .consecutive_hysteresis = true}, 8, {3, 4, 8}),
              ElementsAre(65536, 65536, 65536, 32768, 32768, 32768, 32768, 32768));
}

TEST(LossScalerTest, GrowsOneRoundAfterTheWindowAndThenEveryWindow) {
  EXPECT_THAT(Scales({.initial_scale_power = 0, .loss_scale_window = 4}, 13, {}),
              ElementsAre(1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 8));
}

TEST(LossScalerTest, GrowsToTheLargestPowerOfTwoOfFp32AndFallsFromThere) {
  const LossScalerConfig config = {
      .initial_scale_power = 126, .loss_scale_window = 1, .hysteresis = 1};
  EXPECT_THAT(Scales(config, 6, {5, 6}),
              ElementsAre(0x1p126, 0x1p127, 0x1p127, 0x1p127, 0x1p126, 0x1p125));
  LossScalerState state = StartLossScaler(config);
  for (int call = 0; call < 3000; ++call) state = StepLossScaler(config, state, false).state;
  EXPECT_EQ(state.scale, kLossScaleMax);
}

TEST(LossScalerTest, HaltsAtTheMinimumAndKeepsItsState) {
  const LossScalerConfig config{.initial_scale_power = 1, .hysteresis = 1, .min_loss_scale = 1.5};
  LossScalerStep step = StepLossScaler(config, StartLossScaler(config), true);
  EXPECT_EQ(step.event, LossScalerEvent::kFell);
  EXPECT_EQ(step.state.scale, 1.5);
  const LossScalerState before = step.state;
  step = StepLossScaler(config, before, true);
  EXPECT_EQ(step.event, LossScalerEvent::kAtMinimum);
  EXPECT_EQ(step.state, before);
}

TEST(LossScalerTest, AStaticScaleSkipsAndStays) {
  const LossScalerConfig config{.dynamic = false, .static_scale = 128};
  const LossScalerStep step = StepLossScaler(config, StartLossScaler(config), true);
  EXPECT_EQ(step.event, LossScalerEvent::kSkipped);
  EXPECT_EQ(step.state.scale, 128);
  EXPECT_EQ(step.state.skipped, 1u);
}

TEST(LossScalerTest, AGrowthRoundDividesByTheScaleOfItsLoss) {
  LossScalerConfig config{.initial_scale_power = 3, .loss_scale_window = 1};
  const LossScalerState state = StepLossScaler(config, StartLossScaler(config), false).state;
  EXPECT_EQ(StepLossScaler(config, state, false).event, LossScalerEvent::kGrew);
  EXPECT_EQ(StepLossScaler(config, state, false).unscale_by, 8);
  config.profile = PolicyProfile::kDeepSpeed;
  EXPECT_EQ(StepLossScaler(config, state, false).unscale_by, 16);
}

TEST(LossScalerTest, RefusesWhatCannotWork) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<LossScalerConfig, std::string>> cases = {
      {{.initial_scale_power = -1}, "initial_scale_power"},
      {{.initial_scale_power = 127}, "initial_scale_power"},
      {{.loss_scale_window = 0}, "loss_scale_window"},
      {{.hysteresis = 0}, "hysteresis"},
      {{.min_loss_scale = 0}, "min_loss_scale"},
      {{.min_loss_scale = nan}, "min_loss_scale"},
      {{.initial_scale_power = 2, .min_loss_scale = 8}, "at most the initial scale 4, got 8"},
      {{.dynamic = false, .static_scale = 0}, "finite number above 0, got 0"},
      {{.dynamic = false, .static_scale = nan}, "loss_scale"}};
  for (const auto& [config, text] : cases) {
    const absl::Status status = CheckLossScaler(config);
    EXPECT_EQ(ReasonOf(status), Reason::kBadHyperparam);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  EXPECT_TRUE(CheckLossScaler({}).ok());
}

}  // namespace
}  // namespace ballast
