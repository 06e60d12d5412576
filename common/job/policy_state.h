// PolicyState: the state that outlives a round, other than weights and optimizer state. The loss
// scale and its scaler's memory, the position in the schedule, and the counters of rounds.
// Comes from: Decide. Goes to: votes, logs, snapshots, trainers (v1.Policy).
// Thread safety: plain values, pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/policy/loss_scaler.h"
#include "common/policy/schedule.h"

namespace ballast {

struct JobSpec;

// Versioned, because logs and snapshots carry it. Version 1 has the first three fields; jobs
// without a dynamic loss scale or a schedule never leave it.
struct PolicyState {
  uint32_t version = 1;
  double loss_scale = 1;           // for the next backward pass
  uint64_t opt_step = 0;           // applied rounds
  uint64_t consecutive_skips = 0;  // consecutive rounds not applied

  // Version 2.
  int64_t scaler_iteration = 0;  // as LossScalerState has these four
  int64_t last_overflow = -1;
  int64_t hysteresis_left = 1;
  uint64_t skipped = 0;
  int64_t schedule_index = -1;  // rounds applied since the schedule began, minus one
  // Per group: the rates that the newest round with gradients used, or would have used where it was
  // skipped. Empty before the first; a group added since has no entry.
  std::vector<GroupRates> rates;

  bool operator==(const PolicyState&) const = default;
};

inline constexpr uint32_t kPolicyVersionScheduled = 2;

// The policy state before a job's first round. The spec must be valid, here and below.
PolicyState StartPolicy(const JobSpec& spec);

// How the job scales its loss.
LossScalerConfig LossScalerOf(const JobSpec& spec);

// The scaler's part of a policy state; and back, into `policy`.
LossScalerState ScalerOf(const PolicyState& policy);
void SetScaler(const LossScalerState& scaler, PolicyState* policy);

// One slot's factor on the loss of a round's gradients; 0: unknown.
struct SaidLossScale {
  uint32_t slot = 0;
  double value = 0;
};
// Why a round that begins with `policy` cannot take those gradients: with both values, and the next
// step. Empty: it can. Only a job with a static loss scale permits 0.
std::string LossScaleRefusal(const JobSpec& spec, const PolicyState& policy,
                             const SaidLossScale& said);

}  // namespace ballast
