// HomeJob: seats that change hands, and the epochs that this takes. See home_job.h.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/faults/mutant.h"
#include "server/home/home_errors.h"
#include "server/home/home_job.h"

namespace ballast::server {
namespace {

// How soon a server that did not seal or adopt an epoch is asked again.
constexpr std::chrono::milliseconds kAskAgain{500};

}  // namespace

// --- Seats --------------------------------------------------------------------------------------

void HomeJob::OnSeatSeen(const home::SeatSeenInput& input, StepContext* step) {
  seating_.OnSeen(input, plan_, step->now, step->effects);
  ChangeIfDue(step);
}

void HomeJob::OnSeatDue(const home::SeatDueInput& input, StepContext* step) {
  seating_.OnDue(input, plan_, step->effects);
}

void HomeJob::OnSeatFree(const home::SeatFreeInput& input, StepContext* step) {
  const EpochRecord& next = next_.has_value() ? next_->epoch : plan_.epoch;
  seating_.OnFree(input, plan_, next, step->now, step->effects);
  ChangeIfDue(step);
}

// --- Sealing ------------------------------------------------------------------------------------

// The home seals first: should it end now, it knows afterwards that the epoch cannot continue.
void HomeJob::ChangeIfDue(StepContext* step) {
  // Once the change or the growth under way is over, the next change has its turn.
  if (phase_ != Phase::kRunning || growth_.busy()) return;
  if (!must_change_ && !seating_.WantsChange(plan_.epoch)) return;
  phase_ = Phase::kSealing;
  const uint32_t world = seating_.WorldWanted(plan_.epoch);
  change_.emplace(plan_, world);
  ++changes_;
  step->Do(home::SealAt{rules_->self, {plan_.job, plan_.epoch.epoch, world}, changes_});
}

void HomeJob::OnSealed(const home::SealedInput& input, StepContext* step) {
  // An answer to an abandoned change, possibly for another world.
  if (input.change != changes_) return;
  if (!input.answer.ok()) {
    const absl::Status& status = input.answer.status();
    return OnSealFailed(input.server, home::SealError(plan_, rules_->self, input.server, status),
                        step);
  }
  change_->OnSealed(input.server, *input.answer);
  for (const uint32_t server : plan_.servers) {
    if (input.server != rules_->self || server == rules_->self) continue;
    // The others need not keep room that the home does not have.
    const uint32_t granted = change_->Grant().granted;
    step->Do(home::SealAt{server, {plan_.job, plan_.epoch.epoch, granted}, changes_});
    if (BALLAST_MUTANT(kStartFromHome)) change_->OnSealed(server, *input.answer);
  }
  if (change_->AllSealed()) WriteRecord(step);
}

// No round of a sealed epoch can be prepared any more, so the next epoch must come, even if every
// process that asked for it hangs up.
void HomeJob::OnSealFailed(uint32_t server, const absl::Status& status, StepContext* step) {
  const bool finished = ReasonOf(status) == Reason::kJobFinished;
  if (finished) seating_.room()->AskAgain(plan_.spec.name, step->effects);
  EndChange(status, step);
  if (server == rules_->self) return;  // The job is over.
  must_change_ = true;
  if (finished) {  // Every trainer has told that server its end.
    step->Do(home::FailJob{plan_.job, status});
    return;
  }
  step->Do(home::Arm{kAskAgain, home::EpochDueInput{plan_.epoch.epoch}});
}

void HomeJob::OnEpochDue(const home::EpochDueInput& input, StepContext* step) {
  if (input.trainers) {
    // Trainers of a new epoch have the whole time, too. A world that begins again may wait longer
    // for its newcomers than a trainer may take to open its stream.
    const bool later = phase_ != Phase::kRunning || input.epoch != plan_.epoch.epoch ||
                       seating_.room()->occupied();
    if (later) return seating_.AwaitTrainers(plan_, step->effects);
    const absl::Status status = home::NoTrainerCame(plan_, rules_->trainerless);
    return step->Do(home::FailJob{plan_.job, status, /*unless_opened=*/true});
  }
  if (input.epoch != plan_.epoch.epoch) return;
  if (phase_ == Phase::kAdopting) {
    if (!next_.has_value() && tally_.complete()) AskPeersToAdopt(step);
  } else {
    ChangeIfDue(step);
  }
}

// --- Adopting -----------------------------------------------------------------------------------

void HomeJob::WriteRecord(StepContext* step) {
  must_change_ = false;
  const SeatChanges changes = seating_.TakeChanges(plan_, change_->Grant(), step->effects);
  absl::StatusOr<JobPlan> next = change_->NextPlan(changes);
  if (!next.ok()) {
    // No trainer waits for another seal, so this one gives back the room reserved for the refused
    // trainers.
    const EpochRecord& now = plan_.epoch;
    for (const uint32_t server : plan_.servers) {
      step->Do(home::SealAt{server, {plan_.job, now.epoch, now.world()}, changes_});
    }
    return EndChange(next.status(), step);
  }
  // The home first: once it has the record, the epoch is final.
  phase_ = Phase::kAdopting;
  change_.reset();
  next_ = *std::move(next);
  step->Do(home::AdoptAt{rules_->self, *next_});
}

void HomeJob::OnAdopted(const home::AdoptedInput& input, StepContext* step) {
  if (!next_.has_value()) {
    if (input.epoch != plan_.epoch.epoch) return;
    absl::Status status = input.status;
    // A peer without the job: this home went down while the job ended, and there it rests already,
    // perhaps in the epoch before. A peer that lost its files refuses to open it.
    if (absl::IsNotFound(status)) {
      if (opened_.insert(input.server).second) return step->Do(home::OpenAt{input.server, plan_});
      // It has opened the job and started again since: by its record the job rests until it adopts
      // an epoch. It needs no help, so trainers wait.
      status = home::ClosedAgain(plan_.spec.name, input.server);
    }
    if (tally_.Add(input.server, status)) AdoptedEverywhere(tally_.first_error(), step);
    return;
  }
  if (input.server != rules_->self || input.epoch != next_->epoch.epoch) return;
  JobPlan next = *std::exchange(next_, std::nullopt);
  if (!input.status.ok()) {
    if (ReasonOf(input.status) == Reason::kJobFinished) {
      seating_.room()->AskAgain(plan_.spec.name, step->effects);
    }
    return EndChange(input.status, step);
  }
  plan_ = std::move(next);
  AskPeersToAdopt(step);
}

void HomeJob::OnOpened(const home::OpenedInput& input, StepContext* step) {
  if (next_.has_value() || input.epoch != plan_.epoch.epoch) return;
  if (input.status.ok()) return step->Do(home::AdoptAt{input.server, plan_});
  if (tally_.Add(input.server, input.status)) AdoptedEverywhere(tally_.first_error(), step);
}

void HomeJob::AskPeersToAdopt(StepContext* step) {
  phase_ = Phase::kAdopting;
  opened_.clear();
  std::vector<uint32_t> peers = plan_.servers;
  std::erase(peers, rules_->self);
  tally_.Begin(peers);
  for (const uint32_t server : peers) step->Do(home::AdoptAt{server, plan_});
  if (peers.empty()) AdoptedEverywhere(absl::OkStatus(), step);
}

void HomeJob::AdoptedEverywhere(const absl::Status& status, StepContext* step) {
  if (status.ok()) {
    unconfirmed_ = false;
    return EndChange(status, step);
  }
  if (ReasonOf(status) == Reason::kJobFinished) {  // As with a seal.
    return step->Do(home::FailJob{plan_.job, status});
  }
  // The record is final, so the other servers must follow; a server may be away for longer.
  const std::string note = absl::StrCat("epoch ", plan_.epoch.epoch,
                                        " is not adopted everywhere yet: ", status.ToString());
  if (note != std::exchange(not_adopted_, note)) step->Do(home::Note{note, /*warning=*/true});
  if (!absl::IsUnavailable(status)) {  // A server needs help; trainers do not wait for that.
    unconfirmed_ = false;
    FailWaiting(status, step);
  }
  step->Do(home::Arm{kAskAgain, home::EpochDueInput{plan_.epoch.epoch}});
}

void HomeJob::EndChange(const absl::Status& status, StepContext* step) {
  phase_ = Phase::kRunning;
  change_.reset();
  if (!status.ok()) {
    seating_.room()->FailAll(status, step->effects);
    return;
  }
  seating_.Settle(plan_, step->effects);
  ChangeIfDue(step);
}

}  // namespace ballast::server
