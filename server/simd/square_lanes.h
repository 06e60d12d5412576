// The 64-lane form of a sum of squares: the same bits at every vector width (docs/numerics.md).
// Comes from: the kernels of reduce and optim. Goes to: their norms. In an anonymous namespace, for
// the reason that vec_scalar.h gives. Thread safety: one thread per object.
#pragma once

#include <cstddef>

namespace ballast::simd {
namespace {

constexpr size_t kSquareLanes = 64;

// V: a vector trait, see vec_scalar.h.
template <class V>
class SquareLanes {
  static constexpr size_t kVectors = kSquareLanes / V::kWidth;

 public:
  SquareLanes() {
    for (size_t i = 0; i < kVectors; ++i) lane_[i] = V::Set(0.0f);
  }
  // Adds the squares of the vector whose first element has index lane x kWidth modulo 64.
  void Add(size_t lane, typename V::F x) { lane_[lane] = V::Fma(x, x, lane_[lane]); }
  // The sum: each lane of the upper half is added to its partner, until one is left.
  float Fold() const {
    float lanes[kSquareLanes];
    for (size_t i = 0; i < kVectors; ++i) V::Store(lanes + i * V::kWidth, lane_[i]);
    for (size_t half = kSquareLanes / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
    }
    return lanes[0];
  }

 private:
  typename V::F lane_[kVectors];
};

}  // namespace
}  // namespace ballast::simd
