// What a slot may begin a round with, and what the slots must begin it with alike.
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

// Presence bits travel in whole bytes; the zeros behind the last tensor's are no tensors, and go.
void CutPadding(size_t tensors, std::vector<bool>* presence);

// Why a user state is too large, alone or beside those of the other slots, which take
// `others_bytes`; empty: it is not. All slots together may have `all_bytes_max`.
std::string UserStateRefusal(const SlotBegin& theirs, uint64_t others_bytes,
                             uint64_t all_bytes_max);

// How the uploads of round `round` of the job differ: planes, step counts, or weights of one of its
// tensors. Empty: not at all.
std::string UploadDifference(const SlotBegin& ours, const SlotBegin& theirs, uint64_t round,
                             const JobSpec& spec);

// Why a list of `slot` has a wrong length: presence of other than none or all of the job's
// `tensors`, or what only an upload has. Empty: none has.
std::string SizesRefusal(const SlotBegin& slot, size_t tensors);

// Why an upload's step counts, or its position of the schedule, are none of the job's, as the end
// of a sentence. Empty: they are, or there are none.
std::string CountsRefusal(const RoundBegin& begin, const JobSpec& spec);

// Gives a decision the counts that an upload sets, if it does.
void SetCounts(const std::optional<StepCounts>& steps, DecideInput* input);

// Whether both have the same groups, as many keys in each, and the same bits.
bool SameHyper(const std::vector<Hyper>& a, const std::vector<Hyper>& b);

// The first hyper-parameter whose bits differ; empty: none. ValidateHyper has accepted both;
// `keys`: of the job's optimizer.
std::string HyperDifference(const SlotBegin& ours, const SlotBegin& theirs,
                            std::span<const HyperKey> keys);

}  // namespace ballast::server
