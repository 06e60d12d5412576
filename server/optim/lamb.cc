// See lamb.h. Thread safety: pure functions.
#include "server/optim/lamb.h"

#include <algorithm>
#include <cmath>

namespace ballast::optim {

void AddTile(const TileSquares& tile, TensorSquares* extent) {
  extent->p += static_cast<double>(tile.p);
  extent->u += static_cast<double>(tile.u);
}

TensorSquares SumExtents(std::span<const TensorSquares> extents) {
  TensorSquares tensor;
  for (const TensorSquares& extent : extents) {
    tensor.p += extent.p;
    tensor.u += extent.u;
  }
  return tensor;
}

float TrustRatio(const TensorSquares& tensor, double min_coeff, double max_coeff) {
  if (!std::isfinite(tensor.p) || !std::isfinite(tensor.u)) return 1.0f;
  if (tensor.p == 0 || tensor.u == 0) return 1.0f;
  const double ratio = std::sqrt(tensor.p) / std::sqrt(tensor.u);
  return static_cast<float>(std::max(min_coeff, std::min(max_coeff, ratio)));
}

}  // namespace ballast::optim
