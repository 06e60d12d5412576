#include "server/home/epoch_change.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/mutant.h"
#include "server/round/job_plan.h"

namespace ballast::server {
namespace {

std::vector<ContributorSet> NextContributors(const JobSpec& spec,
                                             const std::vector<Member>& members) {
  const bool one = spec.gradients == Gradients::kReduced;
  if (BALLAST_MUTANT(kForgetRuleAtEpoch)) return AllContribute(members, spec.group_count);
  const bool shares = spec.gradients == Gradients::kScattered;
  std::vector<ContributorSet> sets = ContributorsOf(spec, members);
  if (BALLAST_MUTANT(kTakeReducedFromAll) && one) sets = AllContribute(members, spec.group_count);
  const bool undivided =
      (BALLAST_MUTANT(kTakeReducedFromAll) && one) || (BALLAST_MUTANT(kSharesAreMeans) && shares);
  for (ContributorSet& set : sets) set.divisor = undivided ? 1 : set.divisor;
  return sets;
}

}  // namespace

absl::StatusOr<uint64_t> EpochChange::StartRound() const {
  uint64_t newest = 0;
  for (const auto& [server, answer] : answers_) newest = std::max(newest, answer.version);
  bool all_prepared = true;
  for (const auto& [server, answer] : answers_) {
    all_prepared = all_prepared && answer.version == newest && answer.prepared;
    const bool follows =
        answer.version == newest || (answer.version + 1 == newest && answer.prepared);
    if (follows) continue;
    return ReasonedError(
        absl::StatusCode::kDataLoss, Reason::kStateLost,
        absl::StrCat(
            "job \"", plan_.spec.name, "\": server ", server, " is at round ", answer.version,
            " while another is at ", newest,
            ". The data directory of one of them was replaced or rolled back: put back the right "
            "one, or delete the job (ballastctl jobs delete)"),
        {.job = plan_.spec.name, .round = newest, .server = static_cast<int>(server)});
  }
  return all_prepared ? newest + 1 : newest;
}

WorldGrant EpochChange::Grant() const {
  WorldGrant grant{.wanted = world_, .granted = world_, .refusal = {}};
  for (const auto& [server, answer] : answers_) {
    if (answer.world_max >= grant.granted) continue;
    grant.granted = answer.world_max;
    grant.refusal = answer.refusal;
  }
  return grant;
}

std::vector<Member> EpochChange::NextMembers(const SeatChanges& changes, bool keep_lead) const {
  std::map<uint32_t, Member> seats;
  for (const Member& member : plan_.epoch.members) {
    const bool uploads = keep_lead && member.slot == plan_.epoch.lead_trainer();
    if (uploads || changes.gone.count(member.slot) == 0) seats[member.slot] = member;
  }
  for (const auto& [slot, incarnation] : changes.newcomers) {
    const auto identity = changes.identities.find(slot);
    seats[slot] = {slot, incarnation,
                   identity == changes.identities.end() ? std::string() : identity->second};
  }
  if (seats.empty()) return plan_.epoch.members;
  uint32_t least = changes.min_world != 0 ? changes.min_world : plan_.epoch.min_world;
  if (BALLAST_MUTANT(kShrinkTooFar)) least = 1;
  for (const Member& member : plan_.epoch.members) {
    if (seats.size() < least) seats.emplace(member.slot, member);
  }
  std::vector<Member> members;
  for (const auto& [slot, member] : seats) members.push_back(member);
  return members;
}

bool MayShrink(const EpochRecord& epoch, const std::map<uint32_t, uint64_t>& gone) {
  uint32_t stay = 0;
  for (const Member& member : epoch.members) {
    const auto it = gone.find(member.slot);
    if (it == gone.end() || it->second != member.incarnation) ++stay;
  }
  const uint32_t least = BALLAST_MUTANT(kShrinkTooFar) ? 1 : epoch.min_world;
  return stay != epoch.world() && stay >= std::max(least, uint32_t{1});
}

std::vector<uint32_t> Gathering::Missing() const {
  std::vector<uint32_t> missing;
  for (uint32_t slot = 0; slot < world; ++slot) {
    if (asking.count(slot) == 0) missing.push_back(slot);
  }
  return missing;
}

absl::StatusOr<JobPlan> EpochChange::NextPlan(const SeatChanges& changes) const {
  BALLAST_CHECK(AllSealed());
  const bool init_missing = std::any_of(answers_.begin(), answers_.end(),
                                        [](const auto& of) { return of.second.init_missing; });
  JobPlan next = plan_;
  EpochRecord& epoch = next.epoch;
  ++epoch.epoch;
  BALLAST_ASSIGN_OR_RETURN(epoch.start_round, StartRound());
  const uint64_t start = epoch.start_round;
  const bool may_lose_init = start == 1 || start == plan_.grown_round;
  epoch.members = NextMembers(changes, init_missing || may_lose_init);
  // A newcomer cannot raise the minimum above the present world, or the present trainers would have
  // to stop.
  if (changes.min_world != 0) epoch.min_world = std::min(changes.min_world, epoch.world());
  epoch.contributors = NextContributors(plan_.spec, epoch.members);
  const Member& lead = epoch.members.front();
  epoch.init_again = init_missing && !plan_.epoch.Holds(lead.slot, lead.incarnation);
  next.sealed_epoch = 0;
  next.resting = false;
  next.resting_round = 0;
  return next;
}

}  // namespace ballast::server
