// Element types of parameters, gradients and weights on the wire and in memory.
// Comes from: the job's manifest. Goes to: layout, frames, kernels. Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "ballast/types.h"

namespace ballast {

// No element type: of a frame without elements, and of a choice that is left open.
inline constexpr DType kNoDType{};

// Bytes of one element; 0 for kNoDType.
constexpr size_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
  }
  return 0;
}

constexpr const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
  }
  return "unspecified";
}

}  // namespace ballast
