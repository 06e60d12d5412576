#include "client/cpp/session/server_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/session/home_rendezvous.h"
#include "client/cpp/session/pause_reporter.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"
#include "proto/convert/job_convert.h"

namespace ballast::client {
namespace {

constexpr uint32_t kFirstEpoch = 1;

}  // namespace

Reconnect::Limits ReconnectLimits(const JobOptions& options) {
  // More would overflow the clock.
  constexpr double kTimeoutMaxMs = 1e12;
  const double ms = static_cast<double>(options.reconnect_timeout.count()) * options.time_scale;
  Reconnect::Limits limits;
  limits.timeout =
      std::chrono::milliseconds(static_cast<int64_t>(std::clamp(ms, 1.0, kTimeoutMaxMs)));
  return limits;
}

ServerLink::ServerLink(size_t index, const v1::ServerAddress& server, const JobView* job,
                       Transport* transport, Owner* owner)
    : index_(index),
      id_(server.id()),
      address_(server.address()),
      job_(job),
      transport_(transport),
      owner_(owner),
      share_(id_, job),
      reconnect_(ReconnectLimits(job->options)),
      handshake_(server.address(), transport) {}

// --- The link -----------------------------------------------------------------------------------

void ServerLink::Open(uint64_t held) {
  LinkTarget target;
  target.address = address_;
  target.wait_for_server = !reconnect_.away();
  LinkHandler* const handler = this;
  SendHello(held);
  link_ = transport_->Open(target, handler);
  last_heard_ = transport_->Now();
}

void ServerLink::SendHello(uint64_t held) {
  v1::ClientMessage message;
  v1::Hello* const hello = message.mutable_hello();
  *hello->mutable_protocol() = OwnProtocolRange();
  hello->set_job(job_->id);
  hello->set_epoch(job_->epoch);
  hello->set_slot(job_->options.slot);
  hello->set_incarnation(job_->incarnation);
  hello->set_layout_version(job_->layout_version);
  hello->set_round(held);
  control_.push_back(message.SerializeAsString());
}

void ServerLink::Close() {
  link_.reset();
  control_.clear();
  state_ = State();
  share_.OnNewLink();
}

void ServerLink::Cancel() {
  if (alive()) link_->Cancel();
}

std::optional<Outgoing> ServerLink::NextMessage() {
  if (control_.empty()) return owner_->NextFrame(this);
  Outgoing message{std::move(control_.front()), Payload()};
  control_.pop_front();
  return message;
}

void ServerLink::Beat(uint64_t sequence, const Doing& doing) {
  if (!control_.empty()) return;
  v1::ClientMessage message;
  message.mutable_heartbeat()->set_sequence(sequence);
  if (doing.phase != CollectivePhase::kNone) {
    ToProto(doing, message.mutable_heartbeat()->mutable_doing());
  }
  control_.push_back(message.SerializeAsString());
}

// --- Its messages -------------------------------------------------------------------------------

absl::Status ServerLink::CheckVersion(uint64_t named, uint64_t held, bool open) const {
  if (named == held || (job_->durable && open && named == held + 1)) return absl::OkStatus();
  if (!job_->durable) {
    return Broke(absl::StrCat("is at round ", named, ", the others at ", held));
  }
  ErrorFields fields = Fields();
  fields.round = held;
  const std::string text = absl::StrCat(Name(), " is at version ", named,
                                        ", this trainer holds version ", held, " of its weights");
  if (named + 1 == held) {
    // The server has decided this round before, and needs nothing of this trainer to repeat that.
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                         absl::StrCat(text, "; it has to catch up"), fields);
  }
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kWrongVersion,
                       absl::StrCat(text,
                                    "; it runs on other data than before: give it back its "
                                    "own, or start a new job"),
                       fields);
}

absl::Status ServerLink::CheckExtents(const v1::Welcome& welcome) const {
  for (const auto* const extents : {&welcome.complete(), &welcome.init_missing()}) {
    for (const uint32_t extent : *extents) {
      // Of groups being added, whose answer has not arrived yet.
      if (extent >= job_->owner.size() && job_->durable) continue;
      if (job_->Owns(id_, extent)) continue;
      return Broke(absl::StrCat("says Welcome with extent ", extent, ", not its own"));
    }
  }
  return absl::OkStatus();
}

absl::Status ServerLink::TakeMissing(const v1::Welcome& welcome, bool answered) {
  share_.ForgetMissing();
  for (const uint32_t extent : welcome.init_missing()) {
    if (extent >= job_->owner.size() || share_.NoteMissing(extent, answered)) continue;
    return ReasonedError(
        absl::StatusCode::kDataLoss, Reason::kStateLost,
        absl::StrCat(Name(), " lacks the initial weights of extent ", extent, " in round ",
                     job_->round,
                     ", when rounds have changed them already; give it back its data, or start a "
                     "new job"),
        Fields());
  }
  return absl::OkStatus();
}

absl::Status ServerLink::LacksInit() const {
  if (share_.missing_count() == 0) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kNotBegun,
      absl::StrCat(Name(), " was lost before ", share_.missing_count(),
                   " extents of initial weights were on disk; run a step, which sends them again, "
                   "then fetch"),
      Fields());
}

absl::Status ServerLink::OnRefused(const v1::FrameRefused& refused, bool sending) {
  const Reason reason = static_cast<Reason>(refused.reason());
  if (job_->durable && reason == Reason::kStaleEpoch) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, reason, refused.message());
  }
  // The same bytes have another checksum in another epoch, and the server's bytes of the slot's
  // last process are fetched after the upload.
  const bool initial = share_.kind() == FrameKind::kInit;
  if (reason == Reason::kConflict && initial && job_->epoch != kFirstEpoch) {
    return absl::OkStatus();
  }
  if (!sending && reason != Reason::kDuplicate && refused.round() >= job_->round) {
    // The memory has been given back, so the frame cannot be sent again.
    return Broke(absl::StrCat("refused bytes that it had acknowledged: ", ReasonName(reason), ": ",
                              refused.message()));
  }
  const absl::Status status = share_.OnRefused(refused);
  link_->Kick();
  return status;
}

void ServerLink::OnAck(const v1::Ack& ack, const Step* step) {
  if (share_.OnAck(ack, step)) control_.push_back(step->BeginFor(index_));
  link_->Kick();
}

// --- Messages to it -----------------------------------------------------------------------------

void ServerLink::Send(std::string message) {
  control_.push_back(std::move(message));
  link_->Kick();
}

void ServerLink::SendMissing(uint32_t first_extent) {
  share_.SendMissing(first_extent);
  link_->Kick();
}

void ServerLink::StartStep(const Step& step) {
  if (share_.StartStep(step)) control_.push_back(step.BeginFor(index_));
  link_->Kick();
}

void ServerLink::ResumeStep(const Step& step, const v1::Welcome& welcome) {
  const bool begins =
      share_.ResumeStep(step, {welcome.complete().begin(), welcome.complete().end()});
  if (begins) control_.push_back(step.BeginFor(index_));
  link_->Kick();
}

void ServerLink::SendLeave() {
  v1::ClientMessage message;
  message.mutable_leave()->set_round(job_->round);
  control_.push_back(message.SerializeAsString());
  leave_sent_ = true;
  link_->HalfClose();
}

void ServerLink::LogUnheardLeave() const {
  BALLAST_LOG(WARN, LogField("job", job_->options.job), LogField("slot", job_->options.slot))
      << "left without an answer of server " << id_
      << "; unless it heard of that, it keeps the seat until this trainer's lease (timing.lease) "
      << "is over";
}

// --- Errors and news ----------------------------------------------------------------------------

std::string ServerLink::Name() const {
  return absl::StrCat("state server ", id_, " at ", address_);
}

ErrorFields ServerLink::Fields() const {
  ErrorFields fields = job_->Fields();
  fields.server = static_cast<int>(id_);
  return fields;
}

absl::Status ServerLink::Lost(absl::string_view how) const {
  ErrorFields fields = Fields();
  fields.round = 0;  // The loss may have nothing to do with the round.
  fields.address = address_;
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                       absl::StrCat(Name(), " ", how), fields);
}

absl::Status ServerLink::Broke(absl::string_view what) const {
  return ReasonedError(
      absl::StatusCode::kInternal, Reason::kBadFrame,
      absl::StrCat(Name(), " ", what, "; use the same release of Ballast on both sides"), Fields());
}

// A server takes links only after reading its disk, so it can know the job later only after a
// restart with another disk mounted.
absl::Status ServerLink::StateLost(std::chrono::nanoseconds away) const {
  const std::string since = away.count() == 0 ? "" : absl::StrCat(" for ", RoundedText(away));
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat(Name(), " has had nothing of job \"", job_->options.job, "\" on its disk", since,
                   "; mount its data directory, start it again and continue the job; allow more "
                   "time with reconnect_timeout; or start a new job"),
      Fields());
}

Pause ServerLink::News(Pause::Kind kind, Time now) const {
  Pause pause;
  pause.kind = kind;
  pause.server = id_;
  pause.address = address_;
  pause.away = now - reconnect_.since();
  pause.error = reconnect_.last_error();
  return pause;
}

}  // namespace ballast::client
