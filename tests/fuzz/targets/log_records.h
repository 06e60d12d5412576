// Good records of the log, for the targets that begin from them.
// Comes from: the targets in this folder. Goes to: nothing. Thread safety: pure functions.
#pragma once

#include "server/durability/records/records.h"

namespace ballast::fuzz {

// Of a vote with everything in it, on round 3.
inline server::PreparedRecord GoodPrepared() {
  server::PreparedRecord record{.epoch = 1, .round = 3};
  record.vote.server = 2;
  record.vote.norms = {{.extent = 0, .sumsq = 1}, {.extent = 2, .sumsq = 0.5}};
  record.vote.scalars = {{.group = 1, .step = 3, .bits = {1, 2, 3}}};
  record.present = {true, false, true};
  record.tensor_step = {3, 0, 3};
  record.policy.opt_step = 2;
  record.user_state = {{0, "state"}, {3, "more"}};
  return record;
}

// On the same round.
inline server::DecisionRecord GoodDecision() {
  server::DecisionRecord record{.epoch = 1, .round = 3};
  record.decision.applied = true;
  record.decision.grad_norm = 0.3;
  record.decision.grad_scale = {0.25f, 1.0f};
  record.decision.policy.opt_step = 3;
  return record;
}

}  // namespace ballast::fuzz
