// The scalars of one AdamW step, from the hyper-parameters a trainer sent.
// Comes from: the decision of a round. Goes to: AdamWScalars in StepArgs, and the log.
// Thread safety: pure function.
#pragma once

#include <cstdint>

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

}  // namespace ballast::optim
