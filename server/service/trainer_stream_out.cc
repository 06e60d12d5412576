// TrainerStream: messages to the trainer, and a stream's pauses and end. See trainer_stream.h.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/bytes/crc32c.h"
#include "common/text/units.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/status_convert.h"
#include "server/convert/data_convert.h"
#include "server/service/trainer_stream.h"

namespace ballast::server {
namespace {

// Control messages that may wait for a trainer that does not read before we stop reading, too.
constexpr size_t kWaitingMessagesMax = 1024;

v1::ServerMessage ErrorMessage(const absl::Status& status) {
  v1::ServerMessage message;
  *message.mutable_error() = DetailOf(status);
  return message;
}

// The frame's bytes are lent to the transport until it has written them.
Outgoing EncodeFrame(OutFrame frame) {
  frame.header.crc32c = Crc32c(frame.bytes.data, frame.bytes.bytes, IdentityCrc(frame.header));
  return {EncodeFramePrefix(frame.header),
          Payload({{frame.bytes.data, frame.bytes.bytes}}, std::move(frame.bytes.owner))};
}

}  // namespace

// --- To the trainer -----------------------------------------------------------------------------

std::optional<Outgoing> TrainerStream::NextMessage() {
  absl::optional<OutMessage> message;
  bool read = false;
  {
    MutexLock lock(&mu_);
    message = outbox_->Take();
    read = paused_;
    sending_since_ = message.has_value() ? deps_->clock->Now() : std::chrono::nanoseconds(0);
    if (message.has_value()) Count(*message);
  }
  if (read) ReadMore();
  if (!message.has_value()) return std::nullopt;
  if (auto* frame = absl::get_if<OutFrame>(&*message)) return EncodeFrame(std::move(*frame));
  return Outgoing{absl::get<v1::ServerMessage>(*message).SerializeAsString(), Payload()};
}

void TrainerStream::Count(const OutMessage& message) {
  if (const auto* const frame = absl::get_if<OutFrame>(&message)) {
    if (job_metrics_ != nullptr) job_metrics_->pull_bytes.Add(frame->bytes.bytes);
  } else if (absl::get<v1::ServerMessage>(message).has_done()) {
    // It follows all weights of the round.
    const std::chrono::nanoseconds now = deps_->clock->Now();
    if (deps_->metrics != nullptr) {
      deps_->metrics->ObserveRound(RoundPhase::kStream, now - done_at_);
    }
    age_.OnRoundDone();
    if (!age_.Over(now)) return;
    deps_->executor->Post([weak = weak_from_this()] {
      if (const auto stream = weak.lock()) stream->EndAged();
    });
  }
}

void TrainerStream::Send(v1::ServerMessage message) {
  {
    MutexLock lock(&mu_);
    outbox_->AddMessage(std::move(message));
  }
  call_->Kick();
}

void TrainerStream::OnAck(const Ack& ack) {
  bool kick = false;
  {
    MutexLock lock(&mu_);
    outbox_->AddAck(ack);
    kick = !outbox_->empty();
  }
  if (kick) call_->Kick();
}

void TrainerStream::OnResult(const RoundResult& result) {
  v1::ServerMessage message;
  ToProto(result, message.mutable_result());
  Send(std::move(message));
}

void TrainerStream::OnExtent(const OutPiece& piece) {
  {
    MutexLock lock(&mu_);
    outbox_->AddPiece(piece);
  }
  call_->Kick();
}

void TrainerStream::OnDone(const RoundDone& done) {
  v1::ServerMessage message;
  ToProto(done, message.mutable_done());
  {
    MutexLock lock(&mu_);
    done_at_ = deps_->clock->Now();
  }
  Send(std::move(message));
}

void TrainerStream::OnRefused(const FrameRefused& refused) {
  v1::ServerMessage message;
  ToProto(refused, message.mutable_refused());
  Send(std::move(message));
}

void TrainerStream::OnState(const StateInfo& info) {
  v1::ServerMessage message;
  ToProto(info, message.mutable_state());
  Send(std::move(message));
}

void TrainerStream::OnTrainer(const TrainerNews& news) {
  v1::ServerMessage message;
  ToProto(news, message.mutable_trainer());
  Send(std::move(message));
}

void TrainerStream::OnError(const absl::Status& status) {
  Close(status, absl::StrCat("its calls failed: ", status.message()));
}

// --- Beginning, pausing and ending --------------------------------------------------------------

void TrainerStream::Close(const absl::Status& status, const std::string& why) {
  {
    MutexLock lock(&mu_);
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    close_why_ = why;
    outbox_->Close(ErrorMessage(call_->directory_names().Outward(status)));
  }
  call_->Kick();
  call_->Finish(status);
  // A trainer that does not even read this must not keep the call.
  deps_->executor->PostAfter(deps_->config.report_after, [call = std::weak_ptr(call_)] {
    if (const auto open = call.lock()) open->Cancel();
  });
}

void TrainerStream::Lost(const std::string& why, std::chrono::nanoseconds silent_for) {
  std::shared_ptr<RoundEngine> engine;
  {
    MutexLock lock(&mu_);
    if (!seated_ || left_ || engine_ == nullptr) return;
    seated_ = false;
    engine = engine_;
  }
  engine->trainers().SlotLost({identity_.slot, this, why, silent_for});
}

bool TrainerStream::MayRead() const {
  return state_ == State::kOpen && posted_bytes_ < deps_->config.credit_bytes &&
         outbox_->messages() < kWaitingMessagesMax;
}

void TrainerStream::ReadMore() {
  {
    MutexLock lock(&mu_);
    if (state_ != State::kOpen) return;
    if (Pause()) return;
  }
  call_->Read();
}

bool TrainerStream::Pause() {
  const bool was_paused = std::exchange(paused_, !MayRead());
  if (paused_ == was_paused) return paused_;
  const std::chrono::nanoseconds now = deps_->clock->Now();
  if (paused_) {
    paused_at_ = now;
    return true;
  }
  last_heard_ = now;  // While we did not read, silence was ours.
  if (job_metrics_ != nullptr) {
    job_metrics_->credit_wait_ns.Add(static_cast<uint64_t>((now - paused_at_).count()));
  }
  return false;
}

// Looks again when the present silence would be too long, so that it is reported without delay.
void TrainerStream::WatchSilence() {
  std::chrono::nanoseconds delay;
  {
    MutexLock lock(&mu_);
    delay = last_heard_ + deps_->config.report_after - deps_->clock->Now();
  }
  delay = std::max(delay, deps_->config.report_after / 25);
  deps_->executor->PostAfter(delay, [weak = weak_from_this()] {
    if (const auto stream = weak.lock()) stream->CheckSilence();
  });
}

bool TrainerStream::GiveUpUntaken() {
  {
    MutexLock lock(&mu_);
    const bool sending = state_ == State::kOpen && sending_since_.count() > 0;
    if (!sending || deps_->clock->Now() - sending_since_ < deps_->config.lease) return false;
  }
  const std::string why =
      absl::StrCat("took nothing that was sent to it for ", FormatDuration(deps_->config.lease));
  ErrorFields fields;
  fields.slot = static_cast<int>(identity_.slot);
  Close(ReasonedError(absl::StatusCode::kUnavailable, Reason::kTrainerLost,
                      absl::StrCat("slot ", identity_.slot, " of this job ", why,
                                   " and was given up, although it sent heartbeats; is its network "
                                   "blocked? Start the process again"),
                      fields),
        why);
  Lost(why, deps_->config.lease);
  return true;
}

bool TrainerStream::EndAged() {
  {
    MutexLock lock(&mu_);
    if (state_ != State::kOpen || !age_.Over(deps_->clock->Now())) return false;
  }
  const std::string why = "its connection has reached listen.max_connection_age";
  Close(ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                      "the connection has reached listen.max_connection_age; connect again"),
        why);
  Lost(why);
  return true;
}

bool TrainerStream::EndDenied() {
  if (deps_->gate == nullptr) return false;
  const absl::Status allowed = deps_->gate->StillAllowed(call_->caller());
  if (allowed.ok()) return false;
  Close(allowed, std::string(allowed.message()));
  Lost(std::string(allowed.message()));
  return true;
}

void TrainerStream::CheckSilence() {
  if (GiveUpUntaken()) return;
  bool silent = false;
  bool said_hello = false;
  {
    MutexLock lock(&mu_);
    if (state_ == State::kClosed) return;
    silent = !paused_ && state_ != State::kAttaching &&
             deps_->clock->Now() - last_heard_ >= deps_->config.report_after;
    said_hello = state_ != State::kHello;
  }
  if (EndDenied() || EndAged()) return;
  if (!silent) return WatchSilence();
  const std::string after = FormatDuration(deps_->config.report_after);
  if (!said_hello) {
    // It may be on its way: a machine that was moved or stood still has passed the time at once.
    Close(ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                        absl::StrCat("no Hello within ", after, "; connect again")),
          "");
    return;
  }
  const std::string why = absl::StrCat("no heartbeat for ", after);
  ErrorFields fields;
  fields.slot = static_cast<int>(identity_.slot);
  Close(ReasonedError(
            absl::StatusCode::kUnavailable, Reason::kTrainerLost,
            absl::StrCat("slot ", identity_.slot, " of this job sent no heartbeat for ", after,
                         " and was given up; was the process stopped? A job without durability ",
                         "has failed by that: start it again"),
            fields),
        why);
  Lost(why, deps_->config.report_after);
}

void TrainerStream::ResolveMetrics(RoundEngine* engine) {
  if (deps_->metrics == nullptr) return;
  engine->Status([weak = weak_from_this()](const JobStatus& job) {
    const auto stream = weak.lock();
    if (stream == nullptr) return;
    auto metrics = stream->deps_->metrics->Job({job.tenant, job.name});
    MutexLock lock(&stream->mu_);
    stream->job_metrics_ = std::move(metrics);
  });
}

}  // namespace ballast::server
