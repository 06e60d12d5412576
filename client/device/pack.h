// Pack and unpack as loops on the host over the functions of elements.h.
// Comes from: HostDevice, and the tests' hostile device. Goes to: the caller's memory.
// Memory traffic: each element is read once and written once. Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "client/device/device.h"

namespace ballast::device {

// INVALID_ARGUMENT when a dtype is none.
absl::Status CheckPacking(const Packing& packing);

// The elements of all pieces.
size_t ElementCount(const Packing& packing);

// Both want a packing that CheckPacking accepts. Where dtypes are equal and the scale is 1, the
// bits stay as they are, NaN payloads included.
void PackOnHost(const Packing& packing);
void UnpackOnHost(const Packing& packing);

}  // namespace ballast::device
