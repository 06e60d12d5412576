// Nonfinite: the first element at which a round's gradient is not finite, and a job's treatment of
// such rounds. It travels in votes and decisions, so every server, every trainer and every replay
// names the same one. Comes from: server/reduce, through the votes. Goes to: Decide, logs,
// RoundResult, error texts. Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/job/job_spec.h"
#include "common/tensor/layout.h"

namespace ballast {

// The fault of an element. Numbers are those of logs and of ballast.v1.NonfiniteKind.
enum class NonfiniteKind : uint32_t {
  kNone = 0,      // everything is finite
  kGradient = 1,  // the slot's own gradient is NaN or Inf
  kSum = 2,       // it is finite, but the fp32 sum in slot order overflows when it is added
  kNorm = 3,      // every sum is finite, but a tile's sum of squares overflows fp32
};

// One element. `slot` is the first, in slot order, after whose contribution the running fp32 sum of
// the element is not finite. Of kNorm: the largest element of the first tile whose squares
// overflow, the first of several, and the slot that contributed most to it.
struct Nonfinite {
  NonfiniteKind kind = NonfiniteKind::kNone;
  uint32_t extent = 0;
  uint32_t element = 0;     // in the extent
  uint32_t slot = 0;        // seat in the job
  uint32_t value_bits = 0;  // fp32: the slot's value, widened; every NaN is 0x7FC00000

  bool operator==(const Nonfinite&) const = default;
};

// Whether `a`, of two elements of a round, is the one to name: any NaN, Inf or overflowing sum
// before an overflowing norm, then flat-space order (extent, element). kNone comes last.
bool ComesBefore(const Nonfinite& a, const Nonfinite& b);

// "tensor "w"[3, 17] (element 65): slot 1's gradient is nan". Any `nonfinite` is safe to pass.
std::string NonfiniteText(const Layout& layout, const JobSpec& spec, const Nonfinite& nonfinite);

// A round not applied.
struct UnappliedRound {
  uint64_t round = 0;
  uint64_t nonfinite = 0;          // elements of the sums
  uint64_t consecutive_skips = 0;  // this round included
  Nonfinite first;
};

// The error for the trainers of a halted round: ABORTED NONFINITE, with the element, why the round
// was not skipped, and the next step. The same text on every server and trainer.
absl::Status HaltError(const Layout& layout, const JobSpec& spec, const UnappliedRound& round);

}  // namespace ballast
