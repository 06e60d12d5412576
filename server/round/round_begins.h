// Checks of the begin of a round: the limits for each slot, and the values on which all slots must
// agree.
// Comes from: RoundFsm. Goes to: the text of its errors. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/job/decide.h"
#include "common/job/job_spec.h"
#include "server/round/round_types.h"

namespace ballast::server {

struct SlotBegin {
  uint32_t slot = 0;
  const RoundBegin& begin;  // borrowed for the call
};

// Presence bits travel in whole bytes; removes the padding after the last tensor's bit.
void CutPadding(size_t tensors, std::vector<bool>* presence);

// Why a user state is too large, alone or together with those of the other slots, which take
// `others_bytes`; empty: it fits. All slots together may have `all_bytes_max`.
std::string UserStateRefusal(const SlotBegin& theirs, uint64_t others_bytes,
                             uint64_t all_bytes_max);

// A required agreement between the begins of two slots that does not hold.
struct BeginDifference {
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
  Reason reason = Reason::kUnspecified;
  std::string text;
};

// How the uploads of a round differ: planes, step counts, or weights of one of the job's tensors.
std::optional<BeginDifference> UploadDifference(const SlotBegin& ours, const SlotBegin& theirs,
                                                const JobSpec& spec);

// How hyper-parameters differ, or, where gradients are reduced, the tensors with a gradient.
// ValidateHyper and SizesRefusal have accepted both.
std::optional<BeginDifference> StepDifference(const SlotBegin& ours, const SlotBegin& theirs,
                                              const JobSpec& spec);

// How reduced gradients differ, by their digests; nothing where one of the two has none.
std::optional<BeginDifference> GradientDifference(const SlotBegin& ours, const SlotBegin& theirs,
                                                  const JobSpec& spec);

// Why a list of `slot` has a wrong length: presence or gradient digests for neither none nor all of
// the job's `tensors`, or a list that only an upload may have. Empty: all lengths are right.
std::string SizesRefusal(const SlotBegin& slot, size_t tensors);

// Why an upload's step counts, or its position in the schedule, do not fit the job, as the end of a
// sentence. Empty: they fit, or it has none.
std::string CountsRefusal(const RoundBegin& begin, const JobSpec& spec);

// Gives a decision the step counts of an upload, if it sets any.
void SetCounts(const std::optional<StepCounts>& steps, DecideInput* input);

// Whether both have equally many groups, equally many keys in each, and the same bits.
bool SameHyper(const std::vector<Hyper>& a, const std::vector<Hyper>& b);

}  // namespace ballast::server
