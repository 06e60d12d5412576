#include "server/round/contributor_table.h"

#include <algorithm>

#include "common/faults/mutant.h"

namespace ballast::server {

void ContributorTable::Take(const std::vector<ContributorSet>& sets, const Layout& layout) {
  uploader_.clear();
  slots_.clear();
  for (uint32_t extent = 0; extent < layout.extents().size(); ++extent) {
    const uint32_t turn = BALLAST_MUTANT(kDealtByExtentNumber) ? extent : layout.Turn(extent);
    slots_.push_back(ContributorsAt(sets[layout.extents()[extent].group], turn));
  }
}

bool ContributorTable::Contributes(uint32_t extent, uint32_t slot) const {
  const std::vector<uint32_t>& slots = Of(extent);
  return std::binary_search(slots.begin(), slots.end(), slot);
}

}  // namespace ballast::server
