// Hyper-parameters as a round carries them.
#pragma once

#include <vector>

namespace ballast::client {

// Raw hyper-parameters of one group for one round (torch param_groups), in the order of the
// optimizer's keys. All slots of a round must give equal bits.
using Hyper = std::vector<double>;
// Those of AdamW and Adam, with torch's defaults.
inline Hyper AdamWHyper(double lr = 1e-3, double beta1 = 0.9, double beta2 = 0.999,
                        double eps = 1e-8, double weight_decay = 1e-2) {
  return {lr, beta1, beta2, eps, weight_decay};
}
// Those of SGD.
inline Hyper SgdHyper(double lr = 1e-3, double momentum = 0, double dampening = 0,
                      double weight_decay = 0) {
  return {lr, momentum, dampening, weight_decay};
}

}  // namespace ballast::client
