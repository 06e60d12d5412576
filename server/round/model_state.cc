#include "server/round/model_state.h"

#include <utility>

#include "common/base/status_macros.h"

namespace ballast::server {

absl::StatusOr<ModelState> MakeModelState(const PlacementOptions& options, const Layout& layout,
                                          const std::vector<uint32_t>& owned,
                                          const optim::KernelTable* kernels) {
  std::unique_ptr<StatePlacement> placement = MakePlacement(options);
  BALLAST_RETURN_IF_ERROR(placement->Place(layout, owned, /*version=*/0));
  ExtentStore store(placement->tier(), kernels);
  return ModelState{std::move(placement), std::move(store), Weights(layout, owned)};
}

}  // namespace ballast::server
