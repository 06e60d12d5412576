#include "server/engine/plan_changes.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/faults/mutant.h"

namespace ballast::server {

// --- Epochs -------------------------------------------------------------------------------------

void PlanChanges::Seal(uint32_t epoch, std::function<absl::Status(const JobPlan& sealed)> save,
                       std::function<void(absl::StatusOr<SealAnswer>)> done) {
  deps_.strand->Post([this, sealing = Sealing{epoch, std::move(save), std::move(done)}] {
    SealWhenPrepared(sealing);
  });
}

void PlanChanges::SealWhenPrepared(const Sealing& sealing) {
  const auto& [epoch, save, done] = sealing;
  if (!rounds_->failure().ok()) return done(rounds_->failure());
  if (epoch != fsm_->plan().epoch.epoch) {
    const bool stale = epoch < fsm_->plan().epoch.epoch;
    return done(ReasonedError(absl::StatusCode::kFailedPrecondition,
                              stale ? Reason::kStaleEpoch : Reason::kFutureEpoch,
                              absl::StrCat("seal of epoch ", epoch, ", server ", deps_.config.self,
                                           " is in epoch ", fsm_->plan().epoch.epoch),
                              {.job = fsm_->plan().spec.name, .round = fsm_->round()}));
  }
  rounds_->Feed(SealInput{});
  const std::optional<SealAnswer> answer = fsm_->Sealed();
  if (!answer.has_value()) {
    BALLAST_PROBE(kSealWaits);
    deps_.waiters->Add(Waiters::kDurable, [this, sealing] { SealWhenPrepared(sealing); });
    return;
  }
  JobPlan sealed = fsm_->plan();
  sealed.sealed_epoch = BALLAST_MUTANT(kSealNotSaved) ? 0 : epoch;
  BALLAST_FAILPOINT("seal.before_save");
  if (const absl::Status saved = save(sealed); !saved.ok()) {
    // First: the home sees an absent server, and asks again.
    rounds_->StorageFailed(saved);
    return done(saved);
  }
  BALLAST_FAILPOINT("seal.after_save");
  done(*answer);
}

void PlanChanges::Adopt(Adoption adoption) {
  deps_.strand->Post([this, adoption = std::move(adoption)] { AdoptWhenOver(adoption); });
}

void PlanChanges::AdoptWhenOver(const Adoption& adoption) {
  const EpochRecord& epoch = adoption.plan.epoch;
  if (!rounds_->failure().ok() || epoch.epoch <= fsm_->plan().epoch.epoch)
    return adoption.done(rounds_->failure());
  if (fsm_->round() < epoch.start_round) {  // The round before it is decided and ends soon.
    BALLAST_PROBE(kAdoptWaits);
    deps_.waiters->Add(Waiters::kApplied, [this, adoption] { AdoptWhenOver(adoption); });
    return;
  }
  if (BALLAST_MUTANT(kAdoptUnflushed)) return AdoptFlushed(adoption);
  // The record says that the rounds before it are over, so their decisions must be durable first.
  adopting_.push_back(adoption);
  rounds_->log()->EndEpoch(epoch.start_round,
                           deps_.strand->Callback([this](const absl::Status& status) {
                             if (adopting_.empty()) return;  // The job has ended meanwhile.
                             const Adoption flushed = std::move(adopting_.front());
                             adopting_.pop_front();
                             if (status.ok()) {
                               AdoptFlushed(flushed);
                             } else {
                               rounds_->StorageFailed(status);
                             }
                           }));
}

void PlanChanges::AdoptFlushed(const Adoption& adoption) {
  const bool over = adoption.plan.epoch.epoch <= fsm_->plan().epoch.epoch;
  if (!rounds_->failure().ok() || over) return adoption.done(rounds_->failure());
  if (deps_.reducer->busy()) {  // The workers still read registers to be given back.
    deps_.waiters->Add(Waiters::kReduced, [this, adoption] { AdoptFlushed(adoption); });
    return;
  }
  // Before anything is sent or taken in the new epoch. If the record may or may not be on disk, no
  // answer is right: the process ends, and the home asks the next one.
  BALLAST_FAILPOINT("epoch.before_save");
  if (absl::Status saved = adoption.save(); !saved.ok()) return rounds_->StorageFailed(saved);
  BALLAST_FAILPOINT("epoch.after_save");
  Effects effects;
  const absl::Status adopted =
      rounds_->EnterEpoch(adoption.plan, adoption.window_extents, &effects);
  // Before the effects: they end the job if its last members have left, and its owner saves the
  // epoch of that end.
  adoption.done(adopted);
  rounds_->CarryOut(effects);
}

// --- Growth -------------------------------------------------------------------------------------

void PlanChanges::Extend(Extension extension) {
  deps_.strand->Post([this, extension = std::move(extension)] { GrowWhenOver(extension); });
}

void PlanChanges::SlotGrows(uint32_t slot, bool grows) {
  deps_.strand->Post([this, slot, grows] {
    if (slot < fsm_->plan().epoch.seats()) rounds_->Feed(SlotGrowsInput{slot, grows});
  });
}

void PlanChanges::GrowWhenOver(const Extension& extension) {
  const JobPlan& plan = extension.plan;
  if (!rounds_->failure().ok()) return extension.done(rounds_->failure());
  if (absl::Status status = CheckPlan(plan); !status.ok()) return extension.done(status);
  if (!fsm_->durable())
    return extension.done(rounds_->TakeGrown(plan, extension.window_extents, rounds_->log()));
  const JobPlan& ours = fsm_->plan();
  if (plan.layout_version == ours.layout_version && FirstDifference(ours.spec, plan.spec).empty()) {
    return extension.done(absl::OkStatus());  // The home asks again.
  }
  if (plan.epoch.epoch != ours.epoch.epoch) {
    return extension.done(
        ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                      absl::StrCat("server ", deps_.config.self, " is in epoch ", ours.epoch.epoch,
                                   ", the job grows in epoch ", plan.epoch.epoch),
                      {.job = ours.spec.name, .server = static_cast<int>(deps_.config.self)}));
  }
  if (fsm_->round() < plan.grown_round) {  // The round before it is decided and ends soon.
    deps_.waiters->Add(Waiters::kApplied, [this, extension] { GrowWhenOver(extension); });
    return;
  }
  deps_.placement->Quiesce([this, extension] { GrowNow(extension); });
}

void PlanChanges::GrowNow(const Extension& extension) {
  if (!rounds_->failure().ok()) return extension.done(rounds_->failure());
  absl::Status status = grown_.Make(extension.plan, extension.files,
                                    {fsm_, deps_.placement, &rounds_->last_decision()});
  if (status.ok() && !extension.plan.growing) status = CommitGrown(extension);
  extension.done(status);
}

// Once the record is saved there is no way back: an error after it ends the server, which restarts
// with the grown job, without the initial weights of the new groups. The trainers send those again.
absl::Status PlanChanges::CommitGrown(const Extension& extension) {
  BALLAST_RETURN_IF_ERROR(fsm_->CheckGrowth(extension.plan));
  JobPlan grown = extension.plan;
  grown.sealed_epoch = fsm_->sealed() ? grown.epoch.epoch : 0;
  BALLAST_FAILPOINT("growth.before_record");
  if (absl::Status saved = extension.files.save(grown); !saved.ok()) {
    rounds_->StorageFailed(saved);
    return saved;
  }
  BALLAST_FAILPOINT("growth.after_record");
  std::unique_ptr<JobStorage> storage = grown_.Take();
  storage->Measure(deps_.engine.clock, deps_.engine.metrics, grown.name(),
                   grown.spec.durability == Durability::kPower);
  const absl::Status taken = rounds_->TakeGrown(
      grown, extension.window_extents,
      JobStorage::MakeRoundLog(std::move(storage), fsm_->round() - 1, deps_.engine.executors,
                               deps_.placement->image_threads()));
  // The old files are of the layout before the record's, and this process still logs to them.
  if (taken.ok()) {
    extension.files.drop_old(grown);
  } else {
    rounds_->StorageFailed(taken);
  }
  return taken;
}

// --- The end ------------------------------------------------------------------------------------

void PlanChanges::End() {
  for (const Adoption& adoption : std::exchange(adopting_, {})) adoption.done(rounds_->failure());
}

}  // namespace ballast::server
