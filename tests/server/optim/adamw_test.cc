// The AdamW kernels against a scalar loop that shares no code with them, on every instruction set
// the CPU has: same bits for every dtype pair, length, alignment and bit pattern.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "server/optim/dispatch.h"
#include "server/optim/scalars.h"
#include "tests/server/simd/numeric_reference.h"

namespace ballast::optim {
namespace {

// docs/numerics.md, line by line.
void ReferenceStep(const AdamWScalars& k, float g, float* p, float* m, float* v) {
  *p = *p * k.decay;
  const float d = g - *m;
  *m = std::fabs(k.w1) < 0.5f ? std::fma(k.w1, d, *m) : std::fma(k.w1 - 1.0f, d, g);
  *v = *v * k.b2;
  *v = std::fma(k.w2 * g, g, *v);
  const float denominator = std::sqrt(*v) / k.den + k.eps;
  *p = *p + (k.neg_step_size * *m) / denominator;
}

// State, gradient and weights of one run, each array starting `shift` elements into its memory.
struct RunData {
  RunData(DType grad_dtype, DType weight_dtype, size_t count, size_t shift, bool any_bits,
          uint32_t seed)
      : grad_dtype_(grad_dtype), weight_dtype_(weight_dtype), count_(count), shift_(shift) {
    std::mt19937 rng(seed);
    const size_t padded = count + shift + 1;
    for (auto* array : {&p_, &m_, &v_}) {
      const std::vector<uint8_t> bytes =
          RandomElements(DType::kF32, padded, any_bits, array == &p_ ? 0.1f : 1e-3f, &rng);
      array->resize(padded);
      std::memcpy(array->data(), bytes.data(), bytes.size());
    }
    if (!any_bits) {
      for (float& x : v_) x = x * x;
    }
    grad_ = RandomElements(grad_dtype, padded, any_bits, 1e-2f, &rng);
    weight_.assign(padded * DTypeBytes(weight_dtype), 0xAB);
  }

  RunArgs Args(const AdamWScalars& k, float scale, bool with_weight = true) {
    RunArgs args{{p_.data() + shift_, m_.data() + shift_, v_.data() + shift_},
                 grad_.data() + shift_ * DTypeBytes(grad_dtype_),
                 with_weight ? weight_.data() + shift_ * DTypeBytes(weight_dtype_) : nullptr,
                 count_,
                 scale,
                 {}};
    std::memcpy(args.k, &k, sizeof(k));
    return args;
  }

  uint64_t StepByReference(const AdamWScalars& k, float scale) {
    uint64_t overflow = 0;
    for (size_t i = shift_; i < shift_ + count_; ++i) {
      const float g = ElementAt(grad_dtype_, grad_.data(), i) * scale;
      ReferenceStep(k, g, &p_[i], &m_[i], &v_[i]);
      overflow += ReferenceWeight(weight_dtype_, p_[i], weight_.data(), i);
    }
    return overflow;
  }

  // The first difference, or "".
  std::string Differs(const RunData& other) const {
    for (size_t i = 0; i < p_.size(); ++i) {
      const std::string at = " differs at element " + std::to_string(i);
      if (!SameFloat(p_[i], other.p_[i])) return "p" + at;
      if (!SameFloat(m_[i], other.m_[i])) return "m" + at;
      if (!SameFloat(v_[i], other.v_[i])) return "v" + at;
      if (weight_dtype_ == DType::kF32 && std::isnan(p_[i])) continue;
      const size_t bytes = DTypeBytes(weight_dtype_);
      if (std::memcmp(&weight_[i * bytes], &other.weight_[i * bytes], bytes) != 0) {
        return "weight" + at;
      }
    }
    return "";
  }

  DType grad_dtype_, weight_dtype_;
  size_t count_, shift_;
  std::vector<float> p_, m_, v_;
  std::vector<uint8_t> grad_, weight_;
};

RunFn AdamWStep(const KernelTable& kernels, DType grad, DType weight) {
  return KindStep(kernels, OptimizerKind::kAdamW, 3, grad, weight);
}

class AdamWIsaTest : public ::testing::TestWithParam<simd::Isa> {
 protected:
  void SetUp() override {
    if (!simd::CpuHas(GetParam())) {
      GTEST_SKIP() << "this CPU cannot run the " << simd::IsaName(GetParam()) << " kernels";
    }
  }
  const KernelTable& kernels() const { return Kernels(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(, AdamWIsaTest,
                         ::testing::Values(simd::Isa::kScalar, simd::Isa::kAvx2,
                                           simd::Isa::kAvx512),
                         [](const auto& instance) { return simd::IsaName(instance.param); });

// Runs `steps` steps by kernel and by reference and compares everything after each.
void ExpectSameBits(const KernelTable& kernels, RunData run, const AdamWScalars* fixed, int steps,
                    float scale) {
  RunData expected = run;
  const RunFn step = AdamWStep(kernels, run.grad_dtype_, run.weight_dtype_);
  for (int t = 1; t <= steps; ++t) {
    const AdamWScalars k = fixed ? *fixed : MakeAdamWScalars(1e-3 / t, 0.9, 0.999, 1e-8, 0.01, t);
    const uint64_t overflow = step(run.Args(k, scale));
    ASSERT_EQ(overflow, expected.StepByReference(k, scale));
    ASSERT_EQ(run.Differs(expected), "")
        << "grad " << DTypeName(run.grad_dtype_) << ", weight " << DTypeName(run.weight_dtype_)
        << ", count " << run.count_ << ", shift " << run.shift_ << ", step " << t;
  }
}

TEST_P(AdamWIsaTest, TwentyStepsOnNormalValuesGiveTheReferencesBits) {
  for (DType grad : kAllDTypes) {
    for (DType weight : kAllDTypes) {
      ExpectSameBits(kernels(), RunData(grad, weight, 5003, 3, false, 1), nullptr, 20, 0.25f);
    }
  }
}

TEST_P(AdamWIsaTest, AnyBitPatternGivesTheReferencesBits) {
  for (DType grad : kAllDTypes) {
    for (DType weight : kAllDTypes) {
      ExpectSameBits(kernels(), RunData(grad, weight, 40000, 0, true, 2), nullptr, 3, 1.0f);
      ExpectSameBits(kernels(), RunData(grad, weight, 40000, 5, true, 3), nullptr, 3, 0x1p-20f);
    }
  }
}

TEST_P(AdamWIsaTest, EveryLengthAndAlignmentGivesTheReferencesBitsAndTouchesNothingElse) {
  for (DType grad : kAllDTypes) {
    for (DType weight : kAllDTypes) {
      for (size_t count = 0; count <= 130; ++count) {
        ExpectSameBits(kernels(), RunData(grad, weight, count, count % 33, false, 4), nullptr, 2,
                       1.0f);
      }
      for (size_t shift = 0; shift < 64; ++shift) {  // long enough for streaming stores
        ExpectSameBits(kernels(), RunData(grad, weight, 4096 + shift % 7, shift, false, 5), nullptr,
                       1, 1.0f);
      }
    }
  }
}

TEST_P(AdamWIsaTest, HyperParametersAtTheirLimitsGiveTheReferencesBits) {
  const AdamWScalars cases[] = {
      MakeAdamWScalars(3e-4, 0.9, 0.95, 1e-8, 0.1, 1),
      MakeAdamWScalars(1e-3, 0.4, 0.999, 1e-8, 0.0, 2),   // lerp from the far end
      MakeAdamWScalars(1e-3, 0.5, 0.999, 1e-8, 0.0, 2),   // its border
      MakeAdamWScalars(1e-3, 0.0, 0.0, 0.0, 0.0, 1),      // zeros divide by zero
      MakeAdamWScalars(0.0, 0.9, 0.999, 1e-8, 0.01, 7),   // no learning rate
      MakeAdamWScalars(10.0, 0.9, 0.999, 1e-30, 0.2, 9),  // huge steps
  };
  for (const AdamWScalars& k : cases) {
    for (DType dtype : kAllDTypes) {
      ExpectSameBits(kernels(), RunData(dtype, dtype, 1000, 1, false, 6), &k, 5, 1.0f);
      RunData zeros(dtype, dtype, 200, 0, false, 7);
      for (auto* array : {&zeros.p_, &zeros.m_, &zeros.v_}) array->assign(array->size(), 0.0f);
      zeros.grad_.assign(zeros.grad_.size(), 0);
      ExpectSameBits(kernels(), zeros, &k, 2, 1.0f);
    }
  }
}

TEST_P(AdamWIsaTest, WithoutAWeightBufferTheStateIsSteppedAllTheSame) {
  const AdamWScalars k = MakeAdamWScalars(1e-3, 0.9, 0.999, 1e-8, 0.01, 1);
  for (DType grad : kAllDTypes) {
    RunData run(grad, DType::kBF16, 5000, 1, false, 8);
    RunData expected = run;
    EXPECT_EQ(AdamWStep(kernels(), grad, DType::kBF16)(run.Args(k, 1.0f, false)), 0u);
    expected.StepByReference(k, 1.0f);
    expected.weight_ = run.weight_;
    EXPECT_EQ(run.Differs(expected), "");
  }
}

TEST_P(AdamWIsaTest, OverflowToInfIsCountedAndOldInfsAreNot) {
  AdamWScalars k = MakeAdamWScalars(0.0, 0.9, 0.999, 1e-8, 0.0, 1);
  RunData run(DType::kF32, DType::kF16, 300, 0, false, 9);
  run.p_.assign(run.p_.size(), 1.0f);
  run.p_[0] = 65519.996f;  // rounds to 65504, the largest
  run.p_[1] = 65520.0f;
  run.p_[150] = -70000.0f;
  run.p_[299] = 1e30f;
  run.p_[20] = INFINITY;
  run.p_[21] = NAN;
  EXPECT_EQ(AdamWStep(kernels(), DType::kF32, DType::kF16)(run.Args(k, 1.0f)), 3u);
  run.weight_dtype_ = DType::kBF16;
  run.p_[150] = -3.3961775e38f;  // half a step above the largest bf16
  run.p_[299] = 3.396177e38f;    // just below that
  EXPECT_EQ(AdamWStep(kernels(), DType::kF32, DType::kBF16)(run.Args(k, 1.0f)), 1u);
}

// Every 16-bit value, the midpoint to its neighbour, and the fp32 values around both.
std::vector<float> RoundingCases(DType dtype) {
  std::vector<float> cases;
  for (uint16_t bits = 0; bits < HalfInf(dtype); ++bits) {
    const double value = HalfValue(dtype, bits);
    const double step = bits == 0 ? HalfValue(dtype, 1) : value - HalfValue(dtype, bits - 1);
    const float half_way = static_cast<float>(value + step / 2);
    const float exact = static_cast<float>(value);
    for (float x : {exact, half_way}) {
      for (float y : {x, std::nextafter(x, INFINITY), std::nextafter(x, -INFINITY)}) {
        cases.push_back(y);
        cases.push_back(-y);
      }
    }
  }
  for (uint32_t nan : {0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F80FFFFu}) {
    cases.push_back(std::bit_cast<float>(nan));
  }
  cases.insert(cases.end(), {INFINITY, -INFINITY, 65519.996f, 65520.0f, 3.4028235e38f});
  return cases;
}

TEST_P(AdamWIsaTest, EverySixteenBitValueAndMidpointRoundsToNearestEven) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    const std::vector<float> cases = RoundingCases(dtype);
    std::vector<uint16_t> rounded(cases.size());
    uint64_t overflow = Downcast(kernels(), dtype)(cases.data(), rounded.data(), cases.size());
    for (size_t i = 0; i < cases.size(); ++i) {
      const uint16_t expected = RoundToHalf(dtype, cases[i]);
      ASSERT_EQ(rounded[i], expected) << DTypeName(dtype) << " of " << cases[i];
      overflow -= std::isfinite(cases[i]) && (expected & 0x7FFF) == HalfInf(dtype);
    }
    EXPECT_EQ(overflow, 0u);
  }
}

TEST_P(AdamWIsaTest, EverySixteenBitValueWidensExactlyAtAnyLength) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (size_t count : {size_t{0}, size_t{1}, size_t{17}, size_t{33}, all.size() - 3}) {
      std::vector<float> wide(all.size() + 1, 7.0f);
      Upcast(kernels(), dtype)(all.data() + 1, wide.data(), count);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(SameFloat(wide[i], ElementAt(dtype, all.data(), i + 1))) << i;
      }
      EXPECT_EQ(wide[count], 7.0f);
    }
  }
}

TEST_P(AdamWIsaTest, AHundredStepsStayCloseToDoublePrecision) {
  RunData run(DType::kF32, DType::kF32, 1024, 0, false, 10);
  run.m_.assign(run.m_.size(), 0.0f);
  run.v_.assign(run.v_.size(), 0.0f);
  std::vector<double> p(run.p_.begin(), run.p_.end()), m(p.size(), 0.0), v(p.size(), 0.0);
  std::mt19937 rng(11);
  for (int t = 1; t <= 100; ++t) {
    run.grad_ = RandomElements(DType::kF32, p.size(), false, 1e-2f, &rng);
    const AdamWScalars k = MakeAdamWScalars(1e-3, 0.9, 0.999, 1e-8, 0.01, t);
    AdamWStep(kernels(), DType::kF32, DType::kF32)(run.Args(k, 1.0f));
    for (size_t i = 0; i < 1024; ++i) {
      const double g = ElementAt(DType::kF32, run.grad_.data(), i);
      p[i] *= 1 - 1e-3 * 0.01;
      m[i] += (1 - 0.9) * (g - m[i]);
      v[i] = v[i] * 0.999 + (1 - 0.999) * g * g;
      const double correction = std::sqrt(1 - std::pow(0.999, t));
      p[i] -= 1e-3 / (1 - std::pow(0.9, t)) * m[i] / (std::sqrt(v[i]) / correction + 1e-8);
    }
  }
  // Each step multiplies by a rounded decay and rounds p: 2^-25 of |p| each, the former always in
  // the same direction. The update itself (1e-3 a step) adds far less.
  for (size_t i = 0; i < 1024; ++i) {
    const double tolerance = 1e-7 + 100 * 2 * 0x1p-25 * std::fabs(p[i]);
    ASSERT_NEAR(run.p_[i], p[i], tolerance) << i;
  }
}

TEST(MakeAdamWScalarsTest, EveryScalarIsFormedInDoubleAndRoundedOnce) {
  const AdamWScalars k = MakeAdamWScalars(3e-4, 0.9, 0.999, 1e-8, 0.1, 7);
  EXPECT_EQ(k.decay, static_cast<float>(1 - 3e-4 * 0.1));
  EXPECT_EQ(k.w1, static_cast<float>(1 - 0.9));
  EXPECT_NE(k.w1, 1 - 0.9f);  // the fp32 difference is another value
  EXPECT_EQ(k.b2, 0.999f);
  EXPECT_EQ(k.w2, static_cast<float>(1 - 0.999));
  EXPECT_EQ(k.den, static_cast<float>(std::pow(1 - std::pow(0.999, 7.0), 0.5)));
  EXPECT_EQ(k.eps, 1e-8f);
  EXPECT_EQ(k.neg_step_size, static_cast<float>(-(3e-4 / (1 - std::pow(0.9, 7.0)))));
}

TEST(MakeAdamWScalarsTest, WithoutDecayTheFactorIsExactlyOne) {
  EXPECT_EQ(MakeAdamWScalars(0.1, 0.9, 0.999, 1e-8, 0.0, 1).decay, 1.0f);
}

}  // namespace
}  // namespace ballast::optim
