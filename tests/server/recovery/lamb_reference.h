// LAMB over whole tensors as docs/numerics.md has it, section 10.5, in plain loops that share no
// code with the servers. Comes from: nothing. Goes to: tests of rounds.
// Thread safety: thread-compatible.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/job/optimizer.h"
#include "common/tensor/layout.h"
#include "tests/server/engine/engine_cluster.h"
#include "tests/sim/lamb.h"

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
      const sim::LambStep k(hyper, ++step[t]);
      const std::vector<float> u = Updates(grads, scale, k, t);
      ratios.push_back(k.Ratio({Squares(t, p[t]), Squares(t, u)}));
      const float step_size = k.neg_lr * ratios.back();
      for (size_t i = 0; i < u.size(); ++i) p[t][i] = std::fma(step_size, u[i], p[t][i]);
    }
  }

  std::vector<float> ratios;  // of every tensor and step

 private:
  // m and v step; u of each element.
  std::vector<float> Updates(const std::vector<std::vector<std::vector<float>>>& grads, float scale,
                             const sim::LambStep& k, uint32_t t) {
    std::vector<float> u(p[t].size());
    for (size_t i = 0; i < u.size(); ++i) {
      float sum = grads[0][t][i];
      for (size_t s = 1; s < grads.size(); ++s) sum = sum + grads[s][t][i];
      u[i] = k.Update(sum * scale, p[t][i], &m[t][i], &v[t][i]);
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
    sim::LambLanes lanes;
    for (uint32_t i = 0; i < extent.run_count; ++i) {
      const Run& run = layout_.runs()[extent.first_run + i];
      if (run.tensor != tensor) continue;
      for (uint32_t j = 0; j < layout_.tile_elements(); ++j) {
        const uint32_t at = begin + j;
        if (at < run.extent_offset || at >= run.extent_offset + run.elements) continue;
        lanes.Add(j, values[run.tensor_offset + at - run.extent_offset]);
      }
    }
    return lanes.Fold();
  }

  const Layout layout_;
};

}  // namespace ballast::server::testing
