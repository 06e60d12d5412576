// The kernels of every optimizer kind against scalar loops that share no code with them, on every
// instruction set that the CPU has: same bits for every dtype pair, length, alignment and bit
// pattern. AdamW as the server calls it has a test of its own, adamw_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "server/optim/dispatch.h"
#include "server/optim/scalars.h"
#include "tests/server/optim/reference_step.h"
#include "tests/server/optim/run_data.h"

namespace ballast::optim {
namespace {

// A job: its kind, its options, and hyper-parameters of one of its groups.
struct Case {
  const char* name;
  OptimizerKind kind;
  Options options;
  Hyper hyper;
};

const std::vector<Case>& Cases() {
  using enum OptimizerKind;
  static const std::vector<Case> cases = {
      {"adamw", kAdamW, {0, 0}, {1e-3, 0.9, 0.999, 1e-8, 0.01}},
      {"adamw_amsgrad", kAdamW, {1, 1}, {1e-3, 0.9, 0.95, 1e-8, 0.01}},
      {"adamw_amsgrad_far", kAdamW, {1, 0}, {1e-3, 0.4, 0.95, 1e-8, 0}},
      {"adam", kAdam, {0, 0}, {1e-3, 0.9, 0.999, 1e-8, 0}},
      {"adam_decay", kAdam, {0, 1}, {1e-3, 0.9, 0.999, 1e-8, 0.01}},
      {"adam_far", kAdam, {0, 0}, {1e-3, 0.5, 0.0, 0, 0.1}},
      {"adam_amsgrad", kAdam, {1, 0}, {1e-3, 0.9, 0.999, 1e-8, 0.01}},
      {"adam_amsgrad_far", kAdam, {1, 0}, {1e-3, 0.3, 0.999, 1e-8, 0}},
      {"adagrad", kAdagrad, {0, 0, 0}, {0.1, 0, 0, 1e-10}},
      {"adagrad_decay", kAdagrad, {0.1, 1, 0}, {0.1, 1e-3, 0.01, 1e-10}},
      {"adagrad_raw", kAdagrad, {0, 0, 1}, {0.1, 1e-3, 0.01, 1e-10}},
      {"lion", kLion, {0}, {1e-3, 0.9, 0.99, 0}},
      {"lion_decay", kLion, {0}, {1e-3, 0.95, 0.98, 0.1}},
      {"lion_without_memory", kLion, {0}, {0, 0, 0, 0.1}},
      {"lion_at_zero", kLion, {1}, {1e-3, 0.9, 0.99, 0}},
      {"apply_delta", kApplyDelta, {}, {1, 0}},
      {"apply_delta_decay", kApplyDelta, {}, {0.3, 0.1}},
      {"sgd", kSgd, {0, 0, 0}, {0.1, 0, 0, 0}},
      {"sgd_decay", kSgd, {0, 0, 1}, {0.1, 0, 0, 0.01}},
      {"sgd_momentum", kSgd, {1, 0, 0}, {0.1, 0.9, 0, 0}},
      {"sgd_dampening", kSgd, {1, 0, 0}, {0.1, 0.9, 0.3, 0.01}},
      {"sgd_nesterov", kSgd, {1, 1, 1}, {0.1, 0.9, 0, 0.01}},
      {"sgd_group_without_momentum", kSgd, {1, 0, 0}, {0.1, 0, 0, 0}},
  };
  return cases;
}

ReferenceStep Reference(const Case& c) { return ReferenceOf({c.kind, c.options}); }

size_t Arrays(const Case& c) { return CountStateArrays(*FindOptimizer(c.kind), c.options); }

class KindsIsaTest : public ::testing::TestWithParam<simd::Isa> {
 protected:
  void SetUp() override {
    if (!simd::CpuHas(GetParam())) {
      GTEST_SKIP() << "this CPU cannot run the " << simd::IsaName(GetParam()) << " kernels";
    }
  }

  // Steps of kernel and reference from `first_step` on; compares everything after each.
  void ExpectSameBits(const Case& c, RunData run, uint64_t first_step, int steps, float scale) {
    RunData expected = run;
    const RunFn step =
        KindStep(Kernels(GetParam()), c.kind, Arrays(c), run.shape_.grad, run.shape_.weight);
    const float factor = GradFactor(c.kind, c.options, scale);
    for (int i = 0; i < steps; ++i) {
      const Scalars k = MakeScalars(c.kind, c.options, c.hyper, first_step + i);
      const uint64_t overflow = step(run.Args(k.value, factor));
      ASSERT_EQ(overflow, expected.StepByReference(Reference(c), k.value, factor)) << c.name;
      ASSERT_EQ(run.Differs(expected), "")
          << c.name << ", grad " << DTypeName(run.shape_.grad) << ", weight "
          << DTypeName(run.shape_.weight) << ", count " << run.shape_.count << ", shift "
          << run.shape_.shift << ", step " << first_step + i;
    }
  }

  // Calls `body(case, grad dtype, weight dtype)` for all of them.
  template <class Body>
  void ForEach(const Body& body) {
    for (const Case& c : Cases()) {
      for (DType grad : kAllDTypes) {
        for (DType weight : kAllDTypes) body(c, grad, weight);
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(, KindsIsaTest,
                         ::testing::Values(simd::Isa::kScalar, simd::Isa::kAvx2,
                                           simd::Isa::kAvx512),
                         [](const auto& instance) { return simd::IsaName(instance.param); });

TEST_P(KindsIsaTest, TwentyStepsOnNormalValuesGiveTheReferencesBits) {
  ForEach([&](const Case& c, DType grad, DType weight) {
    ExpectSameBits(c, RunData({Arrays(c), grad, weight, 403, 3, false}, 1), 1, 20, 0.25f);
  });
}

TEST_P(KindsIsaTest, AnyBitPatternGivesTheReferencesBits) {
  ForEach([&](const Case& c, DType grad, DType weight) {
    ExpectSameBits(c, RunData({Arrays(c), grad, weight, 3000, 0, true}, 2), 1, 3, 1.0f);
    ExpectSameBits(c, RunData({Arrays(c), grad, weight, 3000, 5, true}, 3), 2, 2, 0x1p-20f);
  });
}

TEST_P(KindsIsaTest, EveryLengthAndAlignmentGivesTheReferencesBitsAndTouchesNothingElse) {
  ForEach([&](const Case& c, DType grad, DType weight) {
    const size_t stride = grad == weight ? 1 : 13;
    for (size_t count = 0; count <= 130; count += stride) {
      ExpectSameBits(c, RunData({Arrays(c), grad, weight, count, count % 33, false}, 4), 2, 1,
                     1.0f);
    }
  });
}

// Every other alignment of the same code is AdamW's test's.
TEST_P(KindsIsaTest, StreamedWeightsAtSomeAlignmentsHaveTheReferencesBits) {
  for (const Case& c : Cases()) {
    for (DType dtype : kAllDTypes) {
      for (const size_t shift : {1, 8, 31, 45}) {
        const RunShape shape = {Arrays(c), dtype, dtype, 4096 + shift % 7, shift, false};
        ExpectSameBits(c, RunData(shape, 5), 2, 1, 1.0f);
      }
    }
  }
}

TEST_P(KindsIsaTest, ZerosKeepTheirSigns) {
  for (const Case& c : Cases()) {
    for (const float grad : {0.0f, -0.0f}) {
      for (const float master : {0.0f, -0.0f}) {
        RunData zeros({Arrays(c), DType::kF32, DType::kF32, 40, 0, false}, 6);
        for (auto& array : zeros.state_) array.assign(array.size(), 0.0f);
        zeros.state_[0].assign(zeros.state_[0].size(), master);
        for (size_t i = 0; i < 40; ++i) std::memcpy(&zeros.grad_[i * 4], &grad, sizeof grad);
        ExpectSameBits(c, zeros, 1, 2, 1.0f);
      }
    }
  }
}

TEST_P(KindsIsaTest, AmsgradsMaximumKeepsNan) {
  const Case& amsgrad = Cases()[1];
  ASSERT_EQ(Arrays(amsgrad), 4u);
  RunData run({4, DType::kF32, DType::kF32, 40, 0, false}, 8);
  run.state_[3][5] = NAN;
  run.state_[2][6] = NAN;
  run.state_[3][7] = INFINITY;
  run.state_[3][8] = -0.0f;  // equal to v: v's zero is taken
  run.state_[2][8] = 0.0f;
  std::memset(&run.grad_[8 * sizeof(float)], 0, sizeof(float));
  ExpectSameBits(amsgrad, run, 2, 2, 1.0f);
  const Scalars k = MakeScalars(amsgrad.kind, amsgrad.options, amsgrad.hyper, 2);
  KindStep(Kernels(GetParam()), amsgrad.kind, 4, DType::kF32, DType::kF32)(run.Args(k.value, 1.0f));
  EXPECT_TRUE(std::isnan(run.state_[3][5]) && std::isnan(run.state_[3][6]));
  EXPECT_EQ(run.state_[3][7], INFINITY);
}

TEST_P(KindsIsaTest, WithoutAWeightBufferTheStateIsSteppedAllTheSame) {
  for (const Case& c : Cases()) {
    for (DType grad : kAllDTypes) {
      const Scalars k = MakeScalars(c.kind, c.options, c.hyper, 1);
      RunData run({Arrays(c), grad, DType::kBF16, 5000, 1, false}, 7);
      RunData expected = run;
      const RunFn step = KindStep(Kernels(GetParam()), c.kind, Arrays(c), grad, DType::kBF16);
      EXPECT_EQ(step(run.Args(k.value, 1.0f, false)), 0u);
      expected.StepByReference(Reference(c), k.value, 1.0f);
      expected.weight_ = run.weight_;
      EXPECT_EQ(run.Differs(expected), "") << c.name;
    }
  }
}

TEST_P(KindsIsaTest, ThreeHundredStepsOfLionEqualTheReferenceAndStayCloseToDoublePrecision) {
  constexpr size_t kCount = 1003;
  constexpr uint64_t kSteps = 300;
  RunData run({2, DType::kF32, DType::kF32, kCount, 0, false}, 9);
  run.state_[1].assign(run.state_[1].size(), 0.0f);
  RunData expected = run;
  std::vector<double> p(run.state_[0].begin(), run.state_[0].end()), m(p.size(), 0.0);
  double path = 0;
  std::mt19937 rng(10);
  for (uint64_t t = 1; t <= kSteps; ++t) {
    run.grad_ = expected.grad_ = RandomElements(DType::kF32, p.size(), false, 1e-2f, &rng);
    const double lr = 1e-3 * (1 - 0.5 * static_cast<double>(t) / kSteps),
                 beta1 = t % 2 ? 0.9 : 0.95;
    const Scalars k = MakeScalars(OptimizerKind::kLion, Options{0}, Hyper{lr, beta1, 0.99, 0.1}, t);
    KindStep(Kernels(GetParam()), OptimizerKind::kLion, 2, DType::kF32,
             DType::kF32)(run.Args(k.value, 1.0f));
    expected.StepByReference(reference::Lion, k.value, 1.0f);
    ASSERT_EQ(run.Differs(expected), "") << "step " << t;
    path += lr;
    for (size_t i = 0; i < kCount; ++i) {
      const double g = ElementAt(DType::kF32, run.grad_.data(), i);
      const double c = beta1 * m[i] + (1 - beta1) * g;
      p[i] = p[i] * (1 - lr * 0.1) - lr * ((c > 0) - (c < 0));
      m[i] = 0.99 * m[i] + (1 - 0.99) * g;
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(run.state_[0][i], p[i], 1e-6 * (std::fabs(p[i]) + path)) << i;
  }
}

TEST(MakeScalarsTest, SgdsAreRoundedOnceFromDoubles) {
  const Options options = {1, 1, 0};
  const Hyper hyper = {0.1, 0.9, 0.9, 0.01};
  const Scalars k = MakeScalars(OptimizerKind::kSgd, options, hyper, 1);
  ASSERT_EQ(k.count, 6u);
  EXPECT_EQ(k.value[0], 0.01f);
  EXPECT_EQ(k.value[1], 0.9f);
  EXPECT_EQ(k.value[2], static_cast<float>(1 - 0.9));
  EXPECT_NE(k.value[2], 1 - 0.9f);  // the fp32 difference is another value
  EXPECT_EQ(k.value[3], -0.1f);
  EXPECT_EQ(k.value[4], 1.0f);
  EXPECT_EQ(k.value[5], 1.0f);
  EXPECT_EQ(MakeScalars(OptimizerKind::kSgd, options, hyper, 2).value[4], 0.0f);
}

TEST(MakeScalarsTest, AdamsFirstIsItsDecayItself) {
  const Hyper hyper = {3e-4, 0.9, 0.95, 1e-8, 0.1};
  const Scalars adamw = MakeScalars(OptimizerKind::kAdamW, Options{0, 0}, hyper, 7);
  const Scalars adam = MakeScalars(OptimizerKind::kAdam, Options{0, 0}, hyper, 7);
  const AdamWScalars k = MakeAdamWScalars(3e-4, 0.9, 0.95, 1e-8, 0.1, 7);
  ASSERT_EQ(adamw.count, 7u);
  ASSERT_EQ(adam.count, 7u);
  EXPECT_EQ(std::memcmp(adamw.value, &k, sizeof k), 0);
  EXPECT_EQ(adam.value[0], 0.1f);
  EXPECT_EQ(std::memcmp(adamw.value + 1, adam.value + 1, 6 * sizeof(float)), 0);
}

TEST(MakeScalarsTest, AdagradsRateFallsWithTheSteps) {
  const Hyper hyper = {0.1, 0.01, 0.02, 1e-10};
  const Scalars k = MakeScalars(OptimizerKind::kAdagrad, Options{0, 0, 1}, hyper, 8);
  ASSERT_EQ(k.count, 4u);
  EXPECT_EQ(k.value[0], 0.02f);
  EXPECT_EQ(k.value[1], 1e-10f);
  EXPECT_EQ(k.value[2], static_cast<float>(-(0.1 / (1 + 7 * 0.01))));
  EXPECT_EQ(k.value[3], 1.0f);
}

TEST(MakeScalarsTest, LionsAndDeltasAreRoundedOnceFromDoubles) {
  const Scalars lion =
      MakeScalars(OptimizerKind::kLion, Options{1}, Hyper{3e-4, 0.9, 0.99, 0.1}, 5);
  const float expected[] = {static_cast<float>(1 - 3e-4 * 0.1),
                            static_cast<float>(1 - 0.9),
                            0.9f,
                            static_cast<float>(1 - 0.99),
                            0.99f,
                            -3e-4f,
                            1.0f};
  ASSERT_EQ(lion.count, 7u);
  EXPECT_EQ(std::memcmp(lion.value, expected, sizeof expected), 0);
  const Scalars delta = MakeScalars(OptimizerKind::kApplyDelta, {}, Hyper{0.3, 0.1}, 5);
  ASSERT_EQ(delta.count, 2u);
  EXPECT_EQ(delta.value[0], static_cast<float>(1 - 0.3 * 0.1));
  EXPECT_EQ(delta.value[1], -0.3f);
}

TEST(GradFactorTest, MaximizingTurnsTheSign) {
  EXPECT_EQ(GradFactor(OptimizerKind::kSgd, Options{0, 0, 1}, 0.5f), -0.5f);
  EXPECT_EQ(GradFactor(OptimizerKind::kSgd, Options{1, 1, 0}, 0.5f), 0.5f);
  EXPECT_EQ(GradFactor(OptimizerKind::kAdamW, Options{1, 0}, 0.5f), 0.5f);
  EXPECT_EQ(GradFactor(OptimizerKind::kAdam, Options{0, 1}, 0.5f), -0.5f);
  EXPECT_EQ(GradFactor(OptimizerKind::kAdagrad, Options{1, 1, 0}, 0.5f), -0.5f);
  EXPECT_EQ(GradFactor(OptimizerKind::kLion, Options{1}, 0.5f), 0.5f);
}

}  // namespace
}  // namespace ballast::optim
