#include "tests/sim/optimizers.h"

#include <span>

namespace ballast::sim {

Optimizer DrawOptimizer(Random* random) {
  return WithOptions(random->Pick(std::span(kOptimizers)).kind, random);
}

Optimizer WithOptions(OptimizerKind kind, Random* random) {
  Optimizer optimizer{kind, {}};
  for (const OptionKey& option : FindOptimizer(kind)->options) {
    if (kind == OptimizerKind::kLamb) {  // lamb.h has the formula of the paper only.
      optimizer.options.push_back(option.initial);
      continue;
    }
    const bool may = option.needs == kNoOption || optimizer.options[option.needs] != 0;
    const bool has = random->OneIn(2) && may;
    optimizer.options.push_back(!has ? 0 : option.is_flag ? 1 : 0.25);
  }
  return optimizer;
}

Hyper HyperFor(const Optimizer& optimizer, double lr, uint32_t group) {
  const double decay = group == 0 ? 0.1 : 0.0;
  switch (optimizer.kind) {
    case OptimizerKind::kSgd:
      return {lr, optimizer.options[kSgdHasMomentum] != 0 ? 0.9 : 0.0, group == 0 ? 0.0 : 0.3,
              decay};
    case OptimizerKind::kAdagrad:
      return {lr, group == 0 ? 0.0 : 0.1, decay, 1e-10};
    case OptimizerKind::kLion:
      return {lr, 0.9, 0.99, decay};
    case OptimizerKind::kApplyDelta:
      return {lr, decay};
    case OptimizerKind::kLamb:
      return {lr, 0.9, 0.999, 1e-8, decay, 10.0, 0.01};
    default:  // AdamW and Adam.
      return {lr, 0.9, 0.999, 1e-8, decay};
  }
}

}  // namespace ballast::sim
