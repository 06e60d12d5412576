#include "common/job/contributors.h"

#include <algorithm>

namespace ballast {
namespace {

constexpr uint64_t kDigestRounds = 10;
constexpr uint64_t kDigestEvery = 100;

}  // namespace

uint32_t ContributorCount(Gradients gradients, uint32_t world) {
  return gradients == Gradients::kReduced ? std::min<uint32_t>(world, 1) : world;
}

std::vector<ContributorSet> ContributorsBy(Gradients gradients, const std::vector<uint32_t>& slots,
                                           uint32_t groups) {
  ContributorSet set;
  const uint32_t count = ContributorCount(gradients, static_cast<uint32_t>(slots.size()));
  set.slots.assign(slots.begin(), slots.begin() + count);
  set.divisor = count;
  return std::vector<ContributorSet>(groups, set);
}

bool Contributes(const ContributorSet& set, uint32_t slot) {
  return std::binary_search(set.slots.begin(), set.slots.end(), slot);
}

uint32_t MostContributors(const std::vector<ContributorSet>& sets) {
  size_t most = 0;
  for (const ContributorSet& set : sets) most = std::max(most, set.slots.size());
  return static_cast<uint32_t>(most);
}

bool GradientDigestsDue(Gradients gradients, uint64_t round, uint64_t epoch_start) {
  if (gradients != Gradients::kReduced) return false;
  return round < epoch_start + kDigestRounds || round % kDigestEvery == 0;
}

}  // namespace ballast
