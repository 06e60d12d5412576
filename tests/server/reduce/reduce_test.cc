// The slot-order sum and the canonical norm against plain loops, on every instruction set the CPU
// has, for any mixture of absent slots, runs and lengths.
#include "server/reduce/reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/server/simd/numeric_reference.h"

namespace ballast::reduce {
namespace {

// The definition in reduce_kernel.h, read off the page.
float ReferenceTileSumsq(const float* x, size_t count) {
  std::array<float, 64> lanes{};
  for (size_t i = 0; i < count; ++i) lanes[i % 64] = std::fma(x[i], x[i], lanes[i % 64]);
  for (size_t half = 32; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

TileNormSum ReferenceNorm(const std::vector<float>& x, size_t tile_elements) {
  TileNormSum norm;
  for (size_t begin = 0; begin < x.size(); begin += tile_elements) {
    const size_t count = std::min(tile_elements, x.size() - begin);
    norm.sumsq += static_cast<double>(ReferenceTileSumsq(x.data() + begin, count));
  }
  for (float value : x) norm.nonfinite += !std::isfinite(value);
  return norm;
}

bool SameNorm(const TileNormSum& a, const TileNormSum& b) {
  const bool same_sum = a.sumsq == b.sumsq || (std::isnan(a.sumsq) && std::isnan(b.sumsq));
  return same_sum && a.nonfinite == b.nonfinite;
}

// One extent with its slots' gradients and the memory they live in.
struct ExtentData {
  ExtentData(DType gradient_dtype, size_t slot_count, size_t count, bool any_bits, uint32_t seed,
             size_t shift = 0)
      : dtype(gradient_dtype), elements(count), sum(count + 1, -7.0f) {
    std::mt19937 rng(seed);
    for (size_t slot = 0; slot < slot_count; ++slot) {
      memory.push_back(RandomElements(dtype, count + shift, any_bits, 1.0f, &rng));
      grads.push_back(memory.back().data() + shift * DTypeBytes(dtype));
    }
  }

  // Cuts the extent at `cuts`; the presence of each piece in each slot is drawn from `rng`.
  void CutIntoRuns(const std::vector<size_t>& cuts, std::mt19937* rng) {
    std::vector<size_t> borders = {0};
    borders.insert(borders.end(), cuts.begin(), cuts.end());
    borders.push_back(elements);
    presence.assign(borders.size() - 1, std::vector<uint8_t>(grads.size(), 1));
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      for (uint8_t& flag : presence[i]) flag = rng == nullptr || (*rng)() % 3 != 0;
      runs.push_back({borders[i], borders[i + 1] - borders[i], presence[i].data()});
    }
  }

  ExtentContributions Contributions(size_t tile_elements, bool with_sum = true) {
    return {dtype,       grads.data(), grads.size(),  runs.data(),
            runs.size(), elements,     tile_elements, with_sum ? sum.data() : nullptr,
            sum_is_read};
  }

  std::vector<float> ReferenceSum() const {
    std::vector<float> expected(elements);
    for (size_t i = 0; i < elements; ++i) {
      float a = Value(0, i);
      for (size_t slot = 1; slot < grads.size(); ++slot) a = a + Value(slot, i);
      expected[i] = a;
    }
    return expected;
  }

  float Value(size_t slot, size_t i) const {
    if (grads[slot] == nullptr) return 0.0f;
    for (const ContributionRun& run : runs) {
      if (i >= run.begin && i < run.begin + run.count && !run.present[slot]) return 0.0f;
    }
    return ElementAt(dtype, grads[slot], i);
  }

  DType dtype;
  size_t elements;
  std::vector<std::vector<uint8_t>> memory;
  std::vector<const void*> grads;
  std::vector<std::vector<uint8_t>> presence;
  std::vector<ContributionRun> runs;
  std::vector<float> sum;
  bool sum_is_read = false;
};

class ReduceIsaTest : public ::testing::TestWithParam<simd::Isa> {
 protected:
  void SetUp() override {
    if (!simd::CpuHas(GetParam())) {
      GTEST_SKIP() << "this CPU cannot run the " << simd::IsaName(GetParam()) << " kernels";
    }
  }
  void ExpectReference(ExtentData* data, size_t tile_elements) {
    const std::vector<float> expected = data->ReferenceSum();
    const TileNormSum norm = ReduceExtent(Kernels(GetParam()), data->Contributions(tile_elements));
    for (size_t i = 0; i < data->elements; ++i) {
      ASSERT_TRUE(SameFloat(data->sum[i], expected[i]))
          << DTypeName(data->dtype) << " element " << i << " of " << data->elements;
    }
    ASSERT_EQ(data->sum[data->elements], -7.0f) << "wrote past the end";
    const TileNormSum expected_norm = ReferenceNorm(expected, tile_elements);
    ASSERT_TRUE(SameNorm(norm, expected_norm))
        << norm.sumsq << " and " << norm.nonfinite << " instead of " << expected_norm.sumsq
        << " and " << expected_norm.nonfinite;
  }
};

INSTANTIATE_TEST_SUITE_P(, ReduceIsaTest,
                         ::testing::Values(simd::Isa::kScalar, simd::Isa::kAvx2,
                                           simd::Isa::kAvx512),
                         [](const auto& instance) { return simd::IsaName(instance.param); });

TEST_P(ReduceIsaTest, EverySlotCountSumsInSlotOrder) {
  for (DType dtype : kAllDTypes) {
    for (size_t slots = 1; slots <= 8; ++slots) {
      ExtentData data(dtype, slots, 5000, false, 1);
      ExpectReference(&data, 1024);
      data.sum_is_read = true;
      ExpectReference(&data, 1024);
    }
  }
}

TEST_P(ReduceIsaTest, EveryLengthAndAlignmentSumsAlike) {
  for (DType dtype : kAllDTypes) {
    for (size_t count = 0; count <= 130; ++count) {
      ExtentData data(dtype, 3, count, false, 2, count % 17);
      ExpectReference(&data, 64);
    }
  }
}

TEST_P(ReduceIsaTest, AnyBitPatternSumsAlikeAndNonfiniteSumsAreCounted) {
  for (DType dtype : kAllDTypes) {
    for (size_t slots : {1, 2, 4}) {
      ExtentData data(dtype, slots, 20000, true, 3);
      ExpectReference(&data, 64);
    }
  }
}

TEST_P(ReduceIsaTest, AnAbsentSlotCountsAsPositiveZeros) {
  ExtentData data(DType::kF32, 2, 200, false, 4);
  std::vector<float> negative_zeros(200, -0.0f);
  data.grads = {negative_zeros.data(), nullptr};
  ExpectReference(&data, 64);
  EXPECT_FALSE(std::signbit(data.sum[0]));
  data.grads = {nullptr, negative_zeros.data()};
  ExpectReference(&data, 64);
  EXPECT_FALSE(std::signbit(data.sum[199]));
  data.grads = {negative_zeros.data(), negative_zeros.data()};
  ExpectReference(&data, 64);
  EXPECT_TRUE(std::signbit(data.sum[0]));
  data.grads = {nullptr, nullptr};
  ExpectReference(&data, 64);
}

TEST_P(ReduceIsaTest, RunsWithDifferentContributorsSumLikeZeroTensors) {
  std::mt19937 rng(5);
  for (DType dtype : kAllDTypes) {
    for (int round = 0; round < 20; ++round) {
      ExtentData data(dtype, 1 + round % 4, 3000, false, 6);
      data.CutIntoRuns({1, 65, 500, 1024, 1500, 1501, 2999}, &rng);
      ExpectReference(&data, round % 2 == 0 ? 256 : 1024);
    }
  }
}

TEST_P(ReduceIsaTest, TheNormDoesNotDependOnHowRunsCutTheTiles) {
  ExtentData whole(DType::kBF16, 2, 10000, false, 7);
  ExtentData cut(DType::kBF16, 2, 10000, false, 7);
  cut.CutIntoRuns({3, 100, 2049, 9000}, nullptr);
  cut.presence[1] = {1, 0};
  whole.CutIntoRuns({3, 100}, nullptr);
  whole.presence[1] = {1, 0};
  const KernelTable& kernels = Kernels(GetParam());
  const TileNormSum norm = ReduceExtent(kernels, whole.Contributions(2048));
  EXPECT_TRUE(SameNorm(norm, ReduceExtent(kernels, cut.Contributions(2048))));
  EXPECT_EQ(whole.sum, cut.sum);
}

TEST_P(ReduceIsaTest, OneFullSlotNeedsNoSumAndHasTheSameNorm) {
  for (DType dtype : kAllDTypes) {
    for (bool any_bits : {false, true}) {
      ExtentData data(dtype, 1, 1003, any_bits, 8);
      const ExtentContributions without_sum = data.Contributions(256, false);
      ASSERT_FALSE(NeedsSum(without_sum));
      const KernelTable& kernels = Kernels(GetParam());
      EXPECT_TRUE(
          SameNorm(ReduceExtent(kernels, without_sum), ReferenceNorm(data.ReferenceSum(), 256)));
    }
  }
}

TEST_P(ReduceIsaTest, ANonfiniteElementIsCountedEvenInTheTail) {
  for (size_t slots : {1, 2}) {
    for (float bad : {INFINITY, -INFINITY, NAN}) {
      ExtentData data(DType::kF32, slots, 131, false, 9);
      std::memcpy(data.memory[0].data() + 4 * 130, &bad, 4);
      EXPECT_EQ(ReduceExtent(Kernels(GetParam()), data.Contributions(128)).nonfinite, 1u);
    }
  }
}

TEST_P(ReduceIsaTest, AnOverflowOfTheNormIsInfiniteWithoutNonfiniteElements) {
  ExtentData data(DType::kF32, 1, 64, false, 10);
  const float large = 1e30f;
  std::memcpy(data.memory[0].data(), &large, 4);
  const TileNormSum norm = ReduceExtent(Kernels(GetParam()), data.Contributions(64, false));
  EXPECT_TRUE(std::isinf(norm.sumsq));
  EXPECT_EQ(norm.nonfinite, 0u);
}

// Squares are fp32: nothing is left of values not above 2^-75.
TEST_P(ReduceIsaTest, TheNormOfGradientsWhoseSquaresUnderflowIsZero) {
  const float largest_lost = std::ldexp(1.0f, -75);
  const float smallest_kept = std::nextafter(largest_lost, 1.0f);
  for (const auto& [x, square] : {std::pair{largest_lost, 0.0},
                                  {-largest_lost, 0.0},
                                  {smallest_kept, std::ldexp(1.0, -149)},
                                  {-smallest_kept, std::ldexp(1.0, -149)}}) {
    for (const size_t slots : {1, 2}) {
      ExtentData data(DType::kF32, slots, 64, false, 14);
      const std::vector<float> equal(64, x);
      const std::vector<float> zeros(64, 0.0f);
      data.grads = {equal.data()};
      if (slots == 2) data.grads.push_back(zeros.data());
      const TileNormSum norm = ReduceExtent(Kernels(GetParam()), data.Contributions(64));
      EXPECT_EQ(norm.sumsq, 64 * square) << x;
      EXPECT_EQ(norm.nonfinite, 0u);
    }
  }
}

// Overwrites an element, in the dtype of the extent; `value` must be exact in it.
void Put(ExtentData* data, size_t slot, size_t element, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  uint16_t half = static_cast<uint16_t>(bits >> 16);
  if (data->dtype == DType::kF16) half = std::isnan(value) ? 0x7E00 : value > 0 ? 0x7C00 : 0xFC00;
  const size_t width = DTypeBytes(data->dtype);
  uint8_t* const to = data->memory[slot].data() + element * width;
  if (width == 4) {
    std::memcpy(to, &bits, 4);
  } else {
    std::memcpy(to, &half, 2);
  }
}

TEST_P(ReduceIsaTest, TheFirstNonfiniteElementAndItsSlotAreFound) {
  const KernelTable& kernels = Kernels(GetParam());
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (size_t slots : {1, 2, 3}) {
      for (size_t element :
           {128, 200, 255, 256, 300}) {  // In the second tile, and in the short one.
        for (float bad : {INFINITY, -INFINITY, NAN}) {
          ExtentData data(dtype, slots, 301, false, 12);
          Put(&data, slots - 1, element, bad);
          Put(&data, 0, 300, -INFINITY);
          const size_t tile = element / 128;
          const bool last = element == 300;
          const NonfiniteElement found =
              FindNonfinite(kernels, data.Contributions(128, slots > 1), tile);
          EXPECT_EQ(found.element, element) << DTypeName(dtype) << " slots " << slots;
          EXPECT_EQ(found.slot, last ? 0 : slots - 1);
          EXPECT_TRUE(SameFloat(found.value, last ? -INFINITY : bad));
        }
      }
    }
  }
}

TEST_P(ReduceIsaTest, OfFiniteGradientsTheSlotIsNamedAtWhichTheSumOverflows) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    ExtentData data(dtype, 4, 200, false, 13);
    for (size_t slot : {1, 2, 3}) Put(&data, slot, 70, 0x1.8p127f);
    Put(&data, 0, 70, -0x1p126f);
    const NonfiniteElement found = FindNonfinite(Kernels(GetParam()), data.Contributions(128), 0);
    EXPECT_EQ(found.element, 70u);
    EXPECT_EQ(found.slot, 2u);  // -0.25 + 0.75 = 0.5, + 0.75 = 1.25 of 2^128.
    EXPECT_EQ(found.value, 0x1.8p127f);
    EXPECT_TRUE(std::isinf(found.sum));
  }
}

TEST_P(ReduceIsaTest, AbsentGradientsAreNotToBlame) {
  ExtentData data(DType::kF32, 3, 200, false, 14);
  data.CutIntoRuns({60, 130}, nullptr);
  data.presence[1][0] = 0;  // Slot 0 has none for elements 60 to 129; its memory is garbage.
  Put(&data, 0, 70, NAN);
  Put(&data, 2, 71, INFINITY);
  const NonfiniteElement found = FindNonfinite(Kernels(GetParam()), data.Contributions(128), 0);
  EXPECT_EQ(found.element, 71u);
  EXPECT_EQ(found.slot, 2u);
}

TEST_P(ReduceIsaTest, WhenOnlyTheNormOverflowsTheLargestElementIsFound) {
  ExtentData data(DType::kF32, 2, 200, false, 15);
  Put(&data, 1, 140, -3e30f);
  Put(&data, 1, 141, 3e30f);
  Put(&data, 0, 142, 1e30f);
  const NonfiniteElement found = FindNonfinite(Kernels(GetParam()), data.Contributions(128), 1);
  EXPECT_EQ(found.element, 140u);
  EXPECT_EQ(found.slot, 1u);
  EXPECT_EQ(found.value, -3e30f);
  EXPECT_TRUE(std::isfinite(found.sum));
}

TEST(ReduceTest, OnlyASingleCompleteSlotNeedsNoSum) {
  ExtentData two(DType::kBF16, 2, 100, false, 11);
  EXPECT_TRUE(NeedsSum(two.Contributions(64)));
  ExtentData one(DType::kBF16, 1, 100, false, 11);
  EXPECT_FALSE(NeedsSum(one.Contributions(64)));
  one.CutIntoRuns({50}, nullptr);
  EXPECT_FALSE(NeedsSum(one.Contributions(64)));
  one.presence[1][0] = 0;
  EXPECT_TRUE(NeedsSum(one.Contributions(64)));
  one.grads[0] = nullptr;
  EXPECT_TRUE(NeedsSum(one.Contributions(64)));
}

TEST(ReduceTest, TilesReducedInAnyOrderGiveTheSameParts) {
  ExtentData data(DType::kF16, 2, 1000, false, 12);
  ExtentContributions extent = data.Contributions(256);
  const KernelTable& kernels = Kernels(simd::DetectIsa());
  ASSERT_EQ(TileCount(extent), 4u);
  std::vector<TileNorm> tiles(4);
  for (size_t tile : {3, 1, 0, 2}) tiles[tile] = ReduceTile(kernels, extent, tile);
  TileNormSum norm;
  for (const TileNorm& tile : tiles) norm.Add(tile);
  EXPECT_TRUE(SameNorm(norm, ReduceExtent(kernels, extent)));
}

}  // namespace
}  // namespace ballast::reduce
