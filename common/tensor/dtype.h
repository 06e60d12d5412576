// Element types of parameters, gradients and weights on the wire and in memory.
// Comes from: the job's manifest. Goes to: layout, frames, kernels. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

// Values are those of ballast.v1.DType in types.proto and of every file format: never renumber.
enum class DType : uint8_t { kUnspecified = 0, kF32 = 1, kBF16 = 2, kF16 = 3 };

// Bytes of one element; 0 for kUnspecified.
constexpr size_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kUnspecified:
      break;
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
    case DType::kUnspecified:
      break;
  }
  return "unspecified";
}

}  // namespace ballast
