// Pack, unpack and measure as loops on the host over the functions of elements.h.
// Comes from: HostDevice, and the tests' hostile device. Goes to: the caller's memory.
// Memory traffic: each element is read once and written once. Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "client/device/device.h"

namespace ballast::device {

// INVALID_ARGUMENT when a dtype is none.
absl::Status CheckPacking(const Packing& packing);
// INVALID_ARGUMENT when the dtype is none or a tile has no whole number of lanes.
absl::Status CheckMeasurement(const Measurement& measurement);

// The elements of all pieces.
size_t ElementCount(const Packing& packing);

// Both want a packing that CheckPacking accepts. Where dtypes are equal and the scale is 1, the
// bits stay as they are, NaN payloads included.
void PackOnHost(const Packing& packing);
void UnpackOnHost(const Packing& packing);
// Wants a measurement that CheckMeasurement accepts.
void MeasureOnHost(const Measurement& measurement);

}  // namespace ballast::device
