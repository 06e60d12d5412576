// Reports the policy to trainers outside of rounds: when they attach, and with the state.
// Comes from: the FSM's policy state, the newest decision. Goes to: SeatState, StateInfo.
// Thread safety: pure functions.
#pragma once

#include <optional>

#include "server/durability/records/records.h"
#include "server/round/round_types.h"

namespace ballast::server {

// Nothing while the policy state has version 1. `last`: of the newest decided round.
inline std::optional<PolicyReport> PolicyReportOf(const PolicyState& policy,
                                                  const std::optional<DecisionRecord>& last) {
  if (policy.version < kPolicyVersionScheduled) return std::nullopt;
  PolicyReport report{policy, Nonfinite()};
  if (last.has_value()) report.why_skipped = last->decision.first_nonfinite;
  return report;
}

}  // namespace ballast::server
