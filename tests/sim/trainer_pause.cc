// SimTrainer: how it lives through the loss of a server; the mirror of client/cpp's
// session_events.cc. See trainer.h. Thread safety: one thread.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "tests/sim/trainer.h"

namespace ballast::sim {
namespace {

using std::chrono::milliseconds;

absl::Status Typed(absl::StatusCode code, Reason reason, absl::string_view text) {
  return ReasonedError(code, reason, text);
}

}  // namespace

// --- Going away ---------------------------------------------------------------------------------

uint64_t SimTrainer::HeldVersion(size_t index) const {
  const bool done = activity_ == Activity::kStep && progress_->done(index);
  return done ? round_ + 1 : round_;
}

void SimTrainer::OpenStream(size_t index) {
  Server& server = servers_[index];
  server::SlotHello hello{.slot = slot_, .incarnation = who_.incarnation, .epoch = record_.epoch};
  hello.round = round_ == 0 ? record_.start_round : HeldVersion(index);
  server.last_heard = Now();
  server.stream = context_.network->Open(process_, static_cast<uint32_t>(index), hello);
}

void SimTrainer::Lose(size_t index, const absl::Status& status) {
  Server& server = servers_[index];
  const bool stale = ReasonOf(status) == Reason::kStaleEpoch;
  if (leaving_ && !stale && server.leave_sent) return;
  if (leaving_ && ReasonOf(status) == Reason::kJobFinished) {
    server.leave_sent = true;  // It has heard it.
    return;
  }
  if (ReasonOf(status) == Reason::kStaleEpoch) {
    OnStaleEpoch(index, status);
  } else if (client::IsNotYet(status, slot_)) {
    Suspend(&servers_[index], status.message());
    ArmTick();
  } else {
    GiveUp(status);
  }
}

void SimTrainer::SendLeave(Server* server) {
  server->leave_sent = true;
  context_.network->SendUp(server->stream, LeaveMessage{round_});
}

void SimTrainer::GiveUp(const absl::Status& status) {
  if (!error_.ok()) return;
  if (leaving_) return Kill(/*announced=*/true);  // It has done what it could.
  error_ = status;
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("slot ", slot_, " gives up: ", status.ToString()));
  }
}

void SimTrainer::Suspend(Server* server, absl::string_view why) {
  Retire(server);
  server->reconnect.OnLost(why, Now());
}

void SimTrainer::Retire(Server* server) {
  if (server->stream != nullptr) context_.network->CloseUp(server->stream);
  server->stream = nullptr;
  server->welcomed = false;
  server->gave_up = false;
  server->restoring = false;
  server->complete.clear();
  server->plan.OnNewStream();
  if (!server->fetched()) {
    server->has_info = false;
    server->received_bytes = 0;
  }
}

// --- Epochs -------------------------------------------------------------------------------------

void SimTrainer::OnStaleEpoch(size_t index, const absl::Status& status) {
  Server& server = servers_[index];
  if (server.reconnect.away()) server.reconnect.OnBack(Now());
  Retire(&server);
  server.leave_sent = false;
  if (attach_.away()) return;  // Another server was the first to say so.
  attach_.OnLost(status.message(), Now());
  ArmTick();
}

void SimTrainer::CallAttach(bool resume) {
  context_.network->Ask(
      node(), 0,
      [this, resume, who = who_](StreamServer* server, const auto& answer) {
        server->OnAttach(who, resume, [=, this](const absl::StatusOr<server::EpochRecord>& told) {
          answer([=, this] { OnAttachAnswer(told); });
        });
      },
      [this](const absl::Status& status) { OnAttachAnswer(status); });
}

void SimTrainer::OnAttachAnswer(const absl::StatusOr<server::EpochRecord>& answer) {
  if (!alive_ || !error_.ok()) return;
  const absl::Status& status = answer.status();
  if (!seated_) {
    if (answer.ok()) {
      seated_ = true;
      record_ = *answer;
      round_ = record_.start_round;
      if (round_ > 1) fresh_extent_ = static_cast<uint32_t>(weights_.size());
      for (size_t i = 0; i < servers_.size(); ++i) OpenStream(i);
      ArmTick();
    } else if (client::IsNotYet(status, slot_)) {
      Later(milliseconds(100), [this] { CallAttach(/*resume=*/true); });
    } else {
      GiveUp(status);
    }
    return;
  }
  const Reason reason = ReasonOf(status);
  if (answer.ok() && answer->epoch > record_.epoch) {
    TakeRecord(*answer);
  } else if (reason == Reason::kNameInUse || reason == Reason::kSlotTaken) {
    GiveUp(Typed(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation, "was taken"));
  } else if (answer.ok() || client::IsNotYet(status, slot_)) {
    attach_.OnLost(answer.ok() ? "still in the old epoch" : status.message(), Now());
    ArmTick();
  } else {
    GiveUp(status);
  }
}

void SimTrainer::TakeRecord(const server::EpochRecord& record) {
  record_ = record;
  attach_.OnBack(Now());
  for (Server& server : servers_) {
    if (!record.init_again || activity_ != Activity::kFetch) break;
    server.has_info = false;
    server.received_bytes = 0;
  }
  for (size_t i = 0; i < servers_.size(); ++i) {
    Server& server = servers_[i];
    const bool away = server.reconnect.away();
    const bool trying = away && server.stream != nullptr;
    if (!away || trying) Retire(&server);
    server.leave_sent = false;
    if (trying) server.reconnect.OnLost(server.reconnect.last_error(), Now());
    if (!away) OpenStream(i);
  }
  ArmTick();
}

void SimTrainer::ArmTick() {
  Time due = next_look_;
  for (const Server& server : servers_) due = std::min(due, server.reconnect.due());
  due = std::min(due, attach_.due());
  const uint64_t tick = ++tick_;
  Later(std::max(due - Now(), Time::duration(0)), [this, tick] {
    if (tick == tick_) Tick();
  });
}

void SimTrainer::Tick() {
  if (!error_.ok()) return;
  const Time now = Now();
  if (now >= next_look_) {
    next_look_ = now + kHeartbeat / kLooksPerHeartbeat;
    const bool we_slept = now - last_tick_ > kHeartbeat * kLateHeartbeats;
    const bool beat = ++looks_ % kLooksPerHeartbeat == 0;
    for (size_t i = 0; i < servers_.size(); ++i) {
      Server& server = servers_[i];
      if (server.stream == nullptr) continue;
      if (we_slept) server.last_heard = now;
      if (now - server.last_heard > kReportAfter) {
        Lose(i, Typed(absl::StatusCode::kUnavailable, Reason::kServerLost, "is not responding"));
        if (!error_.ok()) return;
        continue;
      }
      server.plan.RetryRefused();
      if (beat) context_.network->SendUp(server.stream, HeartbeatMessage{});
      Kick(&server);
    }
  }
  last_tick_ = now;
  for (auto action = attach_.Next(now); action != client::Reconnect::Action::kNothing;
       action = attach_.Next(now)) {
    if (action == client::Reconnect::Action::kOpen) CallAttach(/*resume=*/false);
    if (action != client::Reconnect::Action::kGiveUp) continue;
    return GiveUp(Typed(absl::StatusCode::kUnavailable, Reason::kServerLost, "no next epoch"));
  }
  for (size_t i = 0; i < servers_.size(); ++i) {
    client::Reconnect& reconnect = servers_[i].reconnect;
    for (auto action = reconnect.Next(now); action != client::Reconnect::Action::kNothing;
         action = reconnect.Next(now)) {
      if (action == client::Reconnect::Action::kOpen) OpenStream(i);
      if (action != client::Reconnect::Action::kGiveUp) continue;
      error_ = Typed(absl::StatusCode::kUnavailable, Reason::kServerLost, "has been away too long");
      return;
    }
  }
  ArmTick();
}

// --- Coming back --------------------------------------------------------------------------------

absl::Status SimTrainer::OnWelcome(size_t index, const server::SlotWelcome& welcome) {
  Server& server = servers_[index];
  if (server.welcomed) {
    return Typed(absl::StatusCode::kInternal, Reason::kBadFrame, "said Welcome twice");
  }
  if (round_ == 0) round_ = welcome.round;
  BALLAST_RETURN_IF_ERROR(CheckWelcome(index, welcome.round));
  server.welcomed = true;
  if (server.reconnect.away()) server.reconnect.OnBack(Now());
  if (leaving_) {
    SendLeave(&server);
    return absl::OkStatus();
  }
  return Resume(index, welcome);
}

absl::Status SimTrainer::CheckWelcome(size_t index, uint64_t theirs) const {
  const uint64_t held = HeldVersion(index);
  const bool open = activity_ == Activity::kStep && held == round_;
  if (theirs == held || (open && theirs == held + 1)) return absl::OkStatus();
  const std::string text = absl::StrCat("server ", servers_[index].id, " is at version ", theirs,
                                        ", slot ", slot_, " holds ", held);
  if (theirs + 1 == held) {
    return Typed(absl::StatusCode::kUnavailable, Reason::kRecovering, text);
  }
  return Typed(absl::StatusCode::kFailedPrecondition, Reason::kWrongVersion, text);
}

absl::Status SimTrainer::TakeMissing(size_t index, const server::SlotWelcome& welcome) {
  const bool answered = activity_ == Activity::kStep && progress_->answered(index);
  for (const uint32_t extent : welcome.init_missing) {
    if (extent >= fresh_extent_ && !answered) continue;
    return Typed(
        absl::StatusCode::kDataLoss, Reason::kStateLost,
        absl::StrCat("server ", servers_[index].id, " lacks the initial weights of extent ", extent,
                     " in round ", round_));
  }
  servers_[index].init_missing = welcome.init_missing;
  return absl::OkStatus();
}

absl::Status SimTrainer::Resume(size_t index, const server::SlotWelcome& welcome) {
  Server& server = servers_[index];
  server.init_missing.clear();
  if (IsLeadTrainer()) BALLAST_RETURN_IF_ERROR(TakeMissing(index, welcome));
  switch (activity_) {
    case Activity::kIdle:
      return absl::OkStatus();
    case Activity::kUpload:
      ResumeUpload(&server);
      return absl::OkStatus();
    case Activity::kFetch:
      if (server.fetched()) return absl::OkStatus();
      BALLAST_RETURN_IF_ERROR(LacksInit(server));
      context_.network->SendUp(server.stream, fetch_);
      return absl::OkStatus();
    case Activity::kStep:
      break;
  }
  if (progress_->done(index)) return absl::OkStatus();
  progress_->Restart(index);
  if (welcome.round == round_) {
    server.resumed = true;
    server.complete = welcome.complete;
    if (context_.mutant == Mutant::kKeepComplete) {
      auto& before = server.complete_before;
      before.insert(before.end(), welcome.complete.begin(), welcome.complete.end());
      server.complete = before;
    }
    StartStep(&server);
  }
  return absl::OkStatus();
}

void SimTrainer::ResumeUpload(Server* server) {
  std::vector<uint32_t> extents = std::exchange(server->init_missing, {});
  server->send_kind = FrameKind::kInit;
  server->plan.Start(round_, std::move(extents), {}, /*windowed=*/false);
  Kick(server);
}

absl::Status SimTrainer::LacksInit(const Server& server) const {
  if (server.init_missing.empty()) return absl::OkStatus();
  return Typed(
      absl::StatusCode::kFailedPrecondition, Reason::kNotBegun,
      absl::StrCat("server ", server.id, " was lost before its initial weights were safe"));
}

void SimTrainer::StartStep(Server* server) {
  if (server->init_missing.empty() || context_.mutant == Mutant::kNoInitAgain) {
    BeginRound(server);
    return;
  }
  context_.world->Met(Cover::kInitAgain);
  server->restoring = true;
  server->send_kind = FrameKind::kInit;
  server->plan.Start(round_, server->init_missing, {}, /*windowed=*/false);
  Kick(server);
}

void SimTrainer::BeginRound(Server* server) {
  server->restoring = false;
  server->init_missing.clear();
  server->send_kind = FrameKind::kGradient;
  context_.network->SendUp(server->stream, begin_);
  std::vector<bool> pushed = begin_.presence;
  if (IsUpload(begin_.upload) && !IsLeadTrainer())
    pushed.assign(context_.layout->tensors().size(), false);
  if (server->resumed) {
    server->plan.Resume(round_, server->owned, pushed, server->complete);
  } else {
    server->plan.Start(round_, server->owned, pushed, /*windowed=*/true);
  }
  Kick(server);
}

}  // namespace ballast::sim
