// Whether a job outlives its servers. Comes from: home and local jobs. Goes to: nothing. Thread
// safety: pure.
#pragma once

#include "server/round/round_types.h"

namespace ballast::server {

inline bool IsDurable(const JobPlan& plan) { return plan.spec.durability != Durability::kNone; }

}  // namespace ballast::server
