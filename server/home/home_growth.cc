#include "server/home/home_growth.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/job/new_names.h"
#include "common/tensor/layout.h"
#include "server/home/attach_barrier.h"
#include "server/round/job_plan.h"

namespace ballast::server {
namespace {

// How soon a server that did not grow is asked again.
constexpr std::chrono::milliseconds kGrowAgain{500};

// The plan of the same job with a grown spec: old extents keep their owners.
absl::StatusOr<JobPlan> GrownPlan(JobPlan plan, JobSpec spec, uint64_t round) {
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  const std::vector<LayoutTensor> all = LayoutTensors(spec.tensors);
  const auto before = static_cast<uint32_t>(plan.spec.tensors.size());
  BALLAST_RETURN_IF_ERROR(layout.Append({all.begin() + before, all.end()}));
  plan.spec = std::move(spec);
  plan.epoch.contributors = ContributorsOf(plan.spec, plan.epoch.members);
  ++plan.layout_version;
  plan.growing = IsDurable(plan);
  plan.grown_round = IsDurable(plan) ? round : 0;
  plan.tensors_before = IsDurable(plan) ? before : 0;
  std::vector<uint32_t> owners;
  for (const uint32_t owner : plan.owner) {
    owners.push_back(static_cast<uint32_t>(
        std::find(plan.servers.begin(), plan.servers.end(), owner) - plan.servers.begin()));
  }
  plan.owner.clear();
  for (const uint32_t index :
       PlanOwners(layout, static_cast<uint32_t>(plan.servers.size()), owners)) {
    plan.owner.push_back(plan.servers[index]);
  }
  return plan;
}

// Whether the call repeats the latest growth: the first answer was lost on the way.
bool AlreadyGrown(const JobPlan& plan, const ExtendCall& call) {
  const auto& tensors = plan.spec.tensors;
  const auto& groups = plan.spec.policy.schedule_group;
  const auto& added = call.schedule_group;
  return IsDurable(plan) && call.base_layout_version + 1 == plan.layout_version &&
         call.group_count == plan.spec.group_count && call.round == plan.grown_round &&
         added.size() <= groups.size() &&
         std::equal(added.rbegin(), added.rend(), groups.rbegin()) &&
         std::equal(call.tensors.begin(), call.tensors.end(), tensors.begin() + plan.tensors_before,
                    tensors.end());
}

ErrorFields FieldsFor(const JobPlan& plan, const ExtendCall& call) {
  return {.job = plan.spec.name, .slot = static_cast<int>(call.slot)};
}

absl::Status Disagrees(const JobPlan& plan, const ExtendCall& call, const std::string& how) {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kLayoutMismatch,
                       absl::StrCat("job \"", plan.spec.name, "\": ", how), FieldsFor(plan, call));
}

}  // namespace

// --- Requests of slots ---------------------------------------------------------------------------

absl::Status HomeGrowth::Ask(const home::ExtendInput& input, const JobPlan& plan, bool changes,
                             bool* fatal, home::Effects* effects) {
  const ExtendCall& call = input.call;
  *fatal = false;
  if (AlreadyGrown(plan, call)) {
    if (busy()) {  // Not everywhere yet.
      Wait(call.slot, input.ticket, effects);
    } else {
      effects->push_back(home::AnswerExtend{input.ticket, plan});
    }
    return absl::OkStatus();
  }
  BALLAST_RETURN_IF_ERROR(Check(call, plan, changes));
  JobSpec spec;
  absl::Status status = SpecOf(call, plan, &spec);
  if (status.ok()) status = Wish(call, plan);
  if (!status.ok()) {
    *fatal = ReasonOf(status) != Reason::kWrongIncarnation;  // Else a leftover, not a trainer.
    return status;
  }
  Wait(call.slot, input.ticket, effects);
  if (wishes_.size() != plan.epoch.members.size()) {
    effects->push_back(home::SlotGrows{plan.job, call.slot, true});
    return absl::OkStatus();
  }
  absl::StatusOr<JobPlan> grown = GrownPlan(plan, std::move(spec), call.round);
  if (!grown.ok()) {
    End(grown.status(), plan, effects);
    return absl::OkStatus();
  }
  phase_ = Phase::kRoom;
  grown_ = *std::move(grown);
  AskServers(grown_, grown_.servers, effects);
  return absl::OkStatus();
}

absl::Status HomeGrowth::Check(const ExtendCall& call, const JobPlan& plan, bool changes) const {
  const ErrorFields fields = FieldsFor(plan, call);
  if (changes || busy()) {
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                         absl::StrCat("job \"", plan.spec.name, "\" changes its ",
                                      busy() ? "layout" : "trainers", "; ask again"),
                         fields);
  }
  // A server that is started again before the first vote on an extent asks for its initial weights,
  // which trainers send with that round.
  if (IsDurable(plan) && (call.round < 2 || call.round == plan.grown_round)) {
    return ReasonedError(
        absl::StatusCode::kUnimplemented, Reason::kUnsupported,
        absl::StrCat("groups cannot be added to durable job \"", plan.spec.name, "\" before round ",
                     call.round, ", in which tensors take part ",
                     "for the first time; give all at once, or run a round first"),
        fields);
  }
  if (call.epoch == plan.epoch.epoch) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
      absl::StrCat("extension in epoch ", call.epoch, ", the job is in ", plan.epoch.epoch),
      fields);
}

absl::Status HomeGrowth::SpecOf(const ExtendCall& call, const JobPlan& plan, JobSpec* grown) const {
  if (call.tensors.empty() || call.group_count <= plan.spec.group_count) {
    return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
                         "an extension must bring new groups with tensors", {});
  }
  BALLAST_RETURN_IF_ERROR(CheckNewNames(call.tensors));
  *grown = plan.spec;
  grown->group_count = call.group_count;
  grown->tensors.insert(grown->tensors.end(), call.tensors.begin(), call.tensors.end());
  std::vector<uint32_t>* const groups = &grown->policy.schedule_group;
  groups->insert(groups->end(), call.schedule_group.begin(), call.schedule_group.end());
  return ValidateJobSpec(*grown, rules_->limits);
}

absl::Status HomeGrowth::Wish(const ExtendCall& call, const JobPlan& plan) {
  // Requests of processes without a seat are dropped.
  std::erase_if(wishes_, [&plan](const auto& wish) {
    return !plan.epoch.Holds(wish.first, wish.second.incarnation);
  });
  if (!plan.epoch.Holds(call.slot, call.incarnation)) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
                         absl::StrCat("job \"", plan.spec.name, "\": slot ", call.slot,
                                      " is held by another process"),
                         FieldsFor(plan, call));
  }
  if (call.base_layout_version != plan.layout_version) {
    return Disagrees(
        plan, call,
        absl::StrCat("slot ", call.slot, " grows layout version ", call.base_layout_version,
                     ", the job is at ", plan.layout_version));
  }
  BALLAST_RETURN_IF_ERROR(CheckWish(call, plan));
  wishes_[call.slot] = call;
  return absl::OkStatus();
}

absl::Status HomeGrowth::CheckWish(const ExtendCall& call, const JobPlan& plan) const {
  const InitDigests digests{call.slot, call.init, call.tensor_crc32c};
  if (wishes_.empty()) return CheckInitDigests(plan.spec.name, call.tensors, digests, nullptr);
  const auto& [other_slot, other] = *wishes_.begin();
  if (other.group_count != call.group_count || !(other.tensors == call.tensors) ||
      other.schedule_group != call.schedule_group || other.init != call.init ||
      other.round != call.round) {
    return Disagrees(plan, call,
                     absl::StrCat("slots ", call.slot, " and ", other_slot,
                                  " add different groups in the same round"));
  }
  const InitDigests others{other_slot, other.init, other.tensor_crc32c};
  return CheckInitDigests(plan.spec.name, call.tensors, digests, &others);
}

void HomeGrowth::Wait(uint32_t slot, home::Ticket ticket, home::Effects* effects) {
  if (const auto before = waiting_.find(slot); before != waiting_.end()) {
    effects->push_back(home::AnswerExtend{
        before->second, absl::CancelledError("a later call of the same trainer took its place")});
  }
  waiting_[slot] = ticket;
}

void HomeGrowth::FailWaiting(const absl::Status& status, home::Effects* effects) {
  for (const auto& [slot, ticket] : std::exchange(waiting_, {})) {
    effects->push_back(home::AnswerExtend{ticket, status});
  }
}

// --- Orders to servers ---------------------------------------------------------------------------

void HomeGrowth::AskServers(const JobPlan& plan, const std::vector<uint32_t>& servers,
                            home::Effects* effects) {
  ++attempt_;
  tally_.Begin(servers);
  for (const uint32_t server : servers) effects->push_back(home::GrowAt{attempt_, server, plan});
}

bool HomeGrowth::AskPeers(const JobPlan& plan, home::Effects* effects) {
  phase_ = Phase::kPeers;
  std::vector<uint32_t> peers = plan.servers;
  std::erase(peers, rules_->self);
  AskServers(plan, peers, effects);
  return peers.empty() && End(absl::OkStatus(), plan, effects);
}

bool HomeGrowth::OnGrown(const home::GrownInput& input, JobPlan* plan, home::Effects* effects) {
  if (!busy() || input.attempt != attempt_) return false;
  return tally_.Add(input.server, input.status) && Advance(plan, effects);
}

bool HomeGrowth::Advance(JobPlan* plan, home::Effects* effects) {
  const absl::Status& status = tally_.first_error();
  if (phase_ == Phase::kPeers) {
    if (status.ok()) return End(status, *plan, effects);
    effects->push_back(home::Note{absl::StrCat("layout version ", plan->layout_version,
                                               " is not everywhere yet: ", status.ToString()),
                                  /*warning=*/true});
    effects->push_back(home::Arm{kGrowAgain, home::GrowDueInput{attempt_}});
    return false;
  }
  if (!status.ok()) return End(status, *plan, effects);
  if (phase_ == Phase::kRoom && grown_.growing) {
    // The home first: once it has the plan, the growth is final.
    grown_.growing = false;
    phase_ = Phase::kRecord;
    AskServers(grown_, {rules_->self}, effects);
    return false;
  }
  *plan = grown_;
  if (phase_ == Phase::kRecord) return AskPeers(*plan, effects);
  return End(status, *plan, effects);
}

bool HomeGrowth::Resume(const JobPlan& plan, home::Effects* effects) {
  return plan.layout_version > 1 && AskPeers(plan, effects);
}

bool HomeGrowth::OnDue(const home::GrowDueInput& due, JobPlan* plan, home::Effects* effects) {
  if (phase_ != Phase::kPeers || due.attempt != attempt_) return false;
  return AskPeers(*plan, effects);
}

// A durable job that could not grow is as it was, and continues.
bool HomeGrowth::End(const absl::Status& status, const JobPlan& plan, home::Effects* effects) {
  phase_ = Phase::kNone;
  wishes_.clear();
  if (!status.ok() && !IsDurable(plan)) effects->push_back(home::FailJob{plan.job, status});
  for (const Member& member : plan.epoch.members) {
    if (status.ok() || !IsDurable(plan)) break;
    effects->push_back(home::SlotGrows{plan.job, member.slot, false});
  }
  for (const auto& [slot, ticket] : std::exchange(waiting_, {})) {
    effects->push_back(
        home::AnswerExtend{ticket, status.ok() ? absl::StatusOr<JobPlan>(plan) : status});
  }
  return true;
}

}  // namespace ballast::server
