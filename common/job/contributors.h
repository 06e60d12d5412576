// Which slots contribute to a group of tensors, and when slots compare their gradients.
// Comes from: the job's specification and the members of an epoch. Goes to: the home, which writes
// the sets into epoch records; servers and clients, which follow the records (decision 031).
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "common/job/job_spec.h"

namespace ballast {

// Which slots contribute to a group's extents, and what their sum is divided by. Each slot of the
// list contributes to each of the extents; on the wire that is CONTRIBUTOR_RULE_EACH.
struct ContributorSet {
  std::vector<uint32_t> slots;  // ascending
  double divisor = 1;

  bool operator==(const ContributorSet&) const = default;
};

// How many of `world` trainers push a gradient: one where it is equal everywhere, else all.
uint32_t ContributorCount(Gradients gradients, uint32_t world);

// The sets of a job's groups for the trainers in `slots`, ascending, at least one. Where gradients
// are reduced already the lowest slot contributes, and its gradient is the mean: the divisor is 1.
std::vector<ContributorSet> ContributorsBy(Gradients gradients, const std::vector<uint32_t>& slots,
                                           uint32_t groups);

// Whether `slot` is in the set.
bool Contributes(const ContributorSet& set, uint32_t slot);

// The most slots that any of the sets has; 0 without sets.
uint32_t MostContributors(const std::vector<ContributorSet>& sets);

// Whether slots send digests of their gradients with `round`, in an epoch that starts with round
// `epoch_start`: of reduced gradients in the first rounds of each epoch, where a new process may be
// wrong, and in each hundredth. A digest costs the slots that push nothing one read of their
// gradient; in one round of a hundred that is below what a round varies by.
bool GradientDigestsDue(Gradients gradients, uint64_t round, uint64_t epoch_start);

}  // namespace ballast
