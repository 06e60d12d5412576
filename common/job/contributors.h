// Which slots contribute to a group of tensors, and when slots compare their gradients.
// Comes from: the job's specification and the members of an epoch. Goes to: the home, which writes
// the sets into epoch records; servers and clients, which follow the records (decision 031).
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "common/job/job_spec.h"

namespace ballast {

// Which slots of a set contribute to which of the group's extents. Numbers equal
// ballast.v1.ContributorRule.
enum class ContributorRule : uint8_t {
  kEach = 0,  // each slot, to each extent
  // Exactly one slot to each extent: the extents of a flat space are dealt to the slots in turn, in
  // push order (Layout::Turn). It pushes the sum over all slots already.
  kByPosition = 1,
};

// Which slots contribute to a group's extents, and the divisor of their sum.
struct ContributorSet {
  std::vector<uint32_t> slots;  // ascending
  double divisor = 1;
  ContributorRule rule = ContributorRule::kEach;

  bool operator==(const ContributorSet&) const = default;
};

// How many of `world` trainers push a gradient of one extent: one where the servers get a sum or a
// mean, else all.
uint32_t ContributorCount(Gradients gradients, uint32_t world);

// The sets of a job's groups for the trainers in `slots`, ascending, at least one. Where gradients
// are reduced already the lowest slot contributes, and its gradient is the mean: the divisor is 1.
// Where they are scattered, extents are dealt to all slots, and the divisor is their number: no
// trainer divides, so that the servers divide the same sum by the same factor as without.
std::vector<ContributorSet> ContributorsBy(Gradients gradients, const std::vector<uint32_t>& slots,
                                           uint32_t groups);

// The slots that contribute to an extent, ascending. `turn`: the extent's Layout::Turn. The set has
// at least one slot.
std::vector<uint32_t> ContributorsAt(const ContributorSet& set, uint32_t turn);
// Whether `slot` is one of them.
bool Contributes(const ContributorSet& set, uint32_t turn, uint32_t slot);

// The most slots that contribute to one extent of any of the sets; 0 without sets.
uint32_t MostContributors(const std::vector<ContributorSet>& sets);

// Whether slots send digests of their gradients with `round`, in an epoch that starts with round
// `epoch_start`: of reduced gradients in the first rounds of each epoch, where a new process may be
// wrong, and in each hundredth. A digest costs the slots that push nothing one read of their
// gradient; once in a hundred rounds, this is below the variation between rounds.
bool GradientDigestsDue(Gradients gradients, uint64_t round, uint64_t epoch_start);

}  // namespace ballast
