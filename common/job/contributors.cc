#include "common/job/contributors.h"

#include <algorithm>

namespace ballast {
namespace {

constexpr uint64_t kDigestRounds = 10;
constexpr uint64_t kDigestEvery = 100;

}  // namespace

uint32_t ContributorCount(Gradients gradients, uint32_t world) {
  return gradients == Gradients::kLocal ? world : std::min<uint32_t>(world, 1);
}

std::vector<ContributorSet> ContributorsBy(Gradients gradients, const std::vector<uint32_t>& slots,
                                           uint32_t groups) {
  ContributorSet set{slots, static_cast<double>(slots.size()), ContributorRule::kEach};
  if (gradients == Gradients::kReduced) set = {{slots.front()}, 1, ContributorRule::kEach};
  if (gradients == Gradients::kScattered) set.rule = ContributorRule::kByPosition;
  return std::vector<ContributorSet>(groups, set);
}

std::vector<uint32_t> ContributorsAt(const ContributorSet& set, uint32_t turn) {
  if (set.rule == ContributorRule::kEach) return set.slots;
  return {set.slots[turn % set.slots.size()]};
}

bool Contributes(const ContributorSet& set, uint32_t turn, uint32_t slot) {
  if (set.rule == ContributorRule::kByPosition) {
    return set.slots[turn % set.slots.size()] == slot;
  }
  return std::binary_search(set.slots.begin(), set.slots.end(), slot);
}

uint32_t MostContributors(const std::vector<ContributorSet>& sets) {
  size_t most = 0;
  for (const ContributorSet& set : sets) {
    const bool one = set.rule == ContributorRule::kByPosition;
    most = std::max(most, one ? std::min<size_t>(set.slots.size(), 1) : set.slots.size());
  }
  return static_cast<uint32_t>(most);
}

bool GradientDigestsDue(Gradients gradients, uint64_t round, uint64_t epoch_start) {
  if (gradients != Gradients::kReduced) return false;
  return round < epoch_start + kDigestRounds || round % kDigestEvery == 0;
}

}  // namespace ballast
