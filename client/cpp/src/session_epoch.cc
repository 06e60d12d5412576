// How a session of a durable job lives through the replacement of a trainer: servers end their
// streams with STALE_EPOCH, this process attaches again at the job's home, whose answer is the
// record of the new epoch, and opens every stream again with it. What each server's Welcome then
// leads to is the same as after the loss of that server (session_pause.cc).
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/src/session.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "proto/convert/channel.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"

namespace ballast::client {
namespace {

using std::chrono::milliseconds;

bool SeatIsTaken(const absl::Status& status) {
  switch (ReasonOf(status)) {
    case Reason::kNameInUse:
    case Reason::kSlotTaken:
    case Reason::kWrongIncarnation:
      return true;
    default:
      return false;
  }
}

// The home's word, as JobIsForgotten forms it; NOT_FOUND is that of a server that is behind.
bool IsForgotten(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition &&
         ReasonOf(status) == Reason::kUnknownJob;
}

}  // namespace

// --- Attaching again ----------------------------------------------------------------------------

void Session::OnStaleEpoch(size_t index, const absl::Status& status) {
  Server& server = servers_[index];
  const Time now = std::chrono::steady_clock::now();
  NoteBack(&server, now);
  Retire(&server);
  server.leave_sent = false;
  changed_.NotifyAll();
  if (passage_.attach.away()) return;  // Another server was the first to say so.
  if (!passage_.open) {
    passage_.open = true;
    passage_.since = now;
    passage_.slots.clear();
    passage_.joined.clear();
    passage_.left.clear();
    meter_.OnLost(now);
  }
  passage_.epoch = 0;
  passage_.attach.OnLost(status.message(), now);
  if (tick_armed_) tick_.Cancel();  // The next try is due earlier.
}

void Session::RetryAttach(Time now) {
  Reconnect& tries = passage_.attach;
  Reconnect::Action action = tries.Next(now);
  for (; action != Reconnect::Action::kNothing; action = tries.Next(now)) {
    if (action == Reconnect::Action::kOpen) CallAttach(now);
    if (action == Reconnect::Action::kReport) NotePassage(Pause::Kind::kReplacing, now);
    if (action == Reconnect::Action::kGiveUp) {
      const std::string limit =
          FormatDuration(std::chrono::duration_cast<milliseconds>(tries.timeout()));
      Fail(ServerLost(servers_[0],
                      absl::StrCat("has not let this trainer into the job's next epoch for ", limit,
                                   "; last error: ", tries.last_error(),
                                   "; look at every server of the job with `ballastctl status`, or "
                                   "allow more with reconnect_timeout")));
      return;
    }
  }
}

// With RESUME_NEVER: the home lets in whoever holds the seat, and nobody who has lost it; with any
// other value this process would take its seat back from the one that was started in its place.
void Session::CallAttach(Time now) {
  v1::AttachRequest request;
  *request.mutable_protocol() = OwnProtocolRange();
  ToProto(spec_, request.mutable_spec());
  request.set_slot(options_.slot);
  request.set_incarnation(incarnation_);
  request.set_init(v1::INIT_MODE_BROADCAST);
  request.set_resume(v1::RESUME_NEVER);
  // A home that has never heard of the job must not gather a world for a new one.
  request.set_wait_timeout_ms(1);
  const auto left = passage_.attach.since() + passage_.attach.timeout() - now;
  passage_.call = std::make_unique<AsyncCall>(
      grpc::CreateCustomChannel(servers_[0].address, grpc::InsecureChannelCredentials(),
                                MakeChannelArgs(options_.time_scale)),
      method::kAttach, request, std::chrono::duration_cast<milliseconds>(left) + milliseconds(1),
      &queue_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { OnAttachAnswer(); });
}

void Session::OnAttachAnswer() {
  v1::AttachReply reply;
  absl::Status status = passage_.call->Take(&reply);
  retired_.push_back({nullptr, nullptr, std::move(passage_.call)});
  changed_.NotifyAll();
  if (closing_ || !error_.ok()) return;
  const Time now = std::chrono::steady_clock::now();
  if (status.ok()) status = CheckRecord(reply);
  if (ReasonOf(status) == Reason::kAttachTimeout) status = JobIsForgotten();
  if (status.ok()) {
    TakeRecord(reply.epoch(), now);
  } else if (SeatIsTaken(status)) {
    Fail(SlotWasTaken(status));
  } else if (!IsNotYet(status, options_.slot) || IsForgotten(status)) {
    Fail(status);
  } else {
    passage_.attach.OnLost(status.message(), now);
    if (tick_armed_) tick_.Cancel();
  }
}

absl::Status Session::CheckRecord(const v1::AttachReply& reply) const {
  const Server& home = servers_[0];
  const v1::EpochRecord& record = reply.epoch();
  ErrorFields fields;
  fields.job = options_.job;
  fields.round = round_;
  fields.server = static_cast<int>(home.id);
  if (reply.job() != job_) return JobIsForgotten();
  if (record.epoch() <= epoch_) {
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                         absl::StrCat("the job's home is still in epoch ", record.epoch()), fields);
  }
  const bool same_plan = reply.layout_version() == layout_version_ &&
                         std::equal(owner_.begin(), owner_.end(), reply.plan().owner().begin(),
                                    reply.plan().owner().end());
  if (!same_plan) return ServerBroke(home, "has given extents to other servers in the new epoch");
  const auto members = MembersOf(record);
  const auto own = members.find(options_.slot);
  if (own != members.end() && own->second == incarnation_) return absl::OkStatus();
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
                       absl::StrCat("it is not in epoch ", record.epoch()), fields);
}

absl::Status Session::JobIsForgotten() const {
  const Server& home = servers_[0];
  ErrorFields fields;
  fields.job = options_.job;
  fields.round = round_;
  fields.server = static_cast<int>(home.id);
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kUnknownJob,
                       absl::StrCat("state server ", home.id, " at ", home.address,
                                    ", the job's home, does not know job \"", options_.job,
                                    "\" any more; give it its own data back, or start a new job"),
                       fields);
}

absl::Status Session::SlotWasTaken(const absl::Status& status) const {
  ErrorFields fields = FieldsOf(status);
  fields.job = options_.job;
  fields.slot = static_cast<int>(options_.slot);
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
                       absl::StrCat("slot ", options_.slot, " of job \"", options_.job,
                                    "\" was given to another process, or given up when its lease ",
                                    "ran out, while this one was gone or thought dead. The job ",
                                    "goes on without it, from the newest finished round; nothing ",
                                    "is lost. End this one, or give two processes different ",
                                    "ranks (", status.message(), ")"),
                       fields);
}

// --- In the new epoch ---------------------------------------------------------------------------

void Session::TakeRecord(const v1::EpochRecord& record, Time now) {
  const std::map<uint32_t, uint64_t> members = MembersOf(record);
  for (const auto& [slot, incarnation] : members) {
    const auto before = members_.find(slot);
    if (before == members_.end() || before->second != incarnation) passage_.slots.insert(slot);
    const bool had_left = passage_.left.erase(slot) != 0;
    if (before == members_.end() && !had_left) passage_.joined.insert(slot);
  }
  for (const auto& [slot, incarnation] : members_) {
    if (members.count(slot) != 0) continue;
    passage_.slots.erase(slot);
    passage_.joined.erase(slot);
    passage_.left.insert(slot);
  }
  members_ = members;
  ForgetTrainerNews(now);
  // What was fetched of the initial weights is another process' than what is still to come.
  for (Server& server : servers_) {
    if (!record.init_again() || activity_ != Activity::kFetch) break;
    server.has_info = false;
    server.received_bytes = 0;
  }
  // Else the round that runs has ended before it.
  if (record.start_round() <= round_) round_world_ = static_cast<uint32_t>(members_.size());
  epoch_ = record.epoch();
  start_round_ = record.start_round();
  passage_.epoch = epoch_;
  passage_.attach.OnBack(now);
  NotePassage(Pause::Kind::kReplacing, now);
  for (size_t i = 0; i < servers_.size(); ++i) {
    Server& server = servers_[i];
    const bool away = server.reconnect.away();
    const bool trying = away && server.stream != nullptr;
    if (!away || trying) Retire(&server);  // Also a stream of the old epoch that is still open.
    server.leave_sent = false;
    if (trying) server.reconnect.OnLost(server.reconnect.last_error(), now);
    if (!away) OpenStream(i, now);
  }
  if (tick_armed_) tick_.Cancel();
  EndPassage(now);
}

void Session::EndPassage(Time now) {
  if (!passage_.open || passage_.attach.away()) return;
  for (const Server& server : servers_) {
    if (!server.welcomed && !server.reconnect.away()) return;
  }
  passage_.open = false;
  meter_.OnPassed(now);
  NotePassage(Pause::Kind::kReplaced, now);
}

void Session::NotePassage(Pause::Kind kind, Time now) {
  Pause pause;
  pause.kind = kind;
  pause.server = servers_[0].id;
  pause.address = servers_[0].address;
  pause.round = round_;
  pause.away = now - passage_.since;
  pause.error = passage_.attach.last_error();
  pause.epoch = passage_.epoch;
  if (passage_.epoch != 0) {
    pause.slots.assign(passage_.slots.begin(), passage_.slots.end());
    pause.joined.assign(passage_.joined.begin(), passage_.joined.end());
    pause.left.assign(passage_.left.begin(), passage_.left.end());
    pause.world = static_cast<uint32_t>(members_.size());
  }
  Tell(std::move(pause));
}

// --- Trainers that are away ---------------------------------------------------------------------

void Session::OnTrainerNews(const v1::TrainerNews& news) {
  const Time now = std::chrono::steady_clock::now();
  const auto known = trainers_away_.find(news.slot());
  if (news.away() == (known != trainers_away_.end())) return;
  Pause pause;
  pause.kind = news.away() ? Pause::Kind::kTrainerLost : Pause::Kind::kTrainerBack;
  pause.server = servers_[0].id;
  pause.address = servers_[0].address;
  pause.round = round_;
  pause.error = news.why();
  pause.slots = {news.slot()};
  if (news.away()) {
    trainers_away_[news.slot()] = now;
    meter_.OnLost(now);
  } else {
    pause.away = now - known->second;
    trainers_away_.erase(known);
    meter_.OnPassed(now);
  }
  Tell(std::move(pause));
}

void Session::ForgetTrainerNews(Time now) {
  for (size_t i = 0; i < trainers_away_.size(); ++i) meter_.OnPassed(now);
  trainers_away_.clear();
}

}  // namespace ballast::client
