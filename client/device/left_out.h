// Marks in pipeline.cc for its tests, as common/faults/mutant.h has them for the simulator:
// BALLAST_LEFT_OUT(kName) is the constant false; in pipeline_mutants_test it asks whether this
// call is left out on purpose. Thread safety: none in that test; elsewhere nothing.
#pragma once

#include <cstdint>

namespace ballast::device {

// One wait, record or check of the pipeline each.
enum class LeftOut : uint8_t {
  kNone,
  kGradientReadyWait,
  kKeepGradient,
  kPackedRecord,
  kPackedWait,
  kCopiedRecord,
  kCopiedSync,
  kAbandonedSync,
  kBufferHeld,
  kLandedSync,
  kUnpackedWait,
  kLandedRecord,
  kLandedWait,
  kWeightsUnusedWait,
  kKeepWeights,
  kUnpackedRecord,
  kHandOverRecord,
  kHandOverWait,
  kDrainRecord,
  kDrainSync,
  kRecutSync,
  kCount,
};

#ifdef BALLAST_DEVICE_MUTANTS
bool IsLeftOut(LeftOut call);
#define BALLAST_LEFT_OUT(name) (::ballast::device::IsLeftOut(::ballast::device::LeftOut::name))
#else
#define BALLAST_LEFT_OUT(name) false
#endif

}  // namespace ballast::device
