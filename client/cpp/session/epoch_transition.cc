#include "client/cpp/session/epoch_transition.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/text/units.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
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

// The home's error, as JobIsForgotten forms it; a server that lags the home answers NOT_FOUND.
bool IsForgotten(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition &&
         ReasonOf(status) == Reason::kUnknownJob;
}

// Whether the job of `reply` is that of the trainer. It may have grown meanwhile: the answer to the
// trainer's Extend, which brings the new extents, comes on a way of its own, and may come later.
// The extents that the trainer knows keep their owners.
bool Continues(const v1::AttachReply& reply, const JobView& job) {
  const auto& owner = reply.plan().owner();
  const int known = static_cast<int>(job.owner.size());
  const uint32_t version = job.layout_version;
  const bool same = reply.layout_version() == version && owner.size() == known;
  const bool grown = reply.layout_version() > version && owner.size() >= known;
  return (same || grown) && std::equal(job.owner.begin(), job.owner.end(), owner.begin());
}

// The home waits for the others itself, so the first try comes at once.
Reconnect::Limits AttachLimits(const JobOptions& options) {
  Reconnect::Limits limits = ReconnectLimits(options);
  limits.first_backoff = milliseconds(1);
  return limits;
}

}  // namespace

EpochTransition::EpochTransition(const JobView* job, Transport* transport, PauseReporter* pauses)
    : job_(job), transport_(transport), pauses_(pauses), tries_(AttachLimits(job->options)) {}

bool EpochTransition::Begin(absl::string_view why, Time now) {
  if (tries_.away()) return false;
  if (!open_) {
    open_ = true;
    since_ = now;
    slots_.clear();
    joined_.clear();
    left_.clear();
    pauses_->meter().OnLost(now);
  }
  epoch_ = 0;
  tries_.OnLost(why, now);
  return true;
}

absl::Status EpochTransition::Retry(const ServerLink& home, Time now,
                                    const Transport::Answer& answer) {
  Reconnect::Action action = tries_.Next(now);
  for (; action != Reconnect::Action::kNothing; action = tries_.Next(now)) {
    if (action == Reconnect::Action::kOpen) CallAttach(home, now, answer);
    if (action == Reconnect::Action::kReport) Tell(home, Pause::Kind::kReplacing, now);
    if (action != Reconnect::Action::kGiveUp) continue;
    const std::string limit =
        FormatDuration(std::chrono::duration_cast<milliseconds>(tries_.timeout()));
    return home.Lost(absl::StrCat("has not let this trainer into the job's next epoch for ", limit,
                                  "; last error: ", tries_.last_error(),
                                  "; look at every server of the job with `ballastctl status`, or "
                                  "allow more with reconnect_timeout"));
  }
  return absl::OkStatus();
}

// With RESUME_NEVER the home lets in the process in the seat, and none that lost it. Any other
// value would take the seat back from its replacement.
void EpochTransition::CallAttach(const ServerLink& home, Time now,
                                 const Transport::Answer& answer) {
  v1::AttachRequest request;
  *request.mutable_protocol() = OwnProtocolRange();
  ToProto(job_->spec, request.mutable_spec());
  request.set_slot(job_->options.slot);
  request.set_incarnation(job_->incarnation);
  request.set_init(v1::INIT_MODE_BROADCAST);
  request.set_resume(v1::RESUME_NEVER);
  // A home without this job must not gather a world for a new one.
  request.set_wait_timeout_ms(1);
  CallTarget target;
  target.address = home.address();
  target.method = method::kAttach;
  const auto left = tries_.since() + tries_.timeout() - now;
  target.timeout = std::chrono::duration_cast<milliseconds>(left) + milliseconds(1);
  call_ = transport_->Start(target, request, answer);
}

absl::StatusOr<std::optional<v1::EpochRecord>> EpochTransition::TakeAnswer(
    const ServerLink& home, const absl::StatusOr<Payload>& answer, Time now) {
  call_.reset();
  v1::AttachReply reply;
  absl::Status status =
      answer.ok() ? ParseMessage(*answer, kMaxMessageBytes, &reply) : answer.status();
  if (status.ok()) status = CheckRecord(home, reply);
  if (ReasonOf(status) == Reason::kAttachTimeout) status = JobIsForgotten(home);
  if (status.ok()) return std::optional<v1::EpochRecord>(reply.epoch());
  if (SeatIsTaken(status)) return job_->SlotWasTaken(status);
  if (!IsNotYet(status, job_->options.slot) || IsForgotten(status)) return status;
  const std::string& cause = home.handshake().cause();
  const bool unreached = ReasonOf(status) == Reason::kUnspecified && !cause.empty();
  tries_.OnLost(unreached ? cause : status.message(), now);
  return std::optional<v1::EpochRecord>();
}

absl::Status EpochTransition::CheckRecord(const ServerLink& home,
                                          const v1::AttachReply& reply) const {
  const v1::EpochRecord& record = reply.epoch();
  if (reply.job() != job_->id) return JobIsForgotten(home);
  if (record.epoch() <= job_->epoch) {
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                         absl::StrCat("the job's home is still in epoch ", record.epoch()),
                         home.Fields());
  }
  if (!Continues(reply, *job_)) {
    return home.Broke("has given extents to other servers in the new epoch");
  }
  const Members members = MembersOf(record);
  const auto own = members.find(job_->options.slot);
  if (own != members.end() && own->second == job_->incarnation) return absl::OkStatus();
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
                       absl::StrCat("it is not in epoch ", record.epoch()), home.Fields());
}

absl::Status EpochTransition::JobIsForgotten(const ServerLink& home) const {
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kUnknownJob,
      absl::StrCat(home.Name(), ", the job's home, does not know job \"", job_->options.job,
                   "\" any more; give it its own data back, or start a new job"),
      home.Fields());
}

void EpochTransition::Enter(const ServerLink& home, const Members& before,
                            const v1::EpochRecord& record, Time now) {
  const Members members = MembersOf(record);
  for (const auto& [slot, incarnation] : members) {
    const auto old = before.find(slot);
    if (old == before.end() || old->second != incarnation) slots_.insert(slot);
    const bool had_left = left_.erase(slot) != 0;
    if (old == before.end() && !had_left) joined_.insert(slot);
  }
  for (const auto& [slot, incarnation] : before) {
    if (members.count(slot) != 0) continue;
    slots_.erase(slot);
    joined_.erase(slot);
    left_.insert(slot);
  }
  epoch_ = record.epoch();
  tries_.OnBack(now);
  Tell(home, Pause::Kind::kReplacing, now);
}

void EpochTransition::End(const ServerLink& home, Time now) {
  if (!open_ || tries_.away()) return;
  open_ = false;
  pauses_->meter().OnPassed(now);
  Tell(home, Pause::Kind::kReplaced, now);
}

void EpochTransition::Tell(const ServerLink& home, Pause::Kind kind, Time now) {
  Pause pause = home.News(kind, now);
  pause.away = now - since_;
  pause.error = tries_.last_error();
  pause.epoch = epoch_;
  if (epoch_ != 0) {
    pause.slots.assign(slots_.begin(), slots_.end());
    pause.joined.assign(joined_.begin(), joined_.end());
    pause.left.assign(left_.begin(), left_.end());
    pause.world = job_->world();
  }
  pauses_->Tell(std::move(pause));
}

}  // namespace ballast::client
