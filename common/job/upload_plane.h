// What the bytes of an upload are: a round in which the lead trainer pushes something else than
// gradients. A plane is so much of one state array as an extent's wire dtype holds per element.
// Where that is fp32, one plane carries an array's 32 bits; where it is bf16 or fp16, two do, the
// high half first. Comes from: RoundBegin. Goes to: the FSM, PREPARED and DECISION, ExtentStore,
// the client. Thread safety: constants and plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor/dtype.h"

namespace ballast {

// Numbers are in the log, and equal ballast.v1.StatePlane from kP on.
enum class UploadPlane : uint8_t {
  kNone = 0,     // a step: what is pushed are gradients
  kWeights = 1,  // p becomes the exact fp32 value of what is pushed
  // Bits as they are, of array p, m or v: all 32 of them, or the high 16.
  kP = 2,
  kPLow = 3,  // the low 16; fp32 extents have none
  kM = 4,
  kMLow = 5,
  kV = 6,
  kVLow = 7,
};
inline constexpr uint32_t kUploadPlaneMax = 7;

constexpr bool IsUpload(UploadPlane plane) { return plane != UploadPlane::kNone; }
// Whether bits of a state array are pushed, and not values of weights.
constexpr bool IsStatePlane(UploadPlane plane) { return plane >= UploadPlane::kP; }
constexpr bool IsLowPlane(UploadPlane plane) {
  return IsStatePlane(plane) && static_cast<uint32_t>(plane) % 2 != 0;
}
// The state array (0 p, 1 m, 2 v) of a state plane.
constexpr uint32_t ArrayOf(UploadPlane plane) { return (static_cast<uint32_t>(plane) - 2) / 2; }
// Whether tensors of this wire dtype are part of the plane.
constexpr bool Carries(UploadPlane plane, DType dtype) {
  return !IsLowPlane(plane) || dtype != DType::kF32;
}
// As in messages: what a slot uploads. "weights", "the low half of masters".
const char* UploadPlaneText(UploadPlane plane);

// Step counts that an upload sets.
struct StepCounts {
  std::vector<uint64_t> tensor;  // per tensor
  uint64_t opt_step = 0;

  bool operator==(const StepCounts&) const = default;
};
// More than anybody runs, and small enough for all that is computed with them.
inline constexpr uint64_t kStepCountMax = uint64_t{1} << 53;

}  // namespace ballast
