// Hyper-parameters of a round: each bad one gets an error with its group, name and value.
#include "common/job/job_spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/base/reason.h"

namespace ballast {
namespace {

JobSpec TwoGroups() {
  JobSpec spec;
  spec.group_count = 2;
  return spec;
}

TEST(HyperTest, AJobThatBeganWithoutMomentumGetsNone) {
  JobSpec spec = TwoGroups();
  spec.optimizer = OptimizerKind::kSgd;
  EXPECT_TRUE(ValidateHyper(spec, {{0.1, 0, 0, 0}, {0.1, 0, 0, 0}}).ok());
  const absl::Status late = ValidateHyper(spec, {{0.1, 0, 0, 0}, {0.1, 0.9, 0, 0}});
  EXPECT_EQ(ReasonOf(late), Reason::kBadHyperparam);
  EXPECT_EQ(late.message(),
            "group 1: momentum is 0.9; the job began without momentum in any group, so it must "
            "stay 0");
  spec.options = {1, 0, 0};
  EXPECT_TRUE(ValidateHyper(spec, {{0.1, 0, 0, 0}, {0.1, 0.9, 0, 0}}).ok());
  EXPECT_FALSE(ValidateHyper(spec, {{0.1, 0, 0, 0}, {0.1, 1.5, 0, 0}}).ok());
}

TEST(HyperTest, LambsUpperLimitIsNotBelowItsLowerOne) {
  JobSpec spec = TwoGroups();
  spec.optimizer = OptimizerKind::kLamb;
  spec.options = {1, 0};
  const auto with = [](double max_coeff, double min_coeff) {
    return Hyper{1e-3, 0.9, 0.999, 1e-8, 0.01, max_coeff, min_coeff};
  };
  EXPECT_TRUE(ValidateHyper(spec, {with(10, 0.01), with(2, 2)}).ok());
  const absl::Status crossed = ValidateHyper(spec, {with(10, 0.01), with(0.5, 2)});
  EXPECT_EQ(ReasonOf(crossed), Reason::kBadHyperparam);
  EXPECT_EQ(crossed.message(),
            "group 1: max_coeff is 0.5; it must be at least min_coeff, which is 2");
}

TEST(HyperTest, HyperParametersMustBeFiniteAndInRange) {
  const JobSpec spec = TwoGroups();
  const Hyper good = {1e-3, 0.9, 0.999, 1e-8, 0.01};
  EXPECT_TRUE(ValidateHyper(spec, {good, good}).ok());
  EXPECT_FALSE(ValidateHyper(spec, {good}).ok());
  EXPECT_FALSE(ValidateHyper(spec, {good, {1, 2}}).ok());
  const double inf = std::numeric_limits<double>::infinity();
  for (size_t k = 0; k < kAdamWKeyCount; ++k) {
    for (const double value : {std::nan(""), inf, -1.0}) {
      Hyper bad = good;
      bad[k] = value;
      const absl::Status status = ValidateHyper(spec, {good, bad});
      EXPECT_EQ(ReasonOf(status), Reason::kBadHyperparam);
      EXPECT_NE(std::string(status.message()).find(kAdamHyper[k].name), std::string::npos)
          << status;
      EXPECT_NE(std::string(status.message()).find("group 1"), std::string::npos) << status;
    }
  }
  EXPECT_FALSE(ValidateHyper(spec, {good, {1e-3, 1.0, 0.9, 0, 0}}).ok());
  const auto said = [&](const Hyper& bad) {
    return std::string(ValidateHyper(spec, {good, bad}).message());
  };
  EXPECT_EQ(said({1, 2}), "group 1 has 2 hyper-parameters; AdamW has 5");
  EXPECT_EQ(said({1e-3, 0.9, 1.0, 0, 0}), "group 1: beta2 is 1; it must be at least 0 and below 1");
  EXPECT_EQ(said({-2, 0.9, 0.9, 0, 0}), "group 1: lr is -2; it must be finite and at least 0");
}

}  // namespace
}  // namespace ballast
