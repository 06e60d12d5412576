// How a session of a durable job lives through the loss of a server: the old stream is broken off,
// a new one is tried (reconnect.h says when), and the server's Welcome says what it lacks.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cpp/src/session.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "proto/convert/frame_codec.h"

namespace ballast::client {
namespace {

constexpr size_t kPausesMax = 64;

// Whole seconds, or milliseconds below 10 s.
std::string Rounded(std::chrono::nanoseconds duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  if (seconds >= std::chrono::seconds(10)) return FormatDuration(seconds);
  return FormatDuration(std::chrono::duration_cast<std::chrono::milliseconds>(duration));
}

// News of a server, not of a trainer that is being replaced.
bool OfServer(const Pause& pause) { return pause.kind <= Pause::Kind::kBack; }

std::string Slots(const std::vector<uint32_t>& slots) {
  return absl::StrCat(slots.size() == 1 ? "slot " : "slots ", absl::StrJoin(slots, ", "));
}

// Who came and who went, and how many there are.
std::string Changes(const Pause& pause) {
  std::string text = absl::StrCat("epoch ", pause.epoch, " with ", pause.world,
                                  pause.world == 1 ? " trainer" : " trainers");
  if (!pause.slots.empty()) absl::StrAppend(&text, "; new in ", Slots(pause.slots));
  if (!pause.left.empty()) absl::StrAppend(&text, "; gone from ", Slots(pause.left));
  return text;
}

std::string Describe(const Pause& pause) {
  switch (pause.kind) {
    case Pause::Kind::kReplacing:
      if (pause.epoch == 0) {
        return absl::StrCat("trainers change; the job's home has not said who for ",
                            Rounded(pause.away), ", last error: ", pause.error);
      }
      return absl::StrCat("going over to ", Changes(pause));
    case Pause::Kind::kReplaced:
      return absl::StrCat("in ", Changes(pause), ", after ", Rounded(pause.away));
    case Pause::Kind::kTrainerLost:
      return absl::StrCat(Slots(pause.slots), " is away: ", pause.error);
    case Pause::Kind::kTrainerBack:
      return absl::StrCat(Slots(pause.slots), " is back after ", Rounded(pause.away));
    case Pause::Kind::kLost:
      return absl::StrCat(pause.error, "; trying to reach it again");
    case Pause::Kind::kWaiting:
      return absl::StrCat("away for ", Rounded(pause.away), ", last error: ", pause.error);
    case Pause::Kind::kBack:
      break;
  }
  return absl::StrCat("back after ", Rounded(pause.away));
}

}  // namespace

// --- Going away ---------------------------------------------------------------------------------

void Session::Lose(size_t index, const absl::Status& status) {
  Server& server = servers_[index];
  const Reason reason = ReasonOf(status);
  // A server that has heard the Leave in the epoch before refuses this trainer in the new one.
  const bool heard = reason == Reason::kJobFinished || reason == Reason::kWrongIncarnation;
  if (leaving_ && heard) {
    server.leave_sent = true;  // The others may not have heard the Leave.
  } else if (durable_ && reason == Reason::kStaleEpoch) {
    OnStaleEpoch(index, status);
  } else if (durable_ && reason == Reason::kWrongIncarnation) {
    Fail(SlotWasTaken(status));
  } else if (durable_ && reason == Reason::kUnknownJob) {
    Fail(StateLost(server));
  } else if (!durable_ || !IsNotYet(status, options_.slot)) {
    Fail(status);
  } else if (server.leave_sent) {
    LogUnheardLeave(server);
    server.stream->Cancel();
  } else {
    Suspend(&server, status, std::chrono::steady_clock::now());
    if (tick_armed_) tick_.Cancel();  // The next try is due earlier.
  }
}

// A server takes streams only when it has read its disk, so it will not know the job later either.
absl::Status Session::StateLost(const Server& server) const {
  ErrorFields fields;
  fields.job = options_.job;
  fields.round = round_;
  fields.server = static_cast<int>(server.id);
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat("state server ", server.id, " at ", server.address, " has nothing of job \"",
                   options_.job, "\" on its disk; give it back its data directory, or start a ",
                   "new job"),
      fields);
}

void Session::Suspend(Server* server, const absl::Status& why, Time now) {
  const bool news = !server->reconnect.away();
  Retire(server);
  server->reconnect.OnLost(why.message(), now, ReasonOf(why) == Reason::kRecovering);
  if (news) {
    meter_.OnLost(now);
    NotePause(*server, Pause::Kind::kLost, now);
  }
  EndPassage(now);  // It may have waited for this server only.
  changed_.NotifyAll();
}

void Session::Retire(Server* server) {
  if (server->stream != nullptr) {
    if (!server->stream->closed()) server->stream->Cancel();
    retired_.push_back({std::move(server->channel), std::move(server->stream)});
  }
  ++server->generation;
  server->control.clear();
  server->welcomed = false;
  server->gave_up = false;
  server->restoring = false;
  server->complete.clear();
  server->plan->OnNewStream();
  if (!server->fetched()) {
    server->has_info = false;
    server->received_bytes = 0;
  }
}

std::vector<Session::Retired> Session::TakeClosed() {
  std::vector<Retired> closed;
  const auto open_end =
      std::partition(retired_.begin(), retired_.end(), [](const Retired& retired) {
        return retired.stream != nullptr && !retired.stream->closed();
      });
  std::move(open_end, retired_.end(), std::back_inserter(closed));
  retired_.erase(open_end, retired_.end());
  return closed;
}

void Session::RetryLostServers(Time now) {
  for (size_t i = 0; i < servers_.size(); ++i) {
    Server& server = servers_[i];
    Reconnect::Action action = server.reconnect.Next(now);
    for (; action != Reconnect::Action::kNothing; action = server.reconnect.Next(now)) {
      if (action == Reconnect::Action::kOpen) OpenStream(i, now);
      if (action == Reconnect::Action::kReport) NotePause(server, Pause::Kind::kWaiting, now);
      if (action == Reconnect::Action::kGiveUp) {
        Fail(ServerLost(
            server, absl::StrCat("has been away for ", Rounded(now - server.reconnect.since()),
                                 "; last error: ", server.reconnect.last_error(),
                                 "; start it again on its data, or allow it more than ",
                                 Rounded(server.reconnect.timeout()), " with reconnect_timeout")));
        return;
      }
    }
  }
}

// --- Coming back --------------------------------------------------------------------------------

uint64_t Session::HeldVersion(size_t index) const {
  const bool done = activity_ == Activity::kStep && progress_->done(index);
  return done ? round_ + 1 : round_;
}

void Session::NoteBack(Server* server, Time now) {
  if (!server->reconnect.away()) return;
  NotePause(*server, Pause::Kind::kBack, now);
  server->reconnect.OnBack(now);
  meter_.OnBack(now);
}

absl::Status Session::OnWelcome(size_t index, const v1::Welcome& welcome) {
  Server& server = servers_[index];
  if (server.welcomed) return ServerBroke(server, "said Welcome twice");
  if (round_ == 0) round_ = welcome.round();
  BALLAST_RETURN_IF_ERROR(CheckWelcome(index, welcome));
  server.welcomed = true;
  const Time now = std::chrono::steady_clock::now();
  NoteBack(&server, now);
  EndPassage(now);
  changed_.NotifyAll();
  if (leaving_) {
    SendLeave(&server);
    return absl::OkStatus();
  }
  return durable_ ? Resume(index, welcome) : absl::OkStatus();
}

absl::Status Session::CheckWelcome(size_t index, const v1::Welcome& welcome) {
  const Server& server = servers_[index];
  const uint64_t held = HeldVersion(index);
  const uint64_t theirs = welcome.round();
  const bool open = activity_ == Activity::kStep && held == round_;
  if (theirs == held || (durable_ && open && theirs == held + 1)) return absl::OkStatus();
  if (!durable_) {
    return ServerBroke(server, absl::StrCat("is at round ", theirs, ", the others at ", held));
  }
  ErrorFields fields;
  fields.job = options_.job;
  fields.round = held;
  fields.server = static_cast<int>(server.id);
  const std::string text =
      absl::StrCat("state server ", server.id, " at ", server.address, " is at version ", theirs,
                   ", this trainer holds version ", held, " of its weights");
  if (theirs + 1 == held) {
    // It has decided this round before, and needs nothing of us to do so again.
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                         absl::StrCat(text, "; it has to catch up"), fields);
  }
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kWrongVersion,
                       absl::StrCat(text,
                                    "; it runs on other data than before: give it back its "
                                    "own, or start a new job"),
                       fields);
}

absl::Status Session::CheckOwned(const Server& server,
                                 const google::protobuf::RepeatedField<uint32_t>& extents) const {
  for (const uint32_t extent : extents) {
    // Of groups that this slot is adding, and has no answer for yet.
    if (extent >= owner_.size() && options_.durability != Durability::kNone) continue;
    if (extent >= owner_.size() || owner_[extent] != server.id) {
      return ServerBroke(server,
                         absl::StrCat("says Welcome with extent ", extent, ", not its own"));
    }
  }
  return absl::OkStatus();
}

absl::Status Session::TakeMissing(size_t index, const v1::Welcome& welcome) {
  Server& server = servers_[index];
  const bool answered = activity_ == Activity::kStep && progress_->answered(index);
  server.init_missing.clear();
  for (const uint32_t extent : welcome.init_missing()) {
    if (extent >= owner_.size()) continue;
    server.init_missing.push_back(extent);
    if (extent >= fresh_extent_ && !answered) continue;
    ErrorFields fields;
    fields.job = options_.job;
    fields.round = round_;
    fields.server = static_cast<int>(server.id);
    return ReasonedError(
        absl::StatusCode::kDataLoss, Reason::kStateLost,
        absl::StrCat("state server ", server.id, " at ", server.address,
                     " lacks the initial weights of extent ", extent, " in round ", round_,
                     ", when rounds have changed them already; give it back its data, or start a "
                     "new job"),
        fields);
  }
  return absl::OkStatus();
}

absl::Status Session::Resume(size_t index, const v1::Welcome& welcome) {
  Server& server = servers_[index];
  BALLAST_RETURN_IF_ERROR(CheckOwned(server, welcome.complete()));
  BALLAST_RETURN_IF_ERROR(CheckOwned(server, welcome.init_missing()));
  server.init_missing.clear();
  if (IsLead()) BALLAST_RETURN_IF_ERROR(TakeMissing(index, welcome));
  switch (activity_) {
    case Activity::kIdle:
      return absl::OkStatus();
    case Activity::kUpload:
      ResumeUpload(&server);
      return absl::OkStatus();
    case Activity::kFetch:
      return ResumeFetch(&server);
    case Activity::kStep:
      break;
  }
  if (progress_->done(index)) return absl::OkStatus();
  progress_->Restart(index);
  // Otherwise the round is decided: its result and weights follow.
  if (welcome.round() == round_) {
    server.resumed = true;
    server.complete.assign(welcome.complete().begin(), welcome.complete().end());
    StartStep(&server);
  }
  return absl::OkStatus();
}

void Session::ResumeUpload(Server* server) {
  // Memory of older extents is not lent to this call; those wait for the next step.
  const auto first_sent =
      std::stable_partition(server->init_missing.begin(), server->init_missing.end(),
                            [first = upload_first_](uint32_t extent) { return extent < first; });
  std::vector<uint32_t> extents(first_sent, server->init_missing.end());
  server->init_missing.erase(first_sent, server->init_missing.end());
  server->send_kind = FrameKind::kInit;
  server->plan->Start(round_, std::move(extents), {}, /*windowed=*/false);
  server->stream->Kick();
}

absl::Status Session::LacksInit(const Server& server) const {
  if (server.init_missing.empty()) return absl::OkStatus();
  ErrorFields fields;
  fields.job = options_.job;
  fields.round = round_;
  fields.server = static_cast<int>(server.id);
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kNotBegun,
      absl::StrCat("state server ", server.id, " at ", server.address, " was lost before ",
                   server.init_missing.size(), " extents of initial weights were on disk; run a ",
                   "step, which sends them again, then fetch"),
      fields);
}

absl::Status Session::ResumeFetch(Server* server) {
  if (server->fetched()) return absl::OkStatus();
  BALLAST_RETURN_IF_ERROR(LacksInit(*server));
  server->control.push_back(fetch_);
  server->stream->Kick();
  return absl::OkStatus();
}

void Session::StartStep(Server* server) {
  if (server->init_missing.empty()) {
    BeginRound(server);
    return;
  }
  // Its RoundBegin waits until the server has taken them: it is refused before.
  server->restoring = true;
  server->send_kind = FrameKind::kInit;
  server->plan->Start(round_, server->init_missing, {}, /*windowed=*/false);
  server->stream->Kick();
}

void Session::BeginRound(Server* server) {
  server->restoring = false;
  server->init_missing.clear();
  server->send_kind = FrameKind::kGradient;
  server->control.push_back(server == servers_.data() ? home_begin_ : begin_);
  if (server->resumed) {
    server->plan->Resume(round_, server->owned, Pushed(), server->complete);
  } else {
    server->plan->Start(round_, server->owned, Pushed(), /*windowed=*/true);
  }
  server->stream->Kick();
}

// --- Telling ------------------------------------------------------------------------------------

void Session::NotePause(const Server& server, Pause::Kind kind, Time now) {
  Pause pause;
  pause.kind = kind;
  pause.server = server.id;
  pause.address = server.address;
  pause.round = round_;
  pause.away = now - server.reconnect.since();
  pause.error = server.reconnect.last_error();
  Tell(std::move(pause));
}

void Session::Tell(Pause pause) {
  if (!options_.on_pause) {
    BALLAST_LOG(WARN, LogField("job", options_.job), LogField("slot", options_.slot),
                LogField("round", round_), LogField("server", pause.server))
        << Describe(pause);
    return;
  }
  // The caller may not be here to listen; of one wait only the newest word counts.
  const auto stale = std::find_if(pauses_.begin(), pauses_.end(), [&pause](const Pause& waiting) {
    if (OfServer(pause) != OfServer(waiting) || waiting.server != pause.server) return false;
    return waiting.kind == Pause::Kind::kWaiting ||
           (waiting.kind == Pause::Kind::kReplacing && waiting.epoch == 0);
  });
  if (stale != pauses_.end()) pauses_.erase(stale);
  if (pauses_.size() == kPausesMax) pauses_.pop_front();
  pauses_.push_back(std::move(pause));
  changed_.NotifyAll();
}

void Session::ReportPauses() {
  if (!options_.on_pause) return;
  while (true) {
    Pause pause;
    {
      MutexLock lock(&mu_);
      if (pauses_.empty()) return;
      pause = std::move(pauses_.front());
      pauses_.pop_front();
    }
    options_.on_pause(pause);
  }
}

}  // namespace ballast::client
