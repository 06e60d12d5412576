// State, gradient and weights of one run of any optimizer kind, stepped by a kernel or element by
// element by a reference, and compared bit for bit.
// Comes from: nothing. Goes to: the tests of optim. Thread safety: thread-compatible.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "server/optim/step_args.h"
#include "tests/server/optim/reference_step.h"
#include "tests/server/simd/numeric_reference.h"

namespace ballast::optim {

// The shape of a run.
struct RunShape {
  size_t arrays;
  DType grad, weight;
  size_t count;
  size_t shift;   // every array starts that many elements into its memory
  bool any_bits;  // random bit patterns instead of normal values
};

struct RunData {
  RunData(const RunShape& shape, uint32_t seed) : shape_(shape) {
    std::mt19937 rng(seed);
    const size_t padded = shape.count + shape.shift + 1;
    for (size_t a = 0; a < shape.arrays; ++a) {
      const std::vector<uint8_t> bytes =
          RandomElements(DType::kF32, padded, shape.any_bits, a == 0 ? 0.1f : 1e-3f, &rng);
      state_.emplace_back(padded);
      std::memcpy(state_[a].data(), bytes.data(), bytes.size());
      if (shape.any_bits || a < 2) continue;
      for (float& x : state_[a]) x = x * x;  // second moments are not negative
    }
    grad_ = RandomElements(shape.grad, padded, shape.any_bits, 1e-2f, &rng);
    weight_.assign(padded * DTypeBytes(shape.weight), 0xAB);
  }

  RunArgs Args(const float* k, float scale, bool with_weight = true) {
    RunArgs args = {};
    for (size_t a = 0; a < shape_.arrays; ++a) args.state[a] = state_[a].data() + shape_.shift;
    args.grad = grad_.data() + shape_.shift * DTypeBytes(shape_.grad);
    args.weight = with_weight ? weight_.data() + shape_.shift * DTypeBytes(shape_.weight) : nullptr;
    args.count = shape_.count;
    args.scale = scale;
    std::memcpy(args.k, k, sizeof args.k);
    return args;
  }

  uint64_t StepByReference(ReferenceStep step, const float* k, float scale) {
    uint64_t overflow = 0;
    for (size_t i = shape_.shift; i < shape_.shift + shape_.count; ++i) {
      float state[kStateArraysMax] = {};
      for (size_t a = 0; a < shape_.arrays; ++a) state[a] = state_[a][i];
      step(k, ElementAt(shape_.grad, grad_.data(), i) * scale, state);
      for (size_t a = 0; a < shape_.arrays; ++a) state_[a][i] = state[a];
      overflow += ReferenceWeight(shape_.weight, state[0], weight_.data(), i);
    }
    return overflow;
  }

  // The first difference, or "".
  std::string Differs(const RunData& other) const {
    for (size_t i = 0; i < state_[0].size(); ++i) {
      for (size_t a = 0; a < shape_.arrays; ++a) {
        if (SameFloat(state_[a][i], other.state_[a][i])) continue;
        return "array " + std::to_string(a) + " differs at element " + std::to_string(i);
      }
      if (shape_.weight == DType::kF32 && std::isnan(state_[0][i])) continue;
      const size_t bytes = DTypeBytes(shape_.weight);
      if (std::memcmp(&weight_[i * bytes], &other.weight_[i * bytes], bytes) != 0) {
        return "weight differs at element " + std::to_string(i);
      }
    }
    return "";
  }

  RunShape shape_;
  std::vector<std::vector<float>> state_;
  std::vector<uint8_t> grad_, weight_;
};

}  // namespace ballast::optim
