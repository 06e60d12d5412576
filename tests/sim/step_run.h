// The optimizer's step over a run of an extent, in plain loops: docs/numerics.md.
// Comes from: the references of the simulator and of the kill storm, which say what is stepped by
// which scalars. Goes to: the state that servers must have. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/tensor/layout.h"
#include "server/optim/scalars.h"
#include "tests/server/optim/reference_step.h"
#include "tests/sim/lamb.h"

namespace ballast::sim {

// State arrays of one extent, the master weights first.
using ExtentArrays = std::vector<std::vector<float>>;

// Steps the run's elements of an optimizer of one pass. `sum` has the extent's sums of gradients,
// `scale` is Decision::grad_scale.
inline void StepRun(const Optimizer& optimizer, const optim::Scalars& k, const Run& run,
                    const std::vector<float>& sum, float scale, ExtentArrays* state) {
  const optim::ReferenceStep step = optim::ReferenceOf(optimizer);
  const float factor = optim::GradFactor(optimizer.kind, optimizer.options, scale);
  for (uint32_t i = run.extent_offset; i < run.extent_offset + run.elements; ++i) {
    float element[kStateArraysMax] = {};
    for (size_t a = 0; a < state->size(); ++a) element[a] = (*state)[a][i];
    step(k.value, sum[i] * factor, element);
    for (size_t a = 0; a < state->size(); ++a) (*state)[a][i] = element[a];
  }
}

// LAMB's first half: makes the run's `values`, sums of gradients, updates of its masters, steps m
// and v, and adds the run's sums of squares, in tiles of `tile` elements, to its tensor's.
inline void MeasureLamb(const LambStep& k, const Run& run, uint32_t tile, float scale,
                        std::vector<float>* values, ExtentArrays* state, LambSquares* of_tensor) {
  std::map<uint32_t, std::pair<LambLanes, LambLanes>> lanes;  // by tile
  for (uint32_t i = run.extent_offset; i < run.extent_offset + run.elements; ++i) {
    float& u = (*values)[i];
    const float p = (*state)[0][i];
    u = k.Update(u * scale, p, &(*state)[1][i], &(*state)[2][i]);
    auto& [of_p, of_u] = lanes[i / tile];
    of_p.Add(i % tile, p);
    of_u.Add(i % tile, u);
  }
  LambSquares of_extent;
  for (auto& [number, of] : lanes) {
    of_extent.p += static_cast<double>(of.first.Fold());
    of_extent.u += static_cast<double>(of.second.Fold());
  }
  of_tensor->p += of_extent.p;
  of_tensor->u += of_extent.u;
}

// Its second half: moves the masters by the updates in `values`.
inline void ApplyLamb(const LambStep& k, const Run& run, const LambSquares& squares,
                      const std::vector<float>& values, ExtentArrays* state) {
  const float step = k.neg_lr * k.Ratio(squares);
  for (uint32_t i = run.extent_offset; i < run.extent_offset + run.elements; ++i) {
    float& p = (*state)[0][i];
    p = std::fma(step, values[i], p);
  }
}

}  // namespace ballast::sim
