// LAMB of one element and the sums of its ratio: docs/numerics.md, section 10.5. It shares no code
// with the servers. Comes from: references of tests. Goes to: the state that servers must have.
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/job/optimizer.h"

namespace ballast::sim {

// Sums of squares over a tensor, of its masters and of their updates.
struct LambSquares {
  double p = 0;
  double u = 0;
};

// The scalars of a tensor's step, bias corrections included.
struct LambStep {
  LambStep(const Hyper& hyper, uint64_t step)
      : w1(static_cast<float>(1 - hyper[kBeta1])),
        b2(static_cast<float>(hyper[kBeta2])),
        w2(static_cast<float>(1 - hyper[kBeta2])),
        grow_m(static_cast<float>(1 / Correction(hyper[kBeta1], step))),
        grow_root(static_cast<float>(1 / std::sqrt(Correction(hyper[kBeta2], step)))),
        eps(static_cast<float>(hyper[kEps])),
        weight_decay(static_cast<float>(hyper[kWeightDecay])),
        neg_lr(static_cast<float>(-hyper[kLr])),
        max_coeff(static_cast<float>(hyper[kLambMaxCoeff])),
        min_coeff(static_cast<float>(hyper[kLambMinCoeff])) {}

  // Steps m and v by the scaled gradient; the update of p.
  float Update(float g, float p, float* m, float* v) const {
    *m = std::fma(w1, g - *m, *m);
    *v = std::fma(w2 * g, g, *v * b2);
    const float u = (*m * grow_m) / std::fma(std::sqrt(*v), grow_root, eps);
    return std::fma(weight_decay, p, u);
  }
  float Ratio(const LambSquares& squares) const {
    const bool none = squares.p == 0 || squares.u == 0;
    if (none || !std::isfinite(squares.p) || !std::isfinite(squares.u)) return 1;
    const double ratio = std::sqrt(squares.p) / std::sqrt(squares.u);
    return static_cast<float>(std::clamp<double>(ratio, min_coeff, max_coeff));
  }

  float w1, b2, w2, grow_m, grow_root, eps, weight_decay, neg_lr, max_coeff, min_coeff;

 private:
  static double Correction(double beta, uint64_t step) {
    return 1 - std::pow(beta, static_cast<double>(step));
  }
};

// The sum of squares of a tensor's part in one tile.
class LambLanes {
 public:
  // `at`: index in the tile.
  void Add(uint32_t at, float x) { lane_[at % 64] = std::fma(x, x, lane_[at % 64]); }
  float Fold() {
    for (int half = 32; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lane_[i] += lane_[i + half];
    }
    return lane_[0];
  }

 private:
  float lane_[64] = {};
};

}  // namespace ballast::sim
