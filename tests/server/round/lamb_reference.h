// LAMB over whole tensors as docs/numerics.md has it, section 10.5, in plain loops that share no
// code with the servers. Comes from: nothing. Goes to: tests of rounds.
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/job/optimizer.h"
#include "common/tensor/layout.h"
#include "tests/server/round/engine_cluster.h"

namespace ballast::server::testing {

class LambReference : public Reference {
 public:
  LambReference(const std::vector<std::vector<float>>& init, const Layout& layout)
      : Reference(init), layout_(layout) {}

  // As Reference::Step.
  void Step(const std::vector<std::vector<std::vector<float>>>& grads, float scale,
            const Hyper& hyper, const std::vector<bool>& touched) {
    for (uint32_t t = 0; t < p.size(); ++t) {
      if (!touched[t]) continue;
      const std::vector<float> u = Updates(grads, scale, hyper, t);
      const double limit_low = static_cast<float>(hyper[6]);
      const double limit_high = static_cast<float>(hyper[5]);
      const double squares_p = Squares(t, p[t]), squares_u = Squares(t, u);
      float ratio = 1.0f;
      if (squares_p != 0 && squares_u != 0 && std::isfinite(squares_p + squares_u)) {
        const double norms = std::sqrt(squares_p) / std::sqrt(squares_u);
        ratio = static_cast<float>(std::clamp(norms, limit_low, limit_high));
      }
      ratios.push_back(ratio);
      const float step_size = static_cast<float>(-hyper[0]) * ratio;
      for (size_t i = 0; i < u.size(); ++i) p[t][i] = std::fma(step_size, u[i], p[t][i]);
    }
  }

  std::vector<float> ratios;  // of every tensor and step

 private:
  // m and v step; u of each element.
  std::vector<float> Updates(const std::vector<std::vector<std::vector<float>>>& grads, float scale,
                             const Hyper& hyper, uint32_t t) {
    const double steps = static_cast<double>(++step[t]);
    const auto w1 = static_cast<float>(1 - hyper[1]), b2 = static_cast<float>(hyper[2]);
    const auto w2 = static_cast<float>(1 - hyper[2]), eps = static_cast<float>(hyper[3]);
    const auto weight_decay = static_cast<float>(hyper[4]);
    const auto grow_m = static_cast<float>(1 / (1 - std::pow(hyper[1], steps)));
    const auto grow_root = static_cast<float>(1 / std::sqrt(1 - std::pow(hyper[2], steps)));
    std::vector<float> u(p[t].size());
    for (size_t i = 0; i < u.size(); ++i) {
      float sum = grads[0][t][i];
      for (size_t s = 1; s < grads.size(); ++s) sum = sum + grads[s][t][i];
      const float g = sum * scale;
      m[t][i] = std::fma(w1, g - m[t][i], m[t][i]);
      v[t][i] = std::fma(w2 * g, g, v[t][i] * b2);
      u[i] = (m[t][i] * grow_m) / std::fma(std::sqrt(v[t][i]), grow_root, eps);
      u[i] = std::fma(weight_decay, p[t][i], u[i]);
    }
    return u;
  }

  // Tile by tile in 64 lanes, by the index in the tile; extents in the order of their ids.
  double Squares(uint32_t tensor, const std::vector<float>& values) const {
    double of_tensor = 0;
    for (const Extent& extent : layout_.extents()) {
      double of_extent = 0;
      for (uint32_t begin = 0; begin < extent.elements; begin += layout_.tile_elements()) {
        of_extent += static_cast<double>(Tile(extent, begin, tensor, values));
      }
      of_tensor += of_extent;
    }
    return of_tensor;
  }

  float Tile(const Extent& extent, uint32_t begin, uint32_t tensor,
             const std::vector<float>& values) const {
    float lane[64] = {};
    for (uint32_t i = 0; i < extent.run_count; ++i) {
      const Run& run = layout_.runs()[extent.first_run + i];
      if (run.tensor != tensor) continue;
      for (uint32_t j = 0; j < layout_.tile_elements(); ++j) {
        const uint32_t at = begin + j;
        if (at < run.extent_offset || at >= run.extent_offset + run.elements) continue;
        const float x = values[run.tensor_offset + at - run.extent_offset];
        lane[j % 64] = std::fma(x, x, lane[j % 64]);
      }
    }
    for (size_t half = 32; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
    }
    return lane[0];
  }

  const Layout layout_;
};

}  // namespace ballast::server::testing
