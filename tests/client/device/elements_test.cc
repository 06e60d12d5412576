// The functions of elements.h and the loops of pack.cc against the kernels of the server and their
// scalar vector trait, bit for bit: every 16-bit value, lengths 0 to 130, every element offset.
#include "client/device/elements.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "client/device/pack.h"
#include "server/reduce/reduce.h"
#include "server/simd/vec_scalar.h"

namespace ballast::device {
namespace {

using Twin = simd::VecScalar;

// fp32 patterns: each sign and exponent with mantissas at the borders of rounding, then random.
std::vector<float> Values() {
  std::vector<float> values;
  for (uint32_t top = 0; top < 512; ++top) {
    for (uint32_t low : {0u, 1u, 0xFFFu, 0x1000u, 0x1001u, 0x3000u, 0x7FFFu, 0x8000u, 0x8001u,
                         0x18000u, 0x400000u, 0x7FFFFFu}) {
      values.push_back(FromBits(top << 23 | low));
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) values.push_back(FromBits(static_cast<uint32_t>(random())));
  return values;
}

TEST(Elements, EverySixteenBitValueWidensAsTheServerWidensIt) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto x = static_cast<uint16_t>(i);
    ASSERT_EQ(BitsOf(BF16::Widen(x)), Twin::Bits(Twin::LoadBf16(&x))) << i;
    ASSERT_EQ(BitsOf(F16::Widen(x)), Twin::Bits(Twin::LoadF16(&x))) << i;
  }
}

TEST(Elements, RoundingAndScalingHaveTheServersBits) {
  for (const float x : Values()) {
    ASSERT_EQ(BF16::Round(x), Twin::PackBf16(x, x).low) << BitsOf(x);
    ASSERT_EQ(F16::Round(x), Twin::PackF16(x, x).low) << BitsOf(x);
    for (const float scale : {0.5f, 3.0f, 0x1p-120f}) {
      const float scaled = Twin::Mul(x, scale);
      ASSERT_EQ((Scale<F32, BF16>(x, scale)), Twin::PackBf16(scaled, scaled).low) << BitsOf(x);
      ASSERT_EQ((Scale<F32, F16>(x, scale)), Twin::PackF16(scaled, scaled).low) << BitsOf(x);
    }
  }
}

// Elements of G from random bits; some are NaN, Inf and denormals unless `tame`.
template <class G>
std::vector<typename G::T> Elements(size_t count, bool tame, uint32_t seed) {
  std::mt19937 random(seed);
  const float special[] = {INFINITY, -INFINITY, NAN, 0x1p-149f, -0x1p-130f, 0x1p-24f, 0.0f, -0.0f};
  std::vector<typename G::T> values(count);
  for (auto& value : values) {
    const uint32_t bits = static_cast<uint32_t>(random());
    const float x = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
    value = G::Round(!tame && bits % 8 == 0 ? special[(bits >> 8) % 8] : x);
  }
  return values;
}

template <class G>
void NormsAgree(DType dtype) {
  const auto norm = reduce::Kernels(simd::Isa::kScalar).norm_tile[static_cast<size_t>(dtype) - 1];
  for (const bool tame : {true, false}) {
    const auto values = Elements<G>(130 + 8, tame, tame ? 1 : 2);
    for (size_t offset = 0; offset < 8; ++offset) {
      for (size_t count = 0; count <= 130; ++count) {
        const typename G::T* x = values.data() + offset;
        const reduce::TileNorm want = norm(x, count);
        const float sumsq = Sumsq<G>(x, count);
        const NonfiniteElements found = FindNonfinite<G>(x, count);
        ASSERT_EQ(found.count, want.nonfinite) << count;
        if (want.sumsq == want.sumsq) {
          ASSERT_EQ(BitsOf(sumsq), BitsOf(want.sumsq)) << count;
        } else {
          ASSERT_NE(sumsq, sumsq) << count;
        }
        size_t first = 0;
        while (first < count && G::Finite(x[first])) ++first;
        ASSERT_EQ(found.first, first < count ? first : SIZE_MAX);
      }
    }
  }
}

TEST(Elements, SumOfSquaresAndNonfiniteCountAreThoseOfTheServer) {
  NormsAgree<F32>(DType::kF32);
  NormsAgree<BF16>(DType::kBF16);
  NormsAgree<F16>(DType::kF16);
}

// Packs pieces of G as P and back, and compares both with the functions for one element.
template <class G, class P>
void PackAgrees(DType tensor_dtype, DType packed_dtype) {
  auto values = Elements<G>(130 + 3, false, 3);
  for (size_t count = 0; count <= 130; ++count) {
    const size_t cut = count / 3;
    const Piece pieces[] = {{values.data() + 1, cut}, {values.data() + 2 + cut, count - cut}};
    std::vector<typename P::T> packed(count + 1);
    const Packing packing{pieces, tensor_dtype, packed_dtype, packed.data() + 1, 0.25f};
    ASSERT_EQ(ElementCount(packing), count);
    PackOnHost(packing);
    for (size_t i = 0; i < count; ++i) {
      const typename P::T want = Scale<G, P>(values[(i < cut ? 1 : 2) + i], 0.25f);
      ASSERT_EQ(std::memcmp(&packed[i + 1], &want, sizeof want), 0) << i << " of " << count;
    }
    std::vector<typename G::T> back(count + 2);
    const Piece outs[] = {{back.data(), cut}, {back.data() + 1 + cut, count - cut}};
    UnpackOnHost({outs, tensor_dtype, packed_dtype, packed.data() + 1});
    for (size_t i = 0; i < count; ++i) {
      const typename G::T want = Cast<P, G>(packed[i + 1]);
      ASSERT_EQ(std::memcmp(&back[(i < cut ? 0 : 1) + i], &want, sizeof want), 0) << i;
    }
  }
}

TEST(Elements, PackAndUnpackConvertEachElementOnceForAllPairsOfTypes) {
  PackAgrees<F32, F32>(DType::kF32, DType::kF32);
  PackAgrees<F32, BF16>(DType::kF32, DType::kBF16);
  PackAgrees<F32, F16>(DType::kF32, DType::kF16);
  PackAgrees<BF16, F32>(DType::kBF16, DType::kF32);
  PackAgrees<BF16, F16>(DType::kBF16, DType::kF16);
  PackAgrees<F16, F32>(DType::kF16, DType::kF32);
  PackAgrees<F16, BF16>(DType::kF16, DType::kBF16);
}

TEST(Elements, EqualTypesWithoutAScaleKeepEveryBit) {
  std::vector<uint16_t> values(65536), packed(65536);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  const Piece piece{values.data(), values.size()};
  PackOnHost({{&piece, 1}, DType::kF16, DType::kF16, packed.data()});
  EXPECT_EQ(values, packed);
}

}  // namespace
}  // namespace ballast::device
