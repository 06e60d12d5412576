// What LAMB does between its two passes: the squares of a tensor's tiles become one ratio.
// Comes from: the first pass (LambMoments). Goes to: LambApplyScalars of the second pass. The
// exchange between servers, and the log that keeps the ratios, are not here: a ratio travels as
// fp32 bits, and only the lead server forms it. Thread safety: pure functions.
#pragma once

#include <span>

#include "server/optim/step_args.h"

namespace ballast::optim {

// Sums of squares of a tensor's part of one extent, or of the whole tensor.
struct TensorSquares {
  double p = 0.0;  // of the masters before the step
  double u = 0.0;  // of the updates
};

// Adds the next tile of an extent; an extent's tiles come in their order.
void AddTile(const TileSquares& tile, TensorSquares* extent);

// The whole tensor's sums, from those of its extents in the order of their ids.
TensorSquares SumExtents(std::span<const TensorSquares> extents);

// |p| / |u| between min_coeff and max_coeff, in double, rounded to fp32 once; 1 when one of the
// norms is 0, infinite or NaN.
float TrustRatio(const TensorSquares& tensor, double min_coeff, double max_coeff);

}  // namespace ballast::optim
