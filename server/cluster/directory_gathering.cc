// Home: variable worlds that begin again. A job that nobody is in, because it rested or
// because this server was started again, does not begin with whichever process asks first: its
// newcomers wait for each other, at most for a lease (docs/decisions/012). See Gathering in
// epoch_change.h. Thread safety: on the strand.
#include "absl/strings/str_join.h"
#include "server/cluster/home.h"

namespace ballast::server {

void Home::SomebodyIsThere(Pending* pending) {
  pending->gathers = false;
  pending->gathers_until.reset();
}

// Those who asked while the job was being made or woken up: nobody looks after their seats yet.
void Home::AwaitNewcomers(const Pending& pending) {
  const auto give_up = clock_->Now() + config().takeover_wait;
  const std::map<uint32_t, uint64_t> newcomers = pending.newcomers;
  for (const auto& [slot, incarnation] : newcomers) {
    if (pending.gathers) AwaitSeat(pending.plan.spec.name, slot, incarnation, give_up);
  }
}

Gathering Home::GatheringOf(const Pending& pending) const {
  Gathering gathering{.asking = pending.newcomers};
  for (const auto& [slot, incarnation] : pending.newcomers) {
    const auto waiting = pending.waiting.find(slot);
    if (waiting == pending.waiting.end()) continue;
    gathering.world = std::max(gathering.world, waiting->second.world);
    gathering.min_world = std::max(gathering.min_world, waiting->second.min_world);
  }
  gathering.over = pending.gathers_until.has_value() && clock_->Now() >= *pending.gathers_until;
  return gathering;
}

bool Home::OnNewcomer(Pending* pending, uint32_t slot) {
  if (!pending->gathers) {
    StartChange(pending);
    return false;
  }
  const auto now = clock_->Now();
  const bool first = !pending->gathers_until.has_value();
  if (first) pending->gathers_until = now + config().engine.lease;
  const Gathering gathering = GatheringOf(*pending);
  if (gathering.Complete()) {
    BeginAgain(pending, gathering);
    return false;
  }
  if (first) {
    BALLAST_LOG(INFO, LogField("run", pending->plan.spec.name))
        << "begins again: waits for slots " << absl::StrJoin(gathering.Missing(), ", ")
        << ", for a lease or until " << gathering.min_world << " are there";
  }
  if (now < pending->waiting[slot].until) return true;
  GiveUpGathering(pending, slot, gathering);
  return false;
}

void Home::BeginAgain(Pending* pending, const Gathering& gathering) {
  SomebodyIsThere(pending);
  for (const Member& member : pending->plan.epoch.members) {
    // Who might still live has a lease in the new epoch.
    if (gathering.over || pending->rested) pending->gone[member.slot] = member.incarnation;
  }
  StartChange(pending);  // Or it follows the one that is under way.
}

void Home::GiveUpGathering(Pending* pending, uint32_t slot, const Gathering& gathering) {
  const std::string& name = pending->plan.spec.name;
  const AttachDone done = std::move(pending->waiting[slot].done);
  pending->waiting.erase(slot);
  pending->newcomers.erase(slot);
  if (pending->newcomers.empty()) pending->gathers_until.reset();
  done(ReasonedError(absl::StatusCode::kDeadlineExceeded, Reason::kAttachTimeout,
                     absl::StrCat("job \"", name, "\" waited in vain for slots ",
                                  absl::StrJoin(gathering.Missing(), ", "), " of a world of ",
                                  gathering.world, "; it goes on with ", gathering.min_world,
                                  " of them: start them, or give a smaller min_world"),
                     {.job = name, .slot = static_cast<int>(slot)}));
}

}  // namespace ballast::server
