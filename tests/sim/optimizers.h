// The optimizer of a job that a seed draws, and its hyper-parameters.
// Comes from: a seed. Goes to: the references of the simulator and of the kill storm, and their
// jobs. Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "common/job/optimizer.h"
#include "tests/sim/world/random.h"

namespace ballast::sim {

// Any kind, with any of its options; LAMB as in the paper.
Optimizer DrawOptimizer(Random* random);
// That kind, with any of its options.
Optimizer WithOptions(OptimizerKind kind, Random* random);

// Raw hyper-parameters of `group`. Group 0 decays its weights; the groups differ in what their kind
// has.
Hyper HyperFor(const Optimizer& optimizer, double lr, uint32_t group);

}  // namespace ballast::sim
