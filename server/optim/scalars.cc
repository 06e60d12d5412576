// See scalars.h. Thread safety: pure function.
#include "server/optim/scalars.h"

#include <cmath>

namespace ballast::optim {

AdamWScalars MakeAdamWScalars(double lr, double beta1, double beta2, double eps,
                              double weight_decay, uint64_t step) {
  const double t = static_cast<double>(step);
  const double bias_correction1 = 1.0 - std::pow(beta1, t);
  const double bias_correction2 = 1.0 - std::pow(beta2, t);
  AdamWScalars k;
  k.decay = static_cast<float>(1.0 - lr * weight_decay);
  k.w1 = static_cast<float>(1.0 - beta1);
  k.b2 = static_cast<float>(beta2);
  k.w2 = static_cast<float>(1.0 - beta2);
  // Not sqrt: torch raises to 0.5, and the two differ in the last bit now and then.
  k.den = static_cast<float>(std::pow(bias_correction2, 0.5));
  k.eps = static_cast<float>(eps);
  k.neg_step_size = static_cast<float>(-(lr / bias_correction1));
  return k;
}

}  // namespace ballast::optim
