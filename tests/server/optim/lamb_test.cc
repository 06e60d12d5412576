// LAMB: both passes and the step between them, against plain loops that share no code with them, on
// every instruction set of the CPU.
#include "server/optim/lamb.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "server/optim/dispatch.h"
#include "server/optim/scalars.h"
#include "tests/server/optim/run_data.h"

namespace ballast::optim {
namespace {

constexpr double kMinCoeff = 0.01, kMaxCoeff = 10.0;
constexpr size_t kRatio = 10;  // after the scalars
const Hyper kHyper = {1e-2, 0.9, 0.999, 1e-6, 0.01, kMaxCoeff, kMinCoeff};

// docs/numerics.md, line by line, for one element: m and v in place, and u.
float Update(const float* k, float g, float* s) {
  const float w1 = k[0], b2 = k[1], w2 = k[2];
  const float d = g - s[1];
  s[1] = std::fabs(w1) < 0.5f ? std::fma(w1, d, s[1]) : std::fma(w1 - 1.0f, d, g);
  s[2] = s[2] * b2;
  s[2] = std::fma(w2 * g, g, s[2]);
  const float grow_m = k[3], grow_root = k[4], eps = k[5], weight_decay = k[6];
  const float denominator = std::fma(std::sqrt(s[2]), grow_root, eps);
  return std::fma(weight_decay, s[0], (s[1] * grow_m) / denominator);
}

void Apply(const float* k, float g, float* s) {
  const float u = Update(k, g, s);
  s[0] = std::fma(k[7] * k[kRatio], u, s[0]);
}

// The square sums of a tile that is 0 outside [first, first + values.size()).
float SquaresOf(const std::vector<float>& values, size_t first) {
  float lane[64] = {};
  for (size_t i = 0; i < values.size(); ++i) {
    float& sum = lane[(first + i) % 64];
    sum = std::fma(values[i], values[i], sum);
  }
  for (size_t half = 32; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

// The sums of `count` elements of the run from `begin` on. Only the reference knows the offset in
// the tile: it must not matter.
TileSquares ReferenceSquares(const RunData& run, const float* k, float scale, size_t begin,
                             size_t count, size_t first_in_tile) {
  std::vector<float> p, u;
  for (size_t i = begin; i < begin + count; ++i) {
    float state[] = {run.state_[0][i], run.state_[1][i], run.state_[2][i]};
    p.push_back(state[0]);
    u.push_back(Update(k, ElementAt(run.shape_.grad, run.grad_.data(), i) * scale, state));
  }
  return {SquaresOf(p, first_in_tile), SquaresOf(u, first_in_tile)};
}

class LambIsaTest : public ::testing::TestWithParam<simd::Isa> {
 protected:
  void SetUp() override {
    if (!simd::CpuHas(GetParam())) {
      GTEST_SKIP() << "this CPU cannot run the " << simd::IsaName(GetParam()) << " kernels";
    }
  }

  void ExpectSameSquares(const RunShape& shape, const Hyper& hyper, size_t first_in_tile) {
    RunData run(shape, 1);
    const RunData before = run;
    const Scalars k = MakeScalars(OptimizerKind::kLamb, Options{1, 0}, hyper, 3);
    const auto squares = LambSquares(Kernels(GetParam()), shape.grad);
    const TileSquares sums = squares(run.Args(k.value, 0.5f));
    const TileSquares wanted =
        ReferenceSquares(before, k.value, 0.5f, shape.shift, shape.count, first_in_tile);
    ASSERT_EQ(run.Differs(before), "") << "the first pass writes nothing";
    ASSERT_TRUE(SameFloat(sums.p, wanted.p)) << shape.count << " from " << first_in_tile;
    ASSERT_TRUE(SameFloat(sums.u, wanted.u)) << shape.count << " from " << first_in_tile;
  }

  void ExpectSameApply(const RunShape& shape, const Hyper& hyper = kHyper) {
    RunData run(shape, 2);
    RunData expected = run;
    Scalars k = MakeScalars(OptimizerKind::kLamb, Options{1, 0}, hyper, 3);
    ASSERT_EQ(k.count, kRatio);
    k.value[kRatio] = 0.37f;
    const auto apply =
        KindStep(Kernels(GetParam()), OptimizerKind::kLamb, 3, shape.grad, shape.weight);
    const uint64_t overflow = apply(run.Args(k.value, 0.5f));
    ASSERT_EQ(overflow, expected.StepByReference(Apply, k.value, 0.5f));
    ASSERT_EQ(run.Differs(expected), "") << shape.count << " shift " << shape.shift;
  }
};

INSTANTIATE_TEST_SUITE_P(, LambIsaTest,
                         ::testing::Values(simd::Isa::kScalar, simd::Isa::kAvx2,
                                           simd::Isa::kAvx512),
                         [](const auto& instance) { return simd::IsaName(instance.param); });

TEST_P(LambIsaTest, TheFirstPassHasTheReferencesBitsForEveryLengthAndOffsetInTheTile) {
  for (DType grad : kAllDTypes) {
    for (size_t count = 0; count <= 130; ++count) {
      ExpectSameSquares({3, grad, DType::kF32, count, count % 33, false}, kHyper, count * 7 % 131);
    }
    for (size_t first = 0; first < 64; ++first) {
      ExpectSameSquares({3, grad, DType::kF32, 500, 1, false}, kHyper, first);
    }
    ExpectSameSquares({3, grad, DType::kF32, 20000, 5, true}, kHyper, 0);
    ExpectSameSquares({3, grad, DType::kF32, 20000, 0, true}, kHyper, 77);
  }
}

TEST_P(LambIsaTest, TheFirstPassKnowsBothFormsOfTheLerpAndAnEpsOfZero) {
  for (const double beta1 : {0.0, 0.4, 0.5, 0.9}) {
    Hyper hyper = kHyper;
    hyper[kBeta1] = beta1;
    hyper[kEps] = 0.0;
    ExpectSameSquares({3, DType::kBF16, DType::kF32, 300, 1, false}, hyper, 3);
  }
}

TEST_P(LambIsaTest, TheSecondPassKnowsBothFormsOfTheLerp) {
  for (const double beta1 : {0.0, 0.4, 0.5, 0.9}) {
    Hyper hyper = kHyper;
    hyper[kBeta1] = beta1;
    ExpectSameApply({3, DType::kF32, DType::kF32, 300, 1, false}, hyper);
  }
}

TEST_P(LambIsaTest, TheSecondPassHasTheReferencesBitsForEveryLengthAndDType) {
  for (DType weight : kAllDTypes) {
    for (size_t count = 0; count <= 130; ++count) {
      ExpectSameApply({3, DType::kBF16, weight, count, count % 33, false});
    }
    ExpectSameApply({3, DType::kF32, weight, 5003, 3, false});
    ExpectSameApply({3, DType::kF32, weight, 20000, 0, true});
  }
}

// The pieces of a tensor, each a run of one tile. Extents have two tiles of 256; the tensor begins
// at element 37.
struct Piece {
  size_t first_in_tile, count, extent;
};
constexpr Piece kPieces[] = {{37, 219, 0}, {0, 256, 0}, {0, 256, 1}, {0, 256, 1}, {0, 16, 2}};
constexpr size_t kCount = 1003;

// The kernels' step of that tensor; `k` is without the ratio, which comes back.
float StepByKernels(const KernelTable& kernels, Scalars k, RunData* run) {
  std::vector<TensorSquares> sums(3);
  size_t begin = 0;
  for (const Piece& piece : kPieces) {
    RunArgs args = run->Args(k.value, 0.5f);
    for (float*& array : args.state) array += array ? begin : 0;
    args.grad = static_cast<const float*>(args.grad) + begin;
    args.count = piece.count;
    AddTile(LambSquares(kernels, DType::kF32)(args), &sums[piece.extent]);
    begin += piece.count;
  }
  k.value[kRatio] = TrustRatio(SumExtents(sums), kMinCoeff, kMaxCoeff);
  KindStep(kernels, OptimizerKind::kLamb, 3, DType::kF32, DType::kF32)(run->Args(k.value, 0.5f));
  return k.value[kRatio];
}

// The same by plain loops.
float StepByReference(Scalars k, RunData* run) {
  double sums[3][2] = {};
  size_t begin = 0;
  for (const Piece& piece : kPieces) {
    const TileSquares tile =
        ReferenceSquares(*run, k.value, 0.5f, begin, piece.count, piece.first_in_tile);
    sums[piece.extent][0] += double{tile.p};
    sums[piece.extent][1] += double{tile.u};
    begin += piece.count;
  }
  const double norm_p = std::sqrt(sums[0][0] + sums[1][0] + sums[2][0]);
  const double norm_u = std::sqrt(sums[0][1] + sums[1][1] + sums[2][1]);
  const double low = static_cast<float>(kMinCoeff), high = static_cast<float>(kMaxCoeff);
  k.value[kRatio] = static_cast<float>(std::fmax(std::fmin(norm_p / norm_u, high), low));
  run->StepByReference(Apply, k.value, 0.5f);
  return k.value[kRatio];
}

// LAMB in double.
struct DoubleLamb {
  std::vector<double> p, m = std::vector<double>(kCount), v = m, u = m;

  void Step(const std::vector<uint8_t>& grad, const Hyper& hyper, double t) {
    double squares_p = 0, squares_u = 0;
    const double beta1 = hyper[kBeta1], beta2 = hyper[kBeta2];
    const double bc1 = 1 - std::pow(beta1, t), bc2 = 1 - std::pow(beta2, t);
    for (size_t i = 0; i < kCount; ++i) {
      const double g = 0.5 * ElementAt(DType::kF32, grad.data(), i);
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      u[i] = m[i] / bc1 / (std::sqrt(v[i] / bc2) + hyper[kEps]) + hyper[kWeightDecay] * p[i];
      squares_p += p[i] * p[i];
      squares_u += u[i] * u[i];
    }
    const double step = hyper[kLr] * std::sqrt(squares_p / squares_u);
    for (size_t i = 0; i < kCount; ++i) p[i] -= step * u[i];
  }
};

TEST_P(LambIsaTest, ThreeHundredStepsEqualTheReferenceAndStayCloseToDoublePrecision) {
  RunData run({3, DType::kF32, DType::kF32, kCount, 0, false}, 4);
  for (size_t a : {1, 2}) run.state_[a].assign(run.state_[a].size(), 0.0f);
  RunData expected = run;
  DoubleLamb exact{.p = {run.state_[0].begin(), run.state_[0].begin() + kCount}};
  double path = 0;
  std::mt19937 rng(5);
  for (uint64_t t = 1; t <= 300; ++t) {
    run.grad_ = expected.grad_ = RandomElements(DType::kF32, kCount + 1, false, 1e-2f, &rng);
    Hyper hyper = kHyper;
    hyper[kLr] /= std::sqrt(static_cast<double>(t));
    const Scalars k = MakeScalars(OptimizerKind::kLamb, Options{1, 0}, hyper, t);
    const float ratio = StepByKernels(Kernels(GetParam()), k, &run);
    ASSERT_EQ(ratio, StepByReference(k, &expected)) << "step " << t;
    ASSERT_EQ(run.Differs(expected), "") << "step " << t;
    exact.Step(run.grad_, hyper, static_cast<double>(t));
    path += hyper[kLr];
  }
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(run.state_[0][i], exact.p[i], 1e-6 * (std::fabs(exact.p[i]) + path)) << i;
  }
}

TEST(LambTest, WithoutBiasCorrectionTheFactorsAreOne) {
  const Scalars with = MakeScalars(OptimizerKind::kLamb, Options{1, 0}, kHyper, 7);
  const Scalars without = MakeScalars(OptimizerKind::kLamb, Options{0, 0}, kHyper, 7);
  EXPECT_EQ(with.value[0], static_cast<float>(1 - 0.9));
  EXPECT_EQ(with.value[1], 0.999f);
  EXPECT_EQ(with.value[2], static_cast<float>(1 - 0.999));
  EXPECT_EQ(with.value[3], static_cast<float>(1 / (1 - std::pow(0.9, 7.0))));
  EXPECT_EQ(with.value[4], static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, 7.0))));
  EXPECT_EQ(with.value[5], 1e-6f);
  EXPECT_EQ(with.value[6], 0.01f);
  EXPECT_EQ(with.value[7], -1e-2f);
  EXPECT_EQ(with.value[8], 10.0f);
  EXPECT_EQ(with.value[9], 0.01f);
  EXPECT_EQ(without.value[3], 1.0f);
  EXPECT_EQ(without.value[4], 1.0f);
}

TEST(LambTest, TheUncorrectedRatioPutsTheCorrectionsIntoTheStep) {
  const Scalars k = MakeScalars(OptimizerKind::kLamb, Options{1, 1}, kHyper, 7);
  const double bc1 = 1 - std::pow(0.9, 7.0), bc2 = 1 - std::pow(0.999, 7.0);
  EXPECT_EQ(k.value[3], 1.0f);
  EXPECT_EQ(k.value[4], 1.0f);
  EXPECT_EQ(k.value[7], static_cast<float>(-(1e-2 * std::sqrt(bc2) / bc1)));
  const Scalars without = MakeScalars(OptimizerKind::kLamb, Options{0, 1}, kHyper, 7);
  EXPECT_EQ(without.value[7], -1e-2f);
}

TEST(LambTest, TheRatioIsClampedAndOneWhereItMeansNothing) {
  EXPECT_EQ(TrustRatio({4.0, 16.0}, 0.01f, 10.0f), 0.5f);
  EXPECT_EQ(TrustRatio({1e-9, 16.0}, 0.01f, 10.0f), 0.01f);
  EXPECT_EQ(TrustRatio({1e9, 16.0}, 0.01f, 10.0f), 10.0f);
  EXPECT_EQ(TrustRatio({0.0, 16.0}, 0.01f, 10.0f), 1.0f);
  EXPECT_EQ(TrustRatio({4.0, 0.0}, 0.01f, 10.0f), 1.0f);
  EXPECT_EQ(TrustRatio({INFINITY, 16.0}, 0.01f, 10.0f), 1.0f);
  EXPECT_EQ(TrustRatio({4.0, INFINITY}, 0.01f, 10.0f), 1.0f);
  EXPECT_EQ(TrustRatio({NAN, 16.0}, 0.01f, 10.0f), 1.0f);
}

TEST(LambTest, SumsAreAddedInDoubleByTileThenByExtent) {
  TensorSquares one, other;
  AddTile({1.0f, 0x1p-40f}, &one);
  AddTile({0x1p-40f, 2.0f}, &one);
  AddTile({0x1p-40f, 3.0f}, &other);
  EXPECT_EQ(one.p, 1.0 + 0x1p-40);
  EXPECT_EQ(one.u, 2.0 + 0x1p-40);
  const std::vector<TensorSquares> extents = {one, other};
  EXPECT_EQ(SumExtents(extents).p, 1.0 + 0x1p-39);
  EXPECT_EQ(SumExtents(extents).u, 5.0 + 0x1p-40);
}

}  // namespace
}  // namespace ballast::optim
