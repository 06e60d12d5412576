#include "server/service/trainer_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "server/convert/control_convert.h"
#include "server/convert/data_convert.h"

namespace ballast::server {
namespace {

// Cost of a frame queued for the engine in addition to its payload, so that empty frames are
// bounded.
constexpr size_t kFrameOverheadBytes = 256;
constexpr int kFetchArraysMax = 16;
constexpr char kConnectionClosed[] = "its connection closed without a Leave";

absl::Status BadMessage(absl::string_view message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadFrame, message);
}

}  // namespace

struct TrainerStream::PostedPayload {
  PostedPayload(Payload payload_in, std::weak_ptr<TrainerStream> stream_in)
      : payload(std::move(payload_in)), stream(std::move(stream_in)) {}
  ~PostedPayload() {
    if (const auto target = stream.lock()) target->OnTaken(payload.bytes());
  }
  PostedPayload(const PostedPayload&) = delete;
  PostedPayload& operator=(const PostedPayload&) = delete;

  const Payload payload;
  const std::weak_ptr<TrainerStream> stream;
};

StreamFactory TrainerStream::Factory(const TrainerStreamDeps* deps) {
  return [deps](std::shared_ptr<MessageStream> call) {
    auto stream = std::make_shared<TrainerStream>(deps, call);
    stream->WatchSilence();
    call->Read();
    return stream;
  };
}

TrainerStream::TrainerStream(const TrainerStreamDeps* deps, std::shared_ptr<MessageStream> call)
    : deps_(deps), call_(std::move(call)), last_heard_(deps->clock->Now()), age_({}, {}, {}, 0) {
  outbox_ = std::make_unique<Outbox>(Outbox::Limits(), Outbox::Identity());
}

// --- From the trainer ---------------------------------------------------------------------------

void TrainerStream::OnMessage(Payload message) {
  bool first = false;
  {
    MutexLock lock(&mu_);
    last_heard_ = deps_->clock->Now();
    if (state_ == State::kClosed) return;
    first = state_ == State::kHello;
  }
  const absl::StatusOr<ClientInput> input =
      DecodeClientMessage(message, deps_->config.max_frame_bytes, deps_->config.max_control_bytes);
  const absl::Status status = !input.ok() ? input.status()
                              : first     ? OnHello(*input)
                                          : OnNext(*input);
  if (!status.ok()) {
    const std::string why = absl::StrCat("it broke the protocol: ", status.message());
    Close(status, why);
    Lost(why);
  } else {
    ReadMore();
  }
}

absl::Status TrainerStream::OnHello(const ClientInput& input) {
  const auto* control = absl::get_if<v1::ClientMessage>(&input);
  if (control == nullptr || !control->has_hello()) {
    return BadMessage("the first message of a data stream must be Hello");
  }
  const v1::Hello& hello = control->hello();
  BALLAST_ASSIGN_OR_RETURN(const uint32_t protocol,
                           ChooseProtocol(hello.protocol(), "the trainer"));
  BALLAST_ASSIGN_OR_RETURN(const auto jobs, deps_->directory->Get(&JobApis::lookup));
  const std::shared_ptr<RoundEngine> engine = jobs->Find(hello.job());
  if (engine == nullptr) return jobs->WhyNot(hello.job(), call_->caller());
  identity_ = {hello.job(), hello.epoch(), hello.slot(), hello.incarnation()};
  {
    MutexLock lock(&mu_);
    engine_ = engine;
    Outbox::Limits limits;
    limits.chunk_bytes = deps_->config.chunk_bytes;
    limits.credit_bytes = deps_->config.credit_bytes;
    limits.window_extents = engine->window_extents();
    outbox_ = std::make_unique<Outbox>(limits, identity_);
    state_ = State::kAttaching;
  }
  engine->trainers().AttachSlot(
      {identity_.slot, identity_.incarnation, identity_.epoch, hello.round(), call_->caller()},
      shared_from_this(),
      // Weak: the engine may keep this until the slot is free, and ends without calling it.
      [self = shared_from_this(), weak = std::weak_ptr(engine),
       protocol](const absl::StatusOr<SlotWelcome>& welcome) {
        if (const auto seated = weak.lock()) self->OnAttached(seated, welcome, protocol);
      });
  return absl::OkStatus();
}

void TrainerStream::OnAttached(const std::shared_ptr<RoundEngine>& engine,
                               const absl::StatusOr<SlotWelcome>& welcome, uint32_t protocol) {
  if (!welcome.ok()) {
    Close(welcome.status(), "");
    return;
  }
  bool over = false;
  {
    MutexLock lock(&mu_);
    over = engine_ == nullptr;
    seated_ = !over;
    if (state_ == State::kAttaching) {
      state_ = State::kOpen;
      const std::chrono::nanoseconds now = deps_->clock->Now();
      if (welcome->durable) {
        age_ = StreamAge(deps_->config.max_age, deps_->config.age_grace, now,
                         identity_.incarnation + static_cast<uint64_t>(now.count()));
      }
      v1::ServerMessage message;
      message.mutable_welcome()->set_protocol(protocol);
      message.mutable_welcome()->set_round(welcome->round);
      message.mutable_welcome()->mutable_complete()->Assign(welcome->complete.begin(),
                                                            welcome->complete.end());
      message.mutable_welcome()->mutable_init_missing()->Assign(welcome->init_missing.begin(),
                                                                welcome->init_missing.end());
      outbox_->AddMessage(std::move(message));
    }
  }
  if (over) {  // The call ended while the engine was asked.
    engine->trainers().SlotLost({identity_.slot, this, kConnectionClosed});
    return;
  }
  ResolveMetrics(engine.get());
  call_->Kick();
  ReadMore();
}

absl::Status TrainerStream::OnNext(const ClientInput& input) {
  const auto* const control = absl::get_if<v1::ClientMessage>(&input);
  if (control == nullptr || !control->has_heartbeat()) {
    MutexLock lock(&mu_);
    age_.OnWork();
  }
  if (control != nullptr) return OnControl(*control);
  OnFrame(absl::get<DecodedFrame>(input));
  return absl::OkStatus();
}

absl::Status TrainerStream::OnDoing(const v1::Doing& said) const {
  BALLAST_ASSIGN_OR_RETURN(const Doing doing, DoingFromProto(said));
  if (doing.phase == CollectivePhase::kNone) return absl::OkStatus();
  const auto trainers = deps_->directory->Get(&JobApis::trainers);
  if (!trainers.ok()) return absl::OkStatus();
  (*trainers)->Heard({identity_.job, {identity_.slot, identity_.incarnation, ""}, doing});
  return absl::OkStatus();
}

absl::Status TrainerStream::OnControl(const v1::ClientMessage& message) {
  switch (message.kind_case()) {
    case v1::ClientMessage::kBegin: {
      BALLAST_ASSIGN_OR_RETURN(RoundBegin begin,
                               BeginFromProto(message.begin(), deps_->config.presence_bytes_max));
      engine_->Begin(identity_.slot, std::move(begin));
      return absl::OkStatus();
    }
    case v1::ClientMessage::kHeartbeat: {
      BALLAST_RETURN_IF_ERROR(OnDoing(message.heartbeat().doing()));
      {
        MutexLock lock(&mu_);
        outbox_->AddHeartbeat(message.heartbeat().sequence());
      }
      call_->Kick();
      return absl::OkStatus();
    }
    case v1::ClientMessage::kFetchState: {
      const v1::FetchState& fetch = message.fetch_state();
      if (fetch.arrays_size() > kFetchArraysMax) {
        return BadMessage(absl::StrCat("FetchState asks for ", fetch.arrays_size(),
                                       " arrays, limit ", kFetchArraysMax));
      }
      const std::vector<uint32_t> arrays(fetch.arrays().begin(), fetch.arrays().end());
      engine_->trainers().FetchState({identity_.slot, fetch.round(), fetch.weights(), arrays});
      return absl::OkStatus();
    }
    case v1::ClientMessage::kLeave: {
      {
        MutexLock lock(&mu_);
        left_ = true;
      }
      engine_->trainers().Leave(identity_.slot, identity_.incarnation);
      return absl::OkStatus();
    }
    default:
      return BadMessage("a second Hello on one data stream");
  }
}

absl::Status TrainerStream::CheckFrame(const DecodedFrame& frame) const {
  const FrameHeader& header = frame.header;
  if (header.kind != FrameKind::kGradient && header.kind != FrameKind::kInit) {
    return BadMessage(
        absl::StrCat("a trainer sends gradients (1) and initial weights (2), not kind ",
                     static_cast<int>(header.kind)));
  }
  if (header.job != identity_.job || header.slot != identity_.slot) {
    return BadMessage(absl::StrCat("a frame of job ", JobIdText(header.job), " slot ", header.slot,
                                   " on the stream of job ", JobIdText(identity_.job), " slot ",
                                   identity_.slot));
  }
  if (header.incarnation != identity_.incarnation) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
                         "a frame of another incarnation than its stream's");
  }
  if (header.epoch != identity_.epoch) {
    // A trainer sends a damaged frame again, and ends its step for one of another epoch.
    BALLAST_RETURN_IF_ERROR(CheckFrameCrc(header, FrameCrc(header, frame.payload)));
    return ReasonedError(
        absl::StatusCode::kFailedPrecondition,
        header.epoch < identity_.epoch ? Reason::kStaleEpoch : Reason::kFutureEpoch,
        absl::StrCat("a frame of epoch ", header.epoch, " on a stream of epoch ", identity_.epoch));
  }
  return absl::OkStatus();
}

void TrainerStream::OnFrame(const DecodedFrame& frame) {
  const FrameHeader& header = frame.header;
  const size_t bytes = frame.payload.bytes();
  const absl::Status status = CheckFrame(frame);
  {
    MutexLock lock(&mu_);
    posted_bytes_ += bytes + kFrameOverheadBytes;
    if (job_metrics_ != nullptr) job_metrics_->push_bytes.Add(bytes);
  }
  if (!status.ok()) {
    const Reason reason = ReasonOf(status);
    if (deps_->metrics != nullptr) {  // The engine counts its own refusals.
      deps_->metrics->frames_rejected(reason)->Add();
      if (reason == Reason::kBadChecksum) deps_->metrics->checksum_errors("push")->Add();
    }
    OnRefused(
        {reason, header.round, header.extent, header.offset_bytes, std::string(status.message())});
    OnTaken(bytes);
    return;
  }
  auto posted = std::make_shared<PostedPayload>(frame.payload, weak_from_this());
  Payload::Pieces pieces = posted->payload.pieces();
  engine_->Frame(header, Payload(std::move(pieces), std::move(posted)));
}

void TrainerStream::OnTaken(size_t bytes) {
  bool read = false;
  bool kick = false;
  {
    MutexLock lock(&mu_);
    posted_bytes_ -= bytes + kFrameOverheadBytes;
    outbox_->AddReceived(bytes);
    kick = !outbox_->empty();
    read = paused_;
  }
  if (kick) call_->Kick();
  if (read) ReadMore();
}

void TrainerStream::OnReadsDone() {
  bool left = false;
  {
    MutexLock lock(&mu_);
    if (state_ == State::kClosed) return;
    left = left_;
    if (left) state_ = State::kClosed;
  }
  if (left) {
    call_->Finish(absl::OkStatus());
    return;
  }
  Close(ReasonedError(absl::StatusCode::kUnavailable, Reason::kTrainerLost, kConnectionClosed),
        kConnectionClosed);
  Lost(kConnectionClosed);
}

void TrainerStream::OnDone(bool cancelled) {
  std::string why;
  std::shared_ptr<RoundEngine> engine;
  bool lost = false;
  {
    MutexLock lock(&mu_);
    why = !close_why_.empty() ? close_why_ : cancelled ? "its connection broke" : kConnectionClosed;
    state_ = State::kClosed;
    outbox_->Close(v1::ServerMessage());  // Lets go of the extents.
    lost = seated_ && !left_;
    seated_ = false;
    engine.swap(engine_);
  }
  if (lost) engine->trainers().SlotLost({identity_.slot, this, why});
}

}  // namespace ballast::server
