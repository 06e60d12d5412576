// LAMB's two passes, written once over the vector trait V. Per element, every operation rounded
// once to fp32, fma where written, IEEE sqrt and division, after g = fp32(grad) * scale:
//   m and v as in adam_rule.h
//   u = fma(weight_decay, p, (m * grow_m) / fma(sqrt(v), grow_root, eps))
//   first pass, which stores nothing:
//     lane[j] = fma(x, x, lane[j]) for x = p and for x = u, j = index in the run modulo 64;
//     lane[i] = lane[i] + lane[i + h] for h = 32, 16, 8, 4, 2, 1; the results are lane[0]
//   between the passes: the ratio of the tensor (lamb.h), from the squares of all its tiles
//   second pass, the step: m, v, u again; p = fma(neg_lr * ratio, u, p)
// Source: You et al., "Large Batch Optimization for Deep Learning", Algorithm 2. With bf16 or fp16
// both ways: 14 + 28 bytes per parameter (docs/decisions/025-lamb-passes.md). A run is the tensor's
// part of a tile. The index in the tile would give the same bits: it turns the lanes round, and
// every fold still adds the same pairs.
//
// Comes from: RunArgs. Goes to: kernel_table.h. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/optim/element_run.h"
#include "server/optim/step_args.h"
#include "server/simd/square_lanes.h"

namespace ballast::optim {
namespace {

// What both passes compute of one vector. kFarLerp as in adam_rule.h.
template <class V, bool kFarLerp>
class LambVector {
  using F = typename V::F;

 public:
  explicit LambVector(const LambScalars& k)
      : lerp_(V::Set(kFarLerp ? k.w1 - 1.0f : k.w1)),
        b2_(V::Set(k.b2)),
        w2_(V::Set(k.w2)),
        grow_m_(V::Set(k.grow_m)),
        grow_root_(V::Set(k.grow_root)),
        eps_(V::Set(k.eps)),
        weight_decay_(V::Set(k.weight_decay)) {}

  // Steps m and v by the scaled gradient g, and returns u.
  F Update(F g, F p, F* m, F* v) const {
    *m = V::Fma(lerp_, V::Sub(g, *m), kFarLerp ? g : *m);
    *v = V::Fma(V::Mul(w2_, g), g, V::Mul(*v, b2_));
    const F denominator = V::Fma(V::Sqrt(*v), grow_root_, eps_);
    return V::Fma(weight_decay_, p, V::Div(V::Mul(*m, grow_m_), denominator));
  }

 private:
  F lerp_, b2_, w2_, grow_m_, grow_root_, eps_, weight_decay_;
};

// The first pass over one run.
template <class V, class G, bool kFarLerp>
class LambSquaresRun {
  using F = typename V::F;
  using GradT = typename G::T;

 public:
  explicit LambSquaresRun(const RunArgs& a)
      : scale_(V::Set(a.scale)), vector_(ScalarsOf<LambScalars>(a.k)) {}

  BALLAST_FLATTEN TileSquares Run(const RunArgs& a) {
    const auto* grad = static_cast<const GradT*>(a.grad);
    size_t i = 0;
    for (; i + simd::kSquareLanes <= a.count; i += simd::kSquareLanes) {
      for (size_t j = 0; j < kVectors; ++j) {
        const size_t at = i + j * V::kWidth;
        const F p = V::Load(a.state[0] + at);
        const F u = UpdateAt(p, a.state[1] + at, a.state[2] + at, grad + at);
        p_.Add(j, p);
        u_.Add(j, u);
      }
    }
    if (i < a.count) Tail(a.state, grad, i, a.count - i);
    return {p_.Fold(), u_.Fold()};
  }

 private:
  static constexpr size_t kVectors = simd::kSquareLanes / V::kWidth;

  F UpdateAt(F p, const float* m_at, const float* v_at, const GradT* grad) const {
    F m = V::Load(m_at), v = V::Load(v_at);
    return vector_.Update(V::Mul(G::template Load<V>(grad), scale_), p, &m, &v);
  }

  // The last elements, fewer than there are lanes, through a zero-padded copy.
  __attribute__((noinline)) void Tail(float* const* state, const GradT* grad, size_t begin,
                                      size_t count) {
    float p[simd::kSquareLanes] = {}, m[simd::kSquareLanes] = {}, v[simd::kSquareLanes] = {},
          u[simd::kSquareLanes] = {};
    GradT g[simd::kSquareLanes] = {};
    __builtin_memcpy(p, state[0] + begin, count * sizeof(float));
    __builtin_memcpy(m, state[1] + begin, count * sizeof(float));
    __builtin_memcpy(v, state[2] + begin, count * sizeof(float));
    __builtin_memcpy(g, grad + begin, count * sizeof(GradT));
    for (size_t at = 0; at < simd::kSquareLanes; at += V::kWidth) {
      V::Store(u + at, UpdateAt(V::Load(p + at), m + at, v + at, g + at));
    }
    // With an eps of 0 the padding divides 0 by 0.
    for (size_t i = count; i < simd::kSquareLanes; ++i) u[i] = 0.0f;
    for (size_t j = 0; j < kVectors; ++j) {
      const F p_padded = V::Load(p + j * V::kWidth), u_padded = V::Load(u + j * V::kWidth);
      p_.Add(j, p_padded);
      u_.Add(j, u_padded);
    }
  }

  F scale_;
  LambVector<V, kFarLerp> vector_;
  simd::SquareLanes<V> p_, u_;
};

template <class V, class G>
TileSquares LambSquares(const RunArgs& args) {
  const float w1 = ScalarsOf<LambScalars>(args.k).w1;
  if (w1 < 0.5f && w1 > -0.5f) return LambSquaresRun<V, G, false>(args).Run(args);
  return LambSquaresRun<V, G, true>(args).Run(args);
}

// The second pass for one vector.
template <class V, bool kFarLerp>
class LambRule {
  using F = typename V::F;

 public:
  static constexpr size_t kArrays = 3;
  static constexpr size_t kStored = kArrays;

  explicit LambRule(const float* scalars) : LambRule(ScalarsOf<LambStepScalars>(scalars)) {}

  void Step(F g, F* array) const {
    const F u = vector_.Update(g, array[0], &array[1], &array[2]);
    array[0] = V::Fma(step_, u, array[0]);
  }

 private:
  explicit LambRule(const LambStepScalars& a) : vector_(a.k), step_(V::Set(a.k.neg_lr * a.ratio)) {}

  LambVector<V, kFarLerp> vector_;
  F step_;
};

struct Lamb {
  template <class V, class G, class W>
  static uint64_t Run(const RunArgs& args) {
    const float w1 = ScalarsOf<LambScalars>(args.k).w1;
    if (w1 < 0.5f && w1 > -0.5f) return RunRule<V, G, W, LambRule<V, false>>(args);
    return RunRule<V, G, W, LambRule<V, true>>(args);
  }
};

}  // namespace
}  // namespace ballast::optim
