// The hyper-parameters that the groups of a job may have.
// Comes from: ValidateHyper, for each round that a trainer begins. Goes to: the text of its error.
// Thread safety: a pure function.
#pragma once

#include <string>

#include "common/job/optimizer.h"

namespace ballast {

// Why no group of a job of the kind `row` with these `options` can have the values `hyper`, in the
// order of the row's keys: as a text to follow "group 3". Empty: one can.
std::string HyperRefusal(const OptimizerRow& row, const Options& options, const Hyper& hyper);

}  // namespace ballast
