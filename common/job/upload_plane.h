// The content of an upload: a round in which the lead trainer pushes something else than gradients.
// A plane is so much of one state array as an extent's wire dtype holds per element. With fp32, one
// plane carries an array's 32 bits; with bf16 or fp16, two do, the high half first. Comes from:
// RoundBegin. Goes to: the FSM, PREPARED and DECISION, ExtentStore, the client. Thread safety:
// constants and plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/job/optimizer.h"
#include "common/tensor/dtype.h"

namespace ballast {

// Numbers are in the log, and equal ballast.v1.StatePlane from kMaster on.
enum class UploadPlane : uint8_t {
  kNone = 0,     // a step: gradients are pushed
  kWeights = 1,  // p becomes the exact fp32 value of the push
  // Bits of the master weight as they are: all 32 of them, or the high 16. The arrays after it
  // follow by twos, see StatePlaneOf.
  kMaster = 2,
  kMasterLow = 3,  // the low 16; fp32 extents have none
};
inline constexpr uint32_t kUploadPlaneMax = 1 + 2 * kStateArraysMax;

// The plane of state array `array` (0: the master weight), or its low half.
constexpr UploadPlane StatePlaneOf(uint32_t array, bool low = false) {
  return static_cast<UploadPlane>(2 + 2 * array + (low ? 1 : 0));
}

constexpr bool IsUpload(UploadPlane plane) { return plane != UploadPlane::kNone; }
// Whether bits of a state array are pushed, and not values of weights.
constexpr bool IsStatePlane(UploadPlane plane) { return plane >= UploadPlane::kMaster; }
constexpr bool IsLowPlane(UploadPlane plane) {
  return IsStatePlane(plane) && static_cast<uint32_t>(plane) % 2 != 0;
}
// The state array of a state plane; 0 is the master weight.
constexpr uint32_t ArrayOf(UploadPlane plane) { return (static_cast<uint32_t>(plane) - 2) / 2; }
// Whether tensors of this wire dtype are part of the plane.
constexpr bool Carries(UploadPlane plane, DType dtype) {
  return !IsLowPlane(plane) || dtype != DType::kF32;
}
// Name of a slot's upload in messages: "weights", "the low half of masters". `arrays`: those of the
// job after the master; a plane of none of them is called by its number.
std::string UploadPlaneText(UploadPlane plane, std::span<const StateArray> arrays);

// Step counts that an upload sets.
struct StepCounts {
  std::vector<uint64_t> tensor;  // per tensor
  uint64_t opt_step = 0;
  // Of a job with a schedule: PolicyState::schedule_index. None: it stays.
  std::optional<int64_t> schedule_index;

  bool operator==(const StepCounts&) const = default;
};
// More than anybody runs, and small enough for all arithmetic with them.
inline constexpr uint64_t kStepCountMax = uint64_t{1} << 53;
// Why a job refuses such a position, as the end of a sentence; empty: it accepts it, or there is
// none. `scheduled`: the job has a schedule.
std::string ScheduleIndexRefusal(std::optional<int64_t> index, bool scheduled);

}  // namespace ballast
