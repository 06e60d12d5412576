// A session's reactions to a server's messages, outages and returns, and to changes of the job's
// epoch.
#include <algorithm>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/session/session_core.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/mutant.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/status_convert.h"

namespace ballast::client {
namespace {

// Every frame of the round has arrived at its server, or the server no longer needs it.
bool AllPushed(const SessionCore::Servers& servers, const RoundProgress& progress) {
  return std::all_of(servers.begin(), servers.end(), [&progress](const auto& server) {
    return (server->welcomed() && server->share().all_received()) || progress.done(server->index());
  });
}

// Whether the server still has its part of the running round, which is decided: then it wants no
// extent of it from any trainer. Error: DATA_LOSS STATE_LOST.
absl::Status CheckKept(const ServerLink& server, const v1::Welcome& welcome) {
  const std::set<uint32_t> complete(welcome.complete().begin(), welcome.complete().end());
  const std::vector<uint32_t>& owned = server.share().owned();
  const auto lost = std::find_if(owned.begin(), owned.end(),
                                 [&](uint32_t extent) { return complete.count(extent) == 0; });
  if (lost == owned.end()) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat(server.Name(), " has lost its part of round ", welcome.round(),
                   ", which is decided: it wants extent ", *lost,
                   " again. Its disk has lost acknowledged writes; give it back its data, or start "
                   "a new job"),
      server.Fields());
}

// Whether the epoch begins with the newest version that this trainer knows, or after it. Error:
// DATA_LOSS STATE_LOST, for one that runs a decided round again.
absl::Status CheckStart(const ServerLink& home, uint64_t version, const v1::EpochRecord& record) {
  if (record.start_round() >= version) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat("epoch ", record.epoch(), " begins with round ", record.start_round(),
                   " again, says ", home.Name(), ", but round ", version - 1,
                   " is decided: the disk of some server has lost acknowledged writes; give the "
                   "servers back their data, or start a new job"),
      home.Fields());
}

}  // namespace

// --- Messages -----------------------------------------------------------------------------------

void SessionCore::OnMessage(ServerLink* server, const Payload& message) {
  if (!error_.ok() || server->state().gave_up) return;
  const Time now = transport_->Now();
  server->Hear(now);
  const absl::StatusOr<ServerInput> input =
      DecodeServerMessage(message, job_.limits.chunk_bytes, kMaxMessageBytes);
  absl::Status status;
  if (!input.ok()) {
    status = server->Broke(absl::StrCat("sent a ", input.status().message()));
  } else if (absl::holds_alternative<DecodedFrame>(*input)) {
    status = frames_.Take(*server, absl::get<DecodedFrame>(*input), &activity_, now);
  } else {
    status = OnControl(server, absl::get<v1::ServerMessage>(*input));
  }
  if (!status.ok()) Lose(server, status);
  if (Done()) on_change_();
}

absl::Status SessionCore::OnControl(ServerLink* server, const v1::ServerMessage& message) {
  Step* const step = std::get_if<Step>(&activity_);
  const Time now = transport_->Now();
  switch (message.kind_case()) {
    case v1::ServerMessage::kWelcome:
      return OnWelcome(server, message.welcome());
    case v1::ServerMessage::kAck:
      OnAck(server, message.ack());
      return absl::OkStatus();
    case v1::ServerMessage::kResult:
      if (step == nullptr) return server->Broke("sent a result of no round");
      return step->progress.OnResult(server->index(), RoundResultFromProto(message.result()), now);
    case v1::ServerMessage::kError:
      server->state().gave_up = true;
      return FromDetail(message.error());
    case v1::ServerMessage::kHeartbeat:
      return absl::OkStatus();
    case v1::ServerMessage::kState:
      return OnStateInfo(server, message.state());
    case v1::ServerMessage::kRefused:
      ++frames_.counters().frames_refused;
      return server->OnRefused(message.refused(), SendsFrames(activity_));
    case v1::ServerMessage::kTrainer:
      OnTrainerNews(message.trainer());
      return absl::OkStatus();
    case v1::ServerMessage::kDone:
      if (step == nullptr) return server->Broke("ended a round that is not running");
      return step->progress.OnDone(server->index(), message.done());
    default:
      return server->Broke("sent a message of an unknown kind");
  }
}

void SessionCore::OnTrainerNews(const v1::TrainerNews& news) {
  const Time now = transport_->Now();
  pauses_.OnTrainer({news.slot(), news.away(), news.why()},
                    home().News(Pause::Kind::kTrainerLost, now), now);
}

void SessionCore::OnAck(ServerLink* server, const v1::Ack& ack) {
  Step* const step = std::get_if<Step>(&activity_);
  server->OnAck(ack, step);
  if (step != nullptr && AllPushed(servers_, step->progress)) {
    step->progress.OnPushed(transport_->Now());
  }
}

absl::Status SessionCore::OnStateInfo(ServerLink* server, const v1::StateInfo& info) {
  Fetch* const fetch = std::get_if<Fetch>(&activity_);
  if (fetch == nullptr || fetch->parts[server->index()].has_info) {
    return server->Broke("sent state that was not asked for");
  }
  Fetch::Part& part = fetch->parts[server->index()];
  if (info.round() != job_.round || info.bytes() != part.expected_bytes) {
    return server->Broke(absl::StrCat("offers ", info.bytes(), " bytes of version ", info.round(),
                                      ", asked for ", part.expected_bytes, " of version ",
                                      job_.round));
  }
  part.has_info = true;
  job_.opt_step = info.opt_step();
  if (info.has_policy()) job_.policy.Take(info.policy());
  fetch->TakeSteps(info, job_.layout.tensors().size());
  return absl::OkStatus();
}

std::optional<Outgoing> SessionCore::NextFrame(ServerLink* server) {
  if (!SendsFrames(activity_) || !server->welcomed() || !error_.ok()) return std::nullopt;
  absl::StatusOr<std::optional<Outgoing>> next = frames_.Next(server, activity_);
  if (!next.ok()) {
    Fail(next.status());
    return std::nullopt;
  }
  if (frames_.starved()) Rearm(transport_->Now());
  Step* const step = std::get_if<Step>(&activity_);
  if (next->has_value() && step != nullptr) step->up_bytes += (*next)->body.bytes();
  return *std::move(next);
}

// --- Servers that go away -----------------------------------------------------------------------

void SessionCore::OnClosed(ServerLink* server, const absl::Status& status) {
  on_change_();
  if (!error_.ok()) return;
  const Reason reason = ReasonOf(status);
  const bool stale = job_.durable && reason == Reason::kStaleEpoch;
  if (leaving_ && !stale && (server->leave_sent() || !job_.durable)) return;
  const bool typed = reason != Reason::kUnspecified;
  if (typed || (job_.durable && status.GetPayload(kErrorDetailTypeUrl).has_value())) {
    Lose(server, status);
    return;
  }
  Lose(server, server->Lost(server->handshake().OnClosed(status)));
}

// The end of a server's link, or of its answering: a pause in a durable job, else an error.
void SessionCore::Lose(ServerLink* server, const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  // A server that got the Leave in the previous epoch refuses this trainer in the new one.
  const bool heard = reason == Reason::kJobFinished || reason == Reason::kWrongIncarnation;
  if (leaving_ && heard) {
    server->SetLeaveSent(true);  // The others may not have heard the Leave.
  } else if (job_.durable && reason == Reason::kStaleEpoch) {
    OnStaleEpoch(server, status);
  } else if (job_.durable && reason == Reason::kWrongIncarnation) {
    Fail(job_.SlotWasTaken(status));
  } else if (job_.durable && leaving_ && reason == Reason::kUnknownJob) {
    Fail(server->StateLost(std::chrono::nanoseconds(0)));
  } else if (!job_.durable || !IsNotYet(status, job_.options.slot)) {
    Fail(status);
  } else if (server->leave_sent()) {
    server->LogUnheardLeave();
    server->Cancel();
  } else {
    Suspend(server, status);
  }
}

void SessionCore::Suspend(ServerLink* server, const absl::Status& why) {
  const Time now = transport_->Now();
  const bool news = !server->reconnect().away();
  server->Close();
  server->state().lacks_job = ReasonOf(why) == Reason::kUnknownJob;
  server->reconnect().OnLost(why.message(), now, ReasonOf(why) == Reason::kRecovering);
  if (news) {
    pauses_.meter().OnLost(now);
    pauses_.Tell(server->News(Pause::Kind::kLost, now));
  }
  EndTransition(now);  // It may have waited for this server only.
  Rearm(now);
  on_change_();
}

// --- Servers that come back ---------------------------------------------------------------------

void SessionCore::NoteBack(ServerLink* server, Time now) {
  if (!server->reconnect().away()) return;
  pauses_.Tell(server->News(Pause::Kind::kBack, now));
  server->reconnect().OnBack(now);
  pauses_.meter().OnBack(now);
}

absl::Status SessionCore::OnWelcome(ServerLink* server, const v1::Welcome& welcome) {
  if (server->welcomed()) return server->Broke("said Welcome twice");
  if (job_.round == 0) job_.round = welcome.round();
  const uint64_t held = HeldVersion(activity_, server->index(), job_.round);
  const bool open = std::holds_alternative<Step>(activity_) && held == job_.round;
  BALLAST_RETURN_IF_ERROR(server->CheckVersion(welcome.round(), held, open));
  server->state().welcomed = true;
  server->handshake().OnBack();
  const Time now = transport_->Now();
  NoteBack(server, now);
  EndTransition(now);
  on_change_();
  if (leaving_) {
    server->SendLeave();
    return absl::OkStatus();
  }
  return job_.durable ? Resume(server, welcome) : absl::OkStatus();
}

// Starts the server's part of the running activity again.
absl::Status SessionCore::Resume(ServerLink* server, const v1::Welcome& welcome) {
  const size_t index = server->index();
  Step* const step = std::get_if<Step>(&activity_);
  BALLAST_RETURN_IF_ERROR(server->CheckExtents(welcome));
  // A server votes when its part is on its disk, and only with all votes is a round decided.
  const bool decided = step != nullptr && step->progress.decided();
  if (decided && welcome.round() == job_.round) {
    BALLAST_RETURN_IF_ERROR(CheckKept(*server, welcome));
  }
  server->share().ForgetMissing();
  if (job_.IsLeadTrainer()) {
    const bool answered = step != nullptr && step->progress.answered(index);
    BALLAST_RETURN_IF_ERROR(server->TakeMissing(welcome, answered));
  }
  if (const InitialUpload* const upload = std::get_if<InitialUpload>(&activity_)) {
    server->SendMissing(upload->first_extent);
  } else if (Fetch* const fetch = std::get_if<Fetch>(&activity_)) {
    if (fetch->parts[index].complete()) return absl::OkStatus();
    BALLAST_RETURN_IF_ERROR(server->LacksInit());
    fetch->parts[index].Restart();
    server->Send(fetch->request);
  } else if (step != nullptr && !step->progress.done(index)) {
    step->progress.Restart(index);
    // In another round the server has decided this one: its result and weights follow.
    if (welcome.round() == job_.round) server->ResumeStep(*step, welcome);
  }
  return absl::OkStatus();
}

// --- Replaced trainers --------------------------------------------------------------------------

// `server`, whose link has ended, is in a later epoch.
void SessionCore::OnStaleEpoch(ServerLink* server, const absl::Status& status) {
  const Time now = transport_->Now();
  NoteBack(server, now);
  server->Close();
  server->SetLeaveSent(false);
  on_change_();
  if (transition_.Begin(status.message(), now)) Rearm(now);
}

void SessionCore::OnAttachAnswer(const absl::StatusOr<Payload>& answer) {
  if (!error_.ok()) return;
  const Time now = transport_->Now();
  const auto record = transition_.TakeAnswer(home(), answer, now);
  if (!record.ok()) return Fail(record.status());
  if (record->has_value()) {
    const Step* const step = std::get_if<Step>(&activity_);
    const bool decided = step != nullptr && step->progress.decided();
    const absl::Status start = CheckStart(home(), job_.round + (decided ? 1 : 0), **record);
    if (!start.ok()) return Fail(start);
    TakeRecord(**record, now);
  }
  Rearm(now);
}

// Enters the epoch of `record`: every server gets a new link.
void SessionCore::TakeRecord(const v1::EpochRecord& record, Time now) {
  Step* const step = std::get_if<Step>(&activity_);
  const bool again = step != nullptr && record.start_round() <= job_.round;
  const Members before = std::exchange(job_.members, MembersOf(record));
  if (!BALLAST_MUTANT(kDealtByTheOldWorld)) job_.contributors = ContributorsIn(record);
  pauses_.ForgetTrainers(now);
  // Another process uploads the initial weights again; parts of the first ones are worth nothing.
  Fetch* const fetch = std::get_if<Fetch>(&activity_);
  if (record.init_again() && fetch != nullptr) {
    for (Fetch::Part& part : fetch->parts) part.Restart();
  }
  // In a later first round the round that runs has ended before the epoch began.
  if (again && step->input.sums_of != 0) {
    activity_ = StaleStep{job_.SumsAreStale(step->input.sums_of, record.epoch())};
  } else if (again) {
    step->world = job_.world();
  }
  job_.epoch = record.epoch();
  job_.start_round = record.start_round();
  transition_.Enter(home(), before, record, now);
  for (auto& server : servers_) {
    Reconnect& tries = server->reconnect();
    const bool away = tries.away();
    const bool trying = away && server->has_link();
    if (!away || trying) server->Close();  // Also an open link of the old epoch.
    server->SetLeaveSent(false);
    if (trying) tries.OnLost(tries.last_error(), now);
    if (!away) server->Open(HelloVersion(*server));
  }
  EndTransition(now);
}

void SessionCore::EndTransition(Time now) {
  const bool all = std::all_of(servers_.begin(), servers_.end(), [](const auto& server) {
    return server->welcomed() || server->reconnect().away();
  });
  if (all) transition_.End(home(), now);
}

}  // namespace ballast::client
