// See lamb.h. Thread safety: pure functions.
#include "server/optim/lamb.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"

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

float TrustRatio(const TensorSquares& tensor, float min_coeff, float max_coeff) {
  if (!std::isfinite(tensor.p) || !std::isfinite(tensor.u)) return 1.0f;
  if (tensor.p == 0 || tensor.u == 0) return 1.0f;
  const double ratio = std::sqrt(tensor.p) / std::sqrt(tensor.u);
  return static_cast<float>(std::max<double>(min_coeff, std::min<double>(max_coeff, ratio)));
}

float TrustRatio(const TensorSquares& tensor, const Scalars& scalars) {
  BALLAST_CHECK(scalars.count * sizeof(float) == sizeof(LambScalars));
  LambScalars k;
  std::memcpy(&k, scalars.value, sizeof k);
  return TrustRatio(tensor, k.min_coeff, k.max_coeff);
}

Scalars WithRatio(const Scalars& scalars, float ratio) {
  BALLAST_CHECK(scalars.count * sizeof(float) == sizeof(LambScalars));
  Scalars step = scalars;
  step.value[step.count++] = ratio;
  return step;
}

}  // namespace ballast::optim
