// What LAMB does between its two passes: the squares of a tensor's tiles become one ratio.
// Comes from: the first pass (LambSquares). Goes to: LambStepScalars of the second pass. The
// squares travel between servers, and every server forms the same ratios of them: sqrt, division
// and the limits are exact operations of IEEE 754. Thread safety: pure functions.
#pragma once

#include <span>

#include "server/optim/scalars.h"
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

// |p| / |u| in double, between min_coeff and max_coeff, rounded to fp32 once; 1 when one of the
// norms is 0, infinite or NaN. The limits are those of LambScalars.
float TrustRatio(const TensorSquares& tensor, float min_coeff, float max_coeff);
// The same with the limits of LAMB's `scalars` (BALLAST_CHECK).
float TrustRatio(const TensorSquares& tensor, const Scalars& scalars);

// LAMB's scalars (BALLAST_CHECK) followed by the ratio: arguments of the second pass.
Scalars WithRatio(const Scalars& scalars, float ratio);

}  // namespace ballast::optim
