// Scalars of a step as the fp32 bit patterns that travel in votes and in the log.
// Comes from: server/optim. Goes to: votes, decisions, the step. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "server/optim/scalars.h"

namespace ballast::server {

// Bits in the order of the kind's struct in step_args.h.
inline std::vector<uint32_t> ScalarsToBits(const optim::Scalars& scalars) {
  std::vector<uint32_t> bits(scalars.count);
  std::memcpy(bits.data(), scalars.value, scalars.count * sizeof(float));
  return bits;
}

// Inverse of ScalarsToBits. Empty when `bits` are not as many as `kind` has.
inline std::optional<optim::Scalars> ScalarsFromBits(OptimizerKind kind,
                                                     const std::vector<uint32_t>& bits) {
  optim::Scalars scalars{.value = {}, .count = bits.size()};
  if (scalars.count != optim::ScalarCount(kind)) return std::nullopt;
  std::memcpy(scalars.value, bits.data(), scalars.count * sizeof(float));
  return scalars;
}

}  // namespace ballast::server
