// SimTrainer: how it lives through the loss of a server; the mirror of client/cpp's
// session_pause.cc. See trainer.h. Thread safety: one thread.
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

constexpr milliseconds kHeartbeat{500};
constexpr int kLooksPerHeartbeat = 2;
constexpr int kLateHeartbeats = 3;
constexpr milliseconds kReportAfter{2500};

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
  server::SlotHello hello{.slot = slot_,
                          .incarnation = context_.plan->epoch.members[slot_].incarnation,
                          .epoch = context_.plan->epoch.epoch};
  hello.round = round_ == 0 ? context_.plan->epoch.start_round : HeldVersion(index);
  server.last_heard = Now();
  server.stream = context_.network->Open(slot_, static_cast<uint32_t>(index), hello);
}

void SimTrainer::Lose(size_t index, const absl::Status& status) {
  if (client::IsNotYet(status, slot_)) {
    Suspend(&servers_[index], status.message());
    ArmTick();
    return;
  }
  if (!error_.ok()) return;
  error_ = status;
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("slot ", slot_, " gives up: ", status.ToString()));
  }
}

void SimTrainer::Suspend(Server* server, absl::string_view why) {
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
  server->reconnect.OnLost(why, Now());
}

void SimTrainer::ArmTick() {
  Time due = next_look_;
  for (const Server& server : servers_) due = std::min(due, server.reconnect.due());
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
  if (slot_ == 0) BALLAST_RETURN_IF_ERROR(TakeMissing(index, welcome));
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
  server->send_kind = server::FrameKind::kInit;
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
  server->send_kind = server::FrameKind::kInit;
  server->plan.Start(round_, server->init_missing, {}, /*windowed=*/false);
  Kick(server);
}

void SimTrainer::BeginRound(Server* server) {
  server->restoring = false;
  server->init_missing.clear();
  server->send_kind = server::FrameKind::kGradient;
  context_.network->SendUp(server->stream, begin_);
  if (server->resumed) {
    server->plan.Resume(round_, server->owned, begin_.presence, server->complete);
  } else {
    server->plan.Start(round_, server->owned, begin_.presence, /*windowed=*/true);
  }
  Kick(server);
}

}  // namespace ballast::sim
