// The rates of a job's groups in one round: the trainers' own hyper-parameters, or those of the
// job's schedule.
// Comes from: RoundFsm of the lead server. Goes to: its vote, as rates and as scalars.
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "common/job/job_spec.h"
#include "common/job/policy_state.h"

namespace ballast {

// A scheduled beta1 is at most this, or the schedule's largest momentum if greater: decay_mom_rate
// raises it without end, and at 1 the step would divide by 0.
inline constexpr double kScheduledBetaMax = 0.999;

// Rates per group of a round that begins with `policy`; `own` has the hyper-parameters that the
// trainers gave. Betas of kinds without them are 0. libm is called: only one server may do so.
std::vector<GroupRates> RatesOf(const JobSpec& spec, const PolicyState& policy,
                                const std::vector<Hyper>& own);

// `own` with the rates in place of its lr and betas.
std::vector<Hyper> WithRates(const JobSpec& spec, std::vector<Hyper> own,
                             const std::vector<GroupRates>& rates);

}  // namespace ballast
