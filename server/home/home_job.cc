// The transition table; attach, making and waking, ends. home_job_epochs.cc has the epochs.
#include "server/home/home_job.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/faults/mutant.h"
#include "common/tensor/layout.h"
#include "server/home/home_errors.h"
#include "server/jobs/job_number.h"
#include "server/round/job_plan.h"

namespace ballast::server {
namespace {

constexpr char kLaterCall[] = "a later call of the same trainer took its place";

// The index of T in home::Input.
template <typename T, typename... All>
constexpr size_t IndexIn(const std::variant<All...>*) {
  size_t index = 0;
  (void)((!std::is_same_v<T, All> && (++index, true)) && ...);
  return index;
}

template <typename T, typename Context>
T InputOf(void (HomeJob::*)(const T&, Context*));

JobPlan PlanOfSpec(const JobSpec& spec, const std::string& tenant) {
  return {.spec = spec, .tenant = tenant};
}

Waiter WaiterOf(const home::AttachInput& input) {
  return {.ticket = input.ticket,
          .call = input.call.call,
          .incarnation = input.call.incarnation,
          .identity = input.call.caller.uri()};
}

// The plan of a job that all slots have attached to. `last`: the call that made them complete.
// Every call has a ticket of its own, and later ones have higher ones.
JobPlan NewPlan(const home::Rules& rules, const AttachBarrier& barrier, const std::string& tenant,
                home::Ticket last) {
  JobPlan plan = PlanOfSpec(barrier.spec(), tenant);
  plan.epoch.members = barrier.Members();
  plan.epoch.min_world = barrier.min_world();
  plan.epoch.contributors = ContributorsOf(plan.spec, plan.epoch.members);
  plan.attempt = {rules.incarnation, last};
  plan.job = NewJobNumber(plan.name(), plan.epoch.members, plan.attempt);
  plan.servers = rules.servers;
  const auto layout = Layout::Build(LayoutTensors(plan.spec.tensors), plan.spec.tile_elements,
                                    plan.spec.extent_elements);
  for (const uint32_t index : PlanOwners(*layout, static_cast<uint32_t>(plan.servers.size()))) {
    plan.owner.push_back(plan.servers[index]);
  }
  return plan;
}

Seating::Occupancy OccupancyOf(const JobPlan& plan, Seating::Occupancy variable) {
  return plan.spec.variable_world ? variable : Seating::Occupancy::kInhabited;
}

// Of an attempt to make `plan` that failed: the next one needs the room. A peer that makes the job
// after this order gets another one with its answer.
template <typename Context>
void DropEverywhere(const JobPlan& plan, uint32_t self, Context* step) {
  for (const uint32_t server : plan.servers) {
    if (server != self) step->Do(home::DropAt{server, plan.job});
  }
  step->Do(home::Forget{plan.job});
}

}  // namespace

// --- The table ----------------------------------------------------------------------------------

template <auto handler>
HomeJob::Row HomeJob::On(std::vector<Phase> phases) {
  using T = decltype(InputOf(handler));
  return {std::move(phases), IndexIn<T>(static_cast<const home::Input*>(nullptr)),
          [](HomeJob* job, const home::Input& input, StepContext* step) {
            (job->*handler)(std::get<T>(input), step);
          }};
}

const std::vector<HomeJob::Row>& HomeJob::Table() {
  using H = HomeJob;
  constexpr Phase kAttaching = Phase::kAttaching, kRefused = Phase::kRefused,
                  kMaking = Phase::kMaking, kWaking = Phase::kWaking, kRunning = Phase::kRunning,
                  kSealing = Phase::kSealing, kAdopting = Phase::kAdopting, kEnded = Phase::kEnded;
  static const auto& table = *new std::vector<Row>{
      On<&H::OnFirstAttach>({kAttaching}),
      On<&H::OnRefusedAttach>({kRefused}),
      On<&H::OnAttach>({kMaking, kWaking, kRunning, kSealing, kAdopting, kEnded}),
      On<&H::OnHangUp>({kAttaching, kRunning, kSealing, kAdopting}),
      On<&H::OnAttachDue>({kAttaching, kRefused}),

      On<&H::OnStart>({kMaking, kWaking, kRunning}),
      On<&H::OnMade>({kMaking, kWaking}),
      On<&H::OnSaved>({kMaking}),

      On<&H::OnSeatSeen>({kRunning, kSealing, kAdopting}),
      On<&H::OnSeatDue>({kRunning, kSealing, kAdopting}),
      On<&H::OnSeatFree>({kMaking, kWaking, kRunning, kSealing, kAdopting}),
      On<&H::OnSealed>({kSealing}),
      On<&H::OnAdopted>({kAdopting}),
      On<&H::OnOpened>({kAdopting}),
      On<&H::OnEpochDue>({kRunning, kSealing, kAdopting}),

      On<&H::OnExtend>({kRunning, kSealing, kAdopting, kEnded}),
      // Peers still have to learn of the growth after the job's end.
      On<&H::OnGrown>({kRunning, kSealing, kAdopting, kEnded}),
      On<&H::OnGrowDue>({kRunning, kSealing, kAdopting, kEnded}),

      On<&H::OnEnded>({kMaking, kWaking, kRunning, kSealing, kAdopting}),
      On<&H::OnPeerLost>({kAttaching, kRefused, kMaking, kWaking, kRunning, kSealing, kAdopting}),
      On<&H::OnFail>(
          {kAttaching, kRefused, kMaking, kWaking, kRunning, kSealing, kAdopting, kEnded}),
  };
  return table;
}

void HomeJob::Step(std::chrono::nanoseconds now, const home::Input& input, home::Effects* effects) {
  StepContext step{now, effects};
  for (const Row& row : Table()) {
    if (row.input != input.index()) continue;
    if (std::find(row.phases.begin(), row.phases.end(), phase_) == row.phases.end()) continue;
    row.call(this, input, &step);
    return;
  }
}

// --- Where a job begins -------------------------------------------------------------------------

HomeJob::HomeJob(const home::Rules* rules, Phase phase, JobPlan plan, Seating::Occupancy occupancy)
    : rules_(rules),
      phase_(phase),
      plan_(std::move(plan)),
      seating_(rules, OccupancyOf(plan_, occupancy)),
      growth_(rules) {}

HomeJob HomeJob::New(const home::Rules* rules, const AttachCall& first) {
  HomeJob job(rules, Phase::kAttaching, PlanOfSpec(first.spec, first.caller.tenant()),
              Seating::Occupancy::kInhabited);
  job.barrier_.emplace(first);
  return job;
}

HomeJob HomeJob::Recovered(const home::Rules* rules, const JobPlan& plan, bool making) {
  HomeJob job(rules, making ? Phase::kMaking : Phase::kRunning, plan, Seating::Occupancy::kUnseen);
  job.unconfirmed_ = !making;
  return job;
}

HomeJob HomeJob::Woken(const home::Rules* rules, const JobPlan& plan) {
  return HomeJob(rules, Phase::kWaking, plan, Seating::Occupancy::kEmpty);
}

void HomeJob::OnStart(const home::StartInput&, StepContext* step) {
  if (phase_ != Phase::kRunning) return AskToMake(step);
  // The home's last life may have begun a change and not ended it, and peers may lack the newest
  // record, and the newest layout.
  must_change_ = std::exchange(plan_.sealed_epoch, 0) == plan_.epoch.epoch;
  if (must_change_) BALLAST_PROBE(kChangeTakenUp);
  if (BALLAST_MUTANT(kForgetChange)) must_change_ = false;
  AskPeersToAdopt(step);
  if (growth_.Resume(plan_, step->effects)) ChangeIfDue(step);
}

// --- Queries -------------------------------------------------------------------------------------

bool HomeJob::made() const {
  return phase_ == Phase::kRunning || phase_ == Phase::kSealing || phase_ == Phase::kAdopting ||
         phase_ == Phase::kEnded;
}

bool HomeJob::StartsAnew(const AttachCall& call) const {
  return phase_ == Phase::kRefused &&
         (call.slot >= plan_.spec.world || told_.count(call.slot) != 0);
}

std::optional<HomeJob::Attaching> HomeJob::attaching() const {
  if (seating_.gathers()) {
    const Gathering gathering = seating_.room().GatheringAt(std::chrono::nanoseconds(0));
    if (gathering.asking.empty()) return std::nullopt;
    return Attaching{gathering.world, gathering.Missing()};
  }
  if (phase_ != Phase::kAttaching && phase_ != Phase::kRefused) return std::nullopt;
  return Attaching{plan_.spec.world, barrier_->MissingSlots()};
}

// --- Attach -------------------------------------------------------------------------------------

void HomeJob::OnFirstAttach(const home::AttachInput& input, StepContext* step) {
  const AttachCall& call = input.call;
  const bool first = barrier_->Empty();
  if (const absl::Status status = barrier_->Attach(call); !status.ok()) {
    step->Do(home::RefuseAttach{input.ticket, status});
    const Reason reason = ReasonOf(status);
    const bool disagree = reason == Reason::kSpecMismatch || reason == Reason::kInitMismatch;
    if (disagree) RefuseWorld(call.slot, status, step);
    if (first) phase_ = Phase::kOver;
    return;
  }
  seating_.room()->Wait(call.slot, WaiterOf(input), kLaterCall, step->effects);
  if (first) step->Do(home::Arm{rules_->WaitOf(call), home::AttachDueInput{}});
  if (!barrier_->AllAttached()) return;
  phase_ = Phase::kMaking;
  plan_ = NewPlan(*rules_, *barrier_, plan_.tenant, input.ticket);
  AskToMake(step);
}

// Slots that wait learn at once what would otherwise time out, and slots that come later learn it
// then.
void HomeJob::RefuseWorld(uint32_t slot, const absl::Status& why, StepContext* step) {
  refusal_ = why;
  told_.insert(slot);
  for (uint32_t other = 0; other < plan_.spec.world; ++other) {
    if (seating_.room()->Find(other) != nullptr) told_.insert(other);
  }
  FailWaiting(why, step);
  phase_ = told_.size() == plan_.spec.world ? Phase::kOver : Phase::kRefused;
}

void HomeJob::OnRefusedAttach(const home::AttachInput& input, StepContext* step) {
  step->Do(home::RefuseAttach{input.ticket, refusal_});
  told_.insert(input.call.slot);
  if (told_.size() == plan_.spec.world) phase_ = Phase::kOver;
}

void HomeJob::OnAttach(const home::AttachInput& input, StepContext* step) {
  const AttachCall& call = input.call;
  if (!plan_.epoch.Holds(call.slot, call.incarnation)) {
    if (call.resume != Resume::kNever && IsDurable(plan_)) {
      return seating_.Ask(input, plan_, made(), step->now, step->effects);
    }
    return step->Do(home::RefuseAttach{input.ticket, home::NameTaken(call, plan_, !end_.ok())});
  }
  if (!plan_.epoch.Find(call.slot)->BelongsTo(call.caller)) {
    return step->Do(home::RefuseAttach{input.ticket, home::SeatHeld(plan_.spec.name, call.slot)});
  }
  seating_.OnMember(call.slot, call.incarnation);
  const Waiter waiter = WaiterOf(input);
  if (!made()) {
    seating_.room()->Wait(call.slot, waiter, kLaterCall, step->effects);
  } else if (phase_ == Phase::kSealing || phase_ == Phase::kAdopting) {
    seating_.room()->WaitAsMember(call.slot, waiter, step->effects);
  } else {
    step->Do(home::GiveSeat{input.ticket, call.slot, plan_});
  }
}

void HomeJob::OnHangUp(const home::HangUpInput& input, StepContext* step) {
  const std::optional<uint64_t> caller =
      seating_.room()->HangUp(input.slot, input.call, step->effects);
  if (!caller.has_value() || phase_ != Phase::kAttaching) return;
  barrier_->Cancel(input.slot, *caller);
  if (barrier_->Empty()) phase_ = Phase::kOver;
}

void HomeJob::OnAttachDue(const home::AttachDueInput&, StepContext* step) {
  if (phase_ == Phase::kAttaching) {
    FailWaiting(home::AttachTimedOut(plan_.spec.name, barrier_->MissingSlots(), plan_.spec.world),
                step);
  }
  phase_ = Phase::kOver;
}

// --- Making and waking --------------------------------------------------------------------------

void HomeJob::AskToMake(StepContext* step) {
  tally_.Begin(plan_.servers);
  JobPlan plan = plan_;
  plan.making = phase_ == Phase::kMaking;
  step->Do(home::MakeAt{rules_->self, std::move(plan)});
}

void HomeJob::OnMade(const home::MadeInput& input, StepContext* step) {
  const bool here = input.server == rules_->self;
  if (here && !input.status.ok()) return MadeEverywhere(input.status, step);
  const bool last = tally_.Add(input.server, input.status);
  for (const uint32_t server : plan_.servers) {
    if (!here || server == rules_->self) continue;
    JobPlan plan = plan_;
    plan.making = phase_ == Phase::kMaking;
    step->Do(home::MakeAt{server, std::move(plan)});
  }
  if (last) MadeEverywhere(tally_.first_error(), step);
}

void HomeJob::MadeEverywhere(const absl::Status& status, StepContext* step) {
  if (phase_ == Phase::kWaking) return AwakeEverywhere(status, step);
  const bool must_save = status.ok() && IsDurable(plan_) && plan_.servers.size() > 1;
  must_save ? step->Do(home::SaveRecord{plan_}) : OnSaved({status}, step);
}

void HomeJob::OnSaved(const home::SavedInput& input, StepContext* step) {
  if (!input.status.ok()) {
    FailWaiting(input.status, step);
    DropEverywhere(plan_, rules_->self, step);
    phase_ = Phase::kOver;
    return;
  }
  phase_ = end_.ok() ? Phase::kRunning : Phase::kEnded;
  step->Do(home::ExpectSlots{plan_.job});
  step->Do(
      home::Note{absl::StrCat("job created: world ", plan_.epoch.world(), ", ", plan_.owner.size(),
                              " extents on ", plan_.servers.size(), " servers")});
  if (phase_ == Phase::kEnded) return;
  EndChange(absl::OkStatus(), step);
  seating_.AwaitNewcomers(plan_, step->now, step->effects);
  seating_.AwaitTrainers(plan_, step->effects);
}

void HomeJob::AwakeEverywhere(const absl::Status& status, StepContext* step) {
  if (!status.ok()) {
    FailWaiting(status, step);
    step->Do(home::Release{plan_.job});
    phase_ = Phase::kOver;
    return;
  }
  if (!end_.ok()) {  // It rests again already.
    phase_ = Phase::kEnded;
    return;
  }
  BALLAST_PROBE(kWoken);
  step->Do(home::WakeRecord{plan_.name()});
  // A server may have missed the last epoch before the end; newcomers have their turn after it.
  AskPeersToAdopt(step);
  seating_.AwaitNewcomers(plan_, step->now, step->effects);
  seating_.AwaitTrainers(plan_, step->effects);
}

// --- Growth -------------------------------------------------------------------------------------

void HomeJob::OnExtend(const home::ExtendInput& input, StepContext* step) {
  if (phase_ == Phase::kEnded) return step->Do(home::AnswerExtend{input.ticket, end_});
  bool fatal = false;
  const absl::Status status =
      growth_.Ask(input, plan_, phase_ != Phase::kRunning, &fatal, step->effects);
  if (status.ok()) return ChangeIfDue(step);
  step->Do(home::AnswerExtend{input.ticket, status});
  if (!fatal) return;
  // The slots disagree on the job's layout, so none of them can continue.
  FailWaiting(status, step);
  growth_.DropWishes();
  step->Do(home::FailJob{plan_.job, status});
}

void HomeJob::OnGrown(const home::GrownInput& input, StepContext* step) {
  const uint32_t before = plan_.layout_version;
  const bool over = growth_.OnGrown(input, &plan_, step->effects);
  if (plan_.layout_version != before) seating_.room()->RefuseUngrown(plan_, step->effects);
  if (over) ChangeIfDue(step);
}

void HomeJob::OnGrowDue(const home::GrowDueInput& input, StepContext* step) {
  if (growth_.OnDue(input, &plan_, step->effects)) ChangeIfDue(step);
}

// --- Ends ---------------------------------------------------------------------------------------

void HomeJob::OnEnded(const home::EndedInput& input, StepContext* step) {
  unconfirmed_ = false;
  end_ = input.why;
  if (input.rests && ReasonOf(end_) == Reason::kJobFinished) {
    seating_.room()->AskAgain(plan_.spec.name, step->effects);
  }
  FailWaiting(end_, step);
  if (!made()) return;  // The servers still answer.
  phase_ = Phase::kEnded;
  change_.reset();
  next_.reset();
}

// Seats of a durable job are waited for; its servers come back.
void HomeJob::OnPeerLost(const home::PeerLostInput& input, StepContext* step) {
  if (made() && IsDurable(plan_)) return;
  // A server added to the cluster after this job was made.
  const std::vector<uint32_t>& servers = plan_.servers.empty() ? rules_->servers : plan_.servers;
  if (!std::binary_search(servers.begin(), servers.end(), input.server)) return;
  FailWaiting(home::ServerLost(input.server, input.why), step);
  if (made()) return;
  if (phase_ == Phase::kMaking) DropEverywhere(plan_, rules_->self, step);
  phase_ = Phase::kOver;
}

void HomeJob::OnFail(const home::FailInput& input, StepContext* step) {
  FailWaiting(input.status, step);
}

void HomeJob::FailWaiting(const absl::Status& status, StepContext* step) {
  seating_.room()->FailAll(status, step->effects);
  growth_.FailWaiting(status, step->effects);
}

}  // namespace ballast::server
