// LAMB's two passes, written once over the vector trait V. Per element, every operation rounded
// once to fp32, fma where written, IEEE sqrt and division:
//   first pass, after g = fp32(grad) * scale: m and v as in adam_rule.h; u as below;
//     lane[j] = fma(x, x, lane[j]) for x = p and for x = u, j = index in the run modulo 64;
//     lane[i] = lane[i] + lane[i + h] for h = 32, 16, 8, 4, 2, 1; the results are lane[0]
//   between the passes: the ratio of the tensor (lamb.h), from the squares of all its tiles
//   second pass: u again, from the stored m and v; p = fma(neg_lr * ratio, u, p)
//   u = fma(weight_decay, p, (m * grow_m) / fma(sqrt(v), grow_root, eps))
// Source: You et al., "Large Batch Optimization for Deep Learning", Algorithm 2. With bf16 or fp16
// both ways: 22 + 18 bytes per parameter. A run is the tensor's part of a tile. The
// index in the tile would give the same bits: it turns the lanes round, and every fold still adds
// the same pairs.
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

// u of one vector.
template <class V>
class LambUpdate {
  using F = typename V::F;

 public:
  explicit LambUpdate(const LambScalars& k)
      : grow_m_(V::Set(k.grow_m)),
        grow_root_(V::Set(k.grow_root)),
        eps_(V::Set(k.eps)),
        weight_decay_(V::Set(k.weight_decay)) {}

  F Of(F p, F m, F v) const {
    const F denominator = V::Fma(V::Sqrt(v), grow_root_, eps_);
    return V::Fma(weight_decay_, p, V::Div(V::Mul(m, grow_m_), denominator));
  }

 private:
  F grow_m_, grow_root_, eps_, weight_decay_;
};

// The first pass over one run.
template <class V, class G, bool kFarLerp>
class LambMomentsRun {
  using F = typename V::F;
  using GradT = typename G::T;

 public:
  explicit LambMomentsRun(const RunArgs& a) : LambMomentsRun(a, ScalarsOf<LambScalars>(a.k)) {}

  BALLAST_FLATTEN TileSquares Run(const RunArgs& a) {
    const auto* grad = static_cast<const GradT*>(a.grad);
    size_t i = 0;
    for (; i + simd::kSquareLanes <= a.count; i += simd::kSquareLanes) {
      for (size_t j = 0; j < kVectors; ++j) {
        const size_t at = i + j * V::kWidth;
        const F p = V::Load(a.state[0] + at);
        const F u = StepVector(p, a.state[1] + at, a.state[2] + at, G::template Load<V>(grad + at));
        p_.Add(j, p);
        u_.Add(j, u);
      }
    }
    if (i < a.count) Tail(a.state, grad, i, a.count - i);
    return {p_.Fold(), u_.Fold()};
  }

 private:
  static constexpr size_t kVectors = simd::kSquareLanes / V::kWidth;

  LambMomentsRun(const RunArgs& a, const LambScalars& k)
      : scale_(V::Set(a.scale)),
        lerp_(V::Set(kFarLerp ? k.w1 - 1.0f : k.w1)),
        b2_(V::Set(k.b2)),
        w2_(V::Set(k.w2)),
        update_(k) {}

  // m and v of one vector in place; returns u.
  F StepVector(F p, float* m_at, float* v_at, F grad) const {
    const F g = V::Mul(grad, scale_);
    const F m_old = V::Load(m_at);
    const F m = V::Fma(lerp_, V::Sub(g, m_old), kFarLerp ? g : m_old);
    const F v = V::Fma(V::Mul(w2_, g), g, V::Mul(V::Load(v_at), b2_));
    V::Store(m_at, m);
    V::Store(v_at, v);
    return update_.Of(p, m, v);
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
      V::Store(u + at, StepVector(V::Load(p + at), m + at, v + at, G::template Load<V>(g + at)));
    }
    __builtin_memcpy(state[1] + begin, m, count * sizeof(float));
    __builtin_memcpy(state[2] + begin, v, count * sizeof(float));
    // With an eps of 0 the padding divides 0 by 0.
    for (size_t i = count; i < simd::kSquareLanes; ++i) u[i] = 0.0f;
    for (size_t j = 0; j < kVectors; ++j) {
      const F p_padded = V::Load(p + j * V::kWidth), u_padded = V::Load(u + j * V::kWidth);
      p_.Add(j, p_padded);
      u_.Add(j, u_padded);
    }
  }

  F scale_, lerp_, b2_, w2_;
  LambUpdate<V> update_;
  simd::SquareLanes<V> p_, u_;
};

template <class V, class G>
TileSquares LambMoments(const RunArgs& args) {
  const float w1 = ScalarsOf<LambScalars>(args.k).w1;
  if (w1 < 0.5f && w1 > -0.5f) return LambMomentsRun<V, G, false>(args).Run(args);
  return LambMomentsRun<V, G, true>(args).Run(args);
}

// The second pass for one vector.
template <class V>
class LambApplyRule {
  using F = typename V::F;

 public:
  static constexpr size_t kArrays = 3;
  static constexpr size_t kStored = 1;

  explicit LambApplyRule(const float* scalars)
      : LambApplyRule(ScalarsOf<LambApplyScalars>(scalars)) {}

  void Step(F, F* array) const {
    array[0] = V::Fma(step_, update_.Of(array[0], array[1], array[2]), array[0]);
  }

 private:
  explicit LambApplyRule(const LambApplyScalars& a)
      : update_(a.k), step_(V::Set(a.k.neg_lr * a.ratio)) {}

  LambUpdate<V> update_;
  F step_;
};

struct LambApply {
  template <class V, class, class W>
  static uint64_t Run(const RunArgs& args) {
    return RunRule<V, NoGrad, W, LambApplyRule<V>>(args);
  }
};

}  // namespace
}  // namespace ballast::optim
