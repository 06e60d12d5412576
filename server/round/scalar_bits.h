// AdamW scalars as the fp32 bit patterns that travel in votes and, later, in the log.
// Comes from: server/optim. Goes to: votes, decisions, the step. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "server/optim/step_args.h"

namespace ballast::server {

inline constexpr size_t kAdamWScalarCount = sizeof(optim::AdamWScalars) / sizeof(uint32_t);

// Bits in declaration order: decay, w1, b2, w2, den, eps, neg_step_size.
inline std::vector<uint32_t> ScalarsToBits(const optim::AdamWScalars& scalars) {
  std::vector<uint32_t> bits(kAdamWScalarCount);
  std::memcpy(bits.data(), &scalars, sizeof(scalars));
  return bits;
}

// Inverse of ScalarsToBits; `bits` has kAdamWScalarCount entries.
inline optim::AdamWScalars ScalarsFromBits(const std::vector<uint32_t>& bits) {
  optim::AdamWScalars scalars;
  std::memcpy(&scalars, bits.data(), sizeof(scalars));
  return scalars;
}

}  // namespace ballast::server
