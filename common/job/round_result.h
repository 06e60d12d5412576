// RoundResult: how a round ended. All but the last three fields are the same on every server; the
// client takes them from any of them, and compares.
// Comes from: Decide, through the servers' drivers. Goes to: trainers (v1.RoundResult), reports.
// Thread safety: plain values, pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "common/job/decide.h"
#include "common/job/nonfinite.h"
#include "common/job/policy_state.h"

namespace ballast {

struct RoundResult {
  uint64_t round = 0;
  bool applied = false;  // false: skipped or halted, no weights follow
  double grad_norm = 0;  // global 2-norm of the unscaled mean
  double clip_coef = 1;
  double loss_scale = 1;
  uint64_t opt_step = 0;              // applied rounds so far
  uint64_t nonfinite = 0;             // elements of the sums
  bool halted = false;                // not applied, and the trainers get an error
  uint64_t consecutive_skips = 0;     // consecutive rounds not applied, this one included
  Nonfinite first_nonfinite;          // over all servers
  std::optional<PolicyState> policy;  // after the round, where it has version 2
  uint64_t weight_bytes = 0;          // of payload that follows on one server's stream
  uint64_t collect_ns = 0;            // first Begin -> all extents reduced, at one server
  uint64_t vote_ns = 0;               // -> all votes in
};

// The result of a decided round, without the fields that only one server knows.
RoundResult ResultOf(uint64_t round, const Decision& decision);

// The facts about a round not applied.
UnappliedRound UnappliedOf(const RoundResult& result);

}  // namespace ballast
