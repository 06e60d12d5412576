#include "common/rendezvous/rendezvous_fsm.h"

#include <algorithm>
#include <utility>

#include "common/faults/mutant.h"

namespace ballast::rendezvous {

RendezvousFsm::RendezvousFsm(std::string job, Epoch epoch, Listening listening)
    : job_(std::move(job)), epoch_(std::move(epoch)), lease_(listening.lease) {
  for (const auto& [slot, rank] : epoch_.ranks) seats_[slot] = {.listens_since = listening.since};
}

// --- Epochs and news ----------------------------------------------------------------------------

void RendezvousFsm::OnEpoch(std::chrono::nanoseconds now, const Epoch& epoch, Effects* effects) {
  if (epoch.number < epoch_.number) return;
  const bool next = epoch.number > epoch_.number;
  if (!next && (epoch_.sealed || !epoch.sealed)) return;
  if (anybody_waits()) BALLAST_PROBE(kMeetingStale);
  Epoch sealed = epoch_;
  sealed.sealed = true;
  const absl::Status why = StaleEpoch(job_, epoch_.number, next ? epoch : sealed);
  if (!BALLAST_MUTANT(kWaitersOfOldEpoch)) EndGeneration(why, effects);
  if (!next) {
    epoch_.sealed = true;
    return;
  }
  std::map<uint32_t, SeatState> seats;
  for (const auto& [slot, rank] : epoch.ranks) {
    const auto before = epoch_.ranks.find(slot);
    const bool stays = before != epoch_.ranks.end() && before->second == rank;
    seats[slot] = stays ? seats_.at(slot) : SeatState{now, epoch.number, false, {}};
  }
  seats_ = std::move(seats);
  epoch_ = epoch;
  if (BALLAST_MUTANT(kWaitersOfOldEpoch)) return;
  generation_ = 0;
  ended_ = absl::OkStatus();
}

void RendezvousFsm::OnHeard(uint32_t slot, const Heard& heard) {
  const auto known = seats_.find(slot);
  if (known == seats_.end()) return;
  SeatState& seat = known->second;
  if (seat.heard && heard.at < seat.last.at) return;
  seat.last.at = heard.at;
  if (!seat.heard || heard.doing.phase != CollectivePhase::kNone) seat.last.doing = heard.doing;
  seat.heard = true;
}

// --- Calls --------------------------------------------------------------------------------------

void RendezvousFsm::OnCall(std::chrono::nanoseconds now, Ticket ticket, const Call& call,
                           Effects* effects) {
  absl::Status status = CheckSeat(call);
  if (status.ok()) OnHeard(call.slot, {now, call.doing});
  if (status.ok() && call.act == Act::kRollCall) {
    effects->answers.push_back({ticket, RollCall(now)});
    return;
  }
  if (status.ok()) status = CheckForm(job_, call);
  if (status.ok() && call.act == Act::kGiveUp) {
    GiveUp(call, effects);
    effects->answers.push_back({ticket, Reply{.over = true}});
    return;
  }
  if (status.ok()) status = CheckAct(call);
  if (!status.ok()) {
    effects->answers.push_back({ticket, status});
    return;
  }
  Meeting* const meeting = Enter(now, call, effects);
  Wait(now, ticket, call, meeting, effects);
  call.act == Act::kReady ? Ready(meeting, call, effects) : Exchange(meeting, call, effects);
}

absl::Status RendezvousFsm::CheckSeat(const Call& call) const {
  if (call.epoch > epoch_.number) return FutureEpoch(job_, call, epoch_);
  if (call.epoch < epoch_.number || epoch_.sealed) return StaleEpoch(job_, call.epoch, epoch_);
  const auto rank = epoch_.ranks.find(call.slot);
  if (rank == epoch_.ranks.end()) return OutsideTheWorld(job_, call, epoch_);
  const bool others = !rank->second.identity.empty() && !call.identity.empty() &&
                      rank->second.identity != call.identity;
  if (rank->second.incarnation != call.incarnation || others) return SeatOfAnother(job_, call);
  return absl::OkStatus();
}

absl::Status RendezvousFsm::CheckAct(const Call& call) const {
  if (call.generation < generation_ && !BALLAST_MUTANT(kOlderGeneration)) {
    BALLAST_PROBE(kMeetingOlder);
    return OlderGeneration(job_, call, generation_);
  }
  if (call.generation == generation_ && !ended_.ok()) return ended_;
  const Meeting* const meeting = Find(call);
  if (meeting == nullptr && call.generation == generation_ && meetings_.size() >= kTagsMax) {
    return TooManyTags(job_, call);
  }
  // A rank without its communicator cannot make another of the same id.
  const bool open = meeting != nullptr && meeting->open;
  if (open && call.act == Act::kExchange) return AlreadyOpen(job_, call);
  return CheckId(call);
}

absl::Status RendezvousFsm::CheckId(const Call& call) const {
  const Meeting* const meeting = Find(call);
  const bool written = meeting != nullptr && !meeting->id.empty();
  if (written && !call.id.empty()) {
    if (call.id == meeting->id) return absl::OkStatus();
    const bool skipped =
        call.act == Act::kReady ? BALLAST_MUTANT(kReadyUnchecked) : BALLAST_MUTANT(kIdWrittenTwice);
    if (skipped) return absl::OkStatus();
    BALLAST_PROBE(kMeetingConflict);
    return OtherId(job_, call, meeting->id);
  }
  const bool leads = call.slot == leader();
  if (call.act == Act::kExchange && !written && leads == call.id.empty()) {
    return NotTheGiver(job_, call, leader());
  }
  const bool gives = leads && !call.id.empty();
  if (gives && std::find(used_.begin(), used_.end(), call.id) != used_.end()) {
    return UsedId(job_, call);
  }
  return absl::OkStatus();
}

const RendezvousFsm::Meeting* RendezvousFsm::Find(const Call& call) const {
  if (call.generation > generation_) return nullptr;
  const auto found = meetings_.find(call.tag);
  return found == meetings_.end() ? nullptr : &found->second;
}

RendezvousFsm::Meeting* RendezvousFsm::Enter(std::chrono::nanoseconds now, const Call& call,
                                             Effects* effects) {
  if (call.generation > generation_) Begin(call, effects);
  const auto [found, is_new] = meetings_.emplace(call.tag, Meeting());
  Meeting* const meeting = &found->second;
  if (is_new) {
    meeting->timeout = call.timeout;
    meeting->due = now + call.timeout;
  }
  meeting->came.insert(call.slot);
  return meeting;
}

void RendezvousFsm::Wait(std::chrono::nanoseconds now, Ticket ticket, const Call& call,
                         Meeting* meeting, Effects* effects) {
  const std::chrono::nanoseconds wait = std::min<std::chrono::nanoseconds>(call.wait, kWaitMax);
  const Waiter waiter{ticket, call.act, now + wait};
  const auto [held, is_new] = meeting->waiting.emplace(call.slot, waiter);
  if (!is_new) {
    effects->answers.push_back({held->second.ticket, Reply{}});
    held->second = waiter;
  }
}

// --- Meetings -----------------------------------------------------------------------------------

void RendezvousFsm::Exchange(Meeting* meeting, const Call& call, Effects* effects) {
  // A rank that asks for the id again makes a new communicator.
  meeting->ready.erase(call.slot);
  if (!call.id.empty()) Write(meeting, call, effects);
  if (!meeting->id.empty()) TellId(meeting, effects);
}

void RendezvousFsm::Ready(Meeting* meeting, const Call& call, Effects* effects) {
  meeting->ready[call.slot] = call.id;
  // The home has started again, and the leader brings the id back.
  const bool back = meeting->id.empty() && call.slot == leader();
  if (back && !BALLAST_MUTANT(kIdNotBroughtBack)) {
    Write(meeting, call, effects);
    TellId(meeting, effects);
  }
  OpenIfAllReady(meeting, effects);
}

void RendezvousFsm::Write(Meeting* meeting, const Call& call, Effects* effects) {
  if (meeting->id == call.id) return;
  meeting->id = call.id;
  used_.push_back(call.id);
  if (used_.size() > kUsedIdsMax) used_.pop_front();
  // Ranks ready before the id was written.
  for (auto one = meeting->ready.begin(); one != meeting->ready.end();) {
    const auto& [slot, id] = *one;
    if (id == meeting->id || BALLAST_MUTANT(kReadyUnchecked)) {
      ++one;
      continue;
    }
    BALLAST_PROBE(kMeetingConflict);
    Call theirs = call;
    theirs.slot = slot;
    theirs.id = id;
    if (const auto waiter = meeting->waiting.find(slot); waiter != meeting->waiting.end()) {
      effects->answers.push_back({waiter->second.ticket, OtherId(job_, theirs, meeting->id)});
      meeting->waiting.erase(waiter);
    }
    one = meeting->ready.erase(one);
  }
}

void RendezvousFsm::TellId(Meeting* meeting, Effects* effects) {
  AnswerAll(meeting, Act::kExchange, Reply{.over = true, .id = meeting->id}, effects);
}

void RendezvousFsm::OpenIfAllReady(Meeting* meeting, Effects* effects) {
  const size_t needed = epoch_.ranks.size() - (BALLAST_MUTANT(kOpenWithoutAll) ? 1 : 0);
  if (meeting->id.empty() || meeting->ready.size() < needed) return;
  if (!meeting->open) BALLAST_PROBE(kMeetingOpened);
  meeting->open = true;
  AnswerAll(meeting, Act::kReady, Reply{.over = true}, effects);
}

void RendezvousFsm::GiveUp(const Call& call, Effects* effects) {
  if (call.generation < generation_) return;
  if (call.generation > generation_) Begin(call, effects);
  if (!ended_.ok()) return;
  if (anybody_waits()) BALLAST_PROBE(kMeetingGivenUp);
  EndGeneration(GivenUp(job_, call), effects);
}

void RendezvousFsm::Begin(const Call& call, Effects* effects) {
  EndGeneration(NewerBegun(job_, generation_, call), effects);
  generation_ = call.generation;
  ended_ = absl::OkStatus();
}

void RendezvousFsm::AnswerAll(Meeting* meeting, Act act, const Reply& reply, Effects* effects) {
  std::erase_if(meeting->waiting, [&](const auto& entry) {
    if (entry.second.act != act) return false;
    effects->answers.push_back({entry.second.ticket, reply});
    return true;
  });
}

void RendezvousFsm::EndGeneration(const absl::Status& why, Effects* effects) {
  for (const auto& [tag, meeting] : meetings_) {
    for (const auto& [slot, waiter] : meeting.waiting) {
      effects->answers.push_back({waiter.ticket, why});
    }
  }
  meetings_.clear();
  ended_ = why;
}

// --- Time ---------------------------------------------------------------------------------------

void RendezvousFsm::OnDue(std::chrono::nanoseconds now, Effects* effects) {
  for (auto& [tag, meeting] : meetings_) {
    if (!meeting.open && meeting.due <= now) {
      BALLAST_PROBE(kMeetingTimedOut);
      const std::vector<Missing> missing = MissingIn(now, meeting);
      return EndGeneration(NotThere(job_, epoch_.number, missing, meeting.timeout), effects);
    }
    std::erase_if(meeting.waiting, [&](const auto& entry) {
      if (entry.second.due > now) return false;
      effects->answers.push_back({entry.second.ticket, Reply{}});
      return true;
    });
  }
}

std::chrono::nanoseconds RendezvousFsm::next_due() const {
  auto next = std::chrono::nanoseconds::max();
  for (const auto& [tag, meeting] : meetings_) {
    if (!meeting.open) next = std::min(next, meeting.due);
    for (const auto& [slot, waiter] : meeting.waiting) next = std::min(next, waiter.due);
  }
  return next;
}

std::vector<Missing> RendezvousFsm::MissingIn(std::chrono::nanoseconds now,
                                              const Meeting& meeting) const {
  std::vector<Missing> missing;
  for (const auto& [slot, rank] : epoch_.ranks) {
    if (meeting.ready.count(slot) != 0) continue;
    missing.push_back({HeardOf(now, slot), meeting.came.count(slot) != 0});
  }
  // Where some never came, the others wait for them.
  const bool absent = std::any_of(missing.begin(), missing.end(), [](auto& m) { return !m.came; });
  if (absent) std::erase_if(missing, [](const Missing& one) { return one.came; });
  return missing;
}

RankHeard RendezvousFsm::HeardOf(std::chrono::nanoseconds now, uint32_t slot) const {
  const SeatState& seat = seats_.at(slot);
  const std::chrono::nanoseconds ago = now - (seat.heard ? seat.last.at : seat.listens_since);
  return {slot, seat.heard, std::max(ago, std::chrono::nanoseconds(0)), seat.last.doing,
          seat.since_epoch};
}

Reply RendezvousFsm::RollCall(std::chrono::nanoseconds now) const {
  Reply reply{.over = true,
              .generation = generation_,
              .ended = std::string(ended_.message()),
              .lease = lease_};
  for (const auto& [slot, rank] : epoch_.ranks) reply.ranks.push_back(HeardOf(now, slot));
  return reply;
}

void RendezvousFsm::OnEnd(const absl::Status& why, Effects* effects) {
  EndGeneration(why, effects);
}

// --- Queries ------------------------------------------------------------------------------------

bool RendezvousFsm::is_open(const std::string& tag) const {
  const auto found = meetings_.find(tag);
  return found != meetings_.end() && found->second.open;
}

bool RendezvousFsm::anybody_waits() const {
  return std::any_of(meetings_.begin(), meetings_.end(),
                     [](const auto& entry) { return !entry.second.waiting.empty(); });
}

}  // namespace ballast::rendezvous
