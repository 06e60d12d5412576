// The scalars of one step, from the hyper-parameters a trainer sent.
// Comes from: the hyper-parameters of a round. Goes to: votes, decisions, the log, RunArgs.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/job/optimizer.h"
#include "server/optim/step_args.h"

namespace ballast::optim {

// The seven fp32 scalars of step `step` (1 is the first). Everything is formed in double, with
// pow(beta, step) and never a running product, and rounded to fp32 exactly once, as torch does with
// its Python floats:
//   bc1 = 1 - beta1^step, bc2 = 1 - beta2^step
//   decay = 1 - lr * weight_decay, neg_step_size = -(lr / bc1), den = pow(bc2, 0.5)
// libm's pow may differ in the last bit between hosts: one server forms the scalars of a round and
// all others use its bits. Values are not checked here; JobSpec validation does that.
AdamWScalars MakeAdamWScalars(double lr, double beta1, double beta2, double eps,
                              double weight_decay, uint64_t step);

// The scalars of any kind, in the order of its struct in step_args.h.
struct Scalars {
  float value[kScalarsMax];
  size_t count;
};

// The scalars of one group's tensors in their step `step` (1 is the first), formed as above.
// `options` and `hyper` have a value for every entry of the kind's row, in its ranges; the values
// are not checked. `kind` is in the table (BALLAST_CHECK).
Scalars MakeScalars(OptimizerKind kind, std::span<const double> options,
                    std::span<const double> hyper, uint64_t step);

// How many there are of a kind in the table (BALLAST_CHECK).
size_t ScalarCount(OptimizerKind kind);

// The factor that a job's gradients are multiplied by: `scale`, negated when the job maximizes.
float GradFactor(OptimizerKind kind, std::span<const double> options, float scale);

}  // namespace ballast::optim
