#include "server/rpc/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/base/names.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/status_convert.h"
#include "server/rpc/convert.h"

namespace ballast::server {
namespace {

// What a frame on its way to the engine costs beside its payload, so that empty frames are bounded.
constexpr size_t kFrameOverheadBytes = 256;
// Control messages that may wait for a trainer that does not read before we stop reading, too.
constexpr size_t kWaitingMessagesMax = 1024;
constexpr int kFetchArraysMax = 16;
constexpr char kConnectionClosed[] = "its connection closed without a Leave";

absl::Status BadFrame(absl::string_view message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadFrame, message);
}

v1::ServerMessage ErrorMessage(const absl::Status& status) {
  v1::ServerMessage message;
  *message.mutable_error() = DetailOf(status);
  return message;
}

void ReleaseOwner(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

// The frame's bytes are lent to gRPC until it has written them.
grpc::ByteBuffer EncodeFrame(OutFrame frame) {
  frame.header.crc32c = Crc32c(frame.bytes.data, frame.bytes.bytes, IdentityCrc(frame.header));
  auto* owner = new std::shared_ptr<const void>(std::move(frame.bytes.owner));
  const grpc::Slice payload(const_cast<char*>(frame.bytes.data), frame.bytes.bytes, &ReleaseOwner,
                            owner);
  return MakeFrame(frame.header, absl::MakeConstSpan(&payload, 1));
}

}  // namespace

struct Session::PostedPayload {
  PostedPayload(Payload payload_in, std::weak_ptr<Session> session_in)
      : payload(std::move(payload_in)), session(std::move(session_in)) {}
  ~PostedPayload() {
    if (const auto target = session.lock()) target->OnTaken(payload.bytes());
  }
  PostedPayload(const PostedPayload&) = delete;
  PostedPayload& operator=(const PostedPayload&) = delete;

  const Payload payload;
  const std::weak_ptr<Session> session;
};

GenericServer::HandlerFactory Session::Factory(const SessionDeps* deps) {
  return [deps](std::shared_ptr<GenericCall> call) {
    auto session = std::make_shared<Session>(deps, call);
    session->WatchSilence();
    call->Read();
    return session;
  };
}

Session::Session(const SessionDeps* deps, std::shared_ptr<GenericCall> call)
    : deps_(deps), call_(std::move(call)), last_heard_(deps->clock->Now()) {
  outbox_ = std::make_unique<Outbox>(Outbox::Limits(), Outbox::Identity());
}

// --- From the trainer ---------------------------------------------------------------------------

void Session::OnMessage(grpc::ByteBuffer message) {
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

absl::Status Session::OnHello(const ClientInput& input) {
  const auto* control = absl::get_if<v1::ClientMessage>(&input);
  if (control == nullptr || !control->has_hello()) {
    return BadFrame("the first message of a data stream must be Hello");
  }
  const v1::Hello& hello = control->hello();
  BALLAST_ASSIGN_OR_RETURN(const uint32_t protocol,
                           ChooseProtocol(hello.protocol(), "the trainer"));
  BALLAST_ASSIGN_OR_RETURN(const auto jobs, deps_->directory->lookup());
  const std::shared_ptr<RoundEngine> engine = jobs->Find(hello.job());
  if (engine == nullptr) {
    return ReasonedError(
        absl::StatusCode::kNotFound, Reason::kUnknownJob,
        absl::StrCat("this server has no job ", JobIdText(hello.job()), "; attach again"));
  }
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
  engine->AttachSlot(
      {identity_.slot, identity_.incarnation, identity_.epoch, hello.round()}, shared_from_this(),
      [self = shared_from_this(), engine, protocol](const absl::StatusOr<SlotWelcome>& welcome) {
        self->OnAttached(engine, welcome, protocol);
      });
  return absl::OkStatus();
}

void Session::OnAttached(const std::shared_ptr<RoundEngine>& engine,
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
    engine->SlotLost(identity_.slot, this, kConnectionClosed);
    return;
  }
  ResolveMetrics(engine.get());
  call_->Kick();
  ReadMore();
}

absl::Status Session::OnNext(const ClientInput& input) {
  if (const auto* frame = absl::get_if<DecodedFrame>(&input)) {
    OnFrame(*frame);
    return absl::OkStatus();
  }
  return OnControl(absl::get<v1::ClientMessage>(input));
}

absl::Status Session::OnControl(const v1::ClientMessage& message) {
  switch (message.kind_case()) {
    case v1::ClientMessage::kBegin: {
      BALLAST_ASSIGN_OR_RETURN(RoundBegin begin,
                               BeginFromProto(message.begin(), deps_->config.presence_bytes_max));
      engine_->Begin(identity_.slot, std::move(begin));
      return absl::OkStatus();
    }
    case v1::ClientMessage::kHeartbeat: {
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
        return BadFrame(absl::StrCat("FetchState asks for ", fetch.arrays_size(), " arrays, limit ",
                                     kFetchArraysMax));
      }
      engine_->FetchState(identity_.slot, fetch.round(), fetch.weights(),
                          {fetch.arrays().begin(), fetch.arrays().end()});
      return absl::OkStatus();
    }
    case v1::ClientMessage::kLeave: {
      {
        MutexLock lock(&mu_);
        left_ = true;
      }
      engine_->Leave(identity_.slot, identity_.incarnation);
      return absl::OkStatus();
    }
    default:
      return BadFrame("a second Hello on one data stream");
  }
}

absl::Status Session::CheckFrame(const FrameHeader& header) const {
  if (header.kind != FrameKind::kGradient && header.kind != FrameKind::kInit) {
    return BadFrame(absl::StrCat("a trainer sends gradients (1) and initial weights (2), not kind ",
                                 static_cast<int>(header.kind)));
  }
  if (header.job != identity_.job || header.slot != identity_.slot) {
    return BadFrame(absl::StrCat("a frame of job ", JobIdText(header.job), " slot ", header.slot,
                                 " on the stream of job ", JobIdText(identity_.job), " slot ",
                                 identity_.slot));
  }
  if (header.incarnation != identity_.incarnation) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
                         "a frame of another incarnation than its stream's");
  }
  return absl::OkStatus();
}

void Session::OnFrame(const DecodedFrame& frame) {
  const FrameHeader& header = frame.header;
  const size_t bytes = frame.payload.bytes();
  const absl::Status status = CheckFrame(header);
  {
    MutexLock lock(&mu_);
    posted_bytes_ += bytes + kFrameOverheadBytes;
    if (job_metrics_ != nullptr) job_metrics_->push_bytes.Add(bytes);
  }
  if (!status.ok()) {
    const Reason reason = ReasonOf(status);
    if (deps_->metrics != nullptr) {  // The engine counts its own refusals.
      deps_->metrics->frames_rejected(ReasonName(reason))->Add();
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

void Session::OnTaken(size_t bytes) {
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

void Session::OnReadsDone() {
  bool left = false;
  {
    MutexLock lock(&mu_);
    if (state_ == State::kClosed) return;
    left = left_;
    if (left) state_ = State::kClosed;
  }
  if (left) {
    call_->Finish(grpc::Status::OK);
    return;
  }
  Close(ReasonedError(absl::StatusCode::kUnavailable, Reason::kTrainerLost, kConnectionClosed),
        kConnectionClosed);
  Lost(kConnectionClosed);
}

void Session::OnDone(bool cancelled) {
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
  if (lost) engine->SlotLost(identity_.slot, this, why);
}

// --- To the trainer -----------------------------------------------------------------------------

absl::optional<grpc::ByteBuffer> Session::NextMessage() {
  absl::optional<OutMessage> message;
  bool read = false;
  {
    MutexLock lock(&mu_);
    message = outbox_->Take();
    read = paused_;
    if (message.has_value() && job_metrics_ != nullptr) {
      if (const auto* frame = absl::get_if<OutFrame>(&*message)) {
        job_metrics_->pull_bytes.Add(frame->bytes.bytes);
      }
    }
  }
  if (read) ReadMore();
  if (!message.has_value()) return absl::nullopt;
  if (auto* frame = absl::get_if<OutFrame>(&*message)) return EncodeFrame(std::move(*frame));
  return SerializeMessage(absl::get<v1::ServerMessage>(*message));
}

void Session::Send(v1::ServerMessage message) {
  {
    MutexLock lock(&mu_);
    outbox_->AddMessage(std::move(message));
  }
  call_->Kick();
}

void Session::OnAck(const Ack& ack) {
  bool kick = false;
  {
    MutexLock lock(&mu_);
    outbox_->AddAck(ack);
    kick = !outbox_->empty();
  }
  if (kick) call_->Kick();
}

void Session::OnResult(const RoundResult& result) {
  v1::ServerMessage message;
  ToProto(result, message.mutable_result());
  Send(std::move(message));
}

void Session::OnExtent(const OutPiece& piece) {
  {
    MutexLock lock(&mu_);
    outbox_->AddPiece(piece);
  }
  call_->Kick();
}

void Session::OnDone(const RoundDone& done) {
  v1::ServerMessage message;
  ToProto(done, message.mutable_done());
  Send(std::move(message));
}

void Session::OnRefused(const FrameRefused& refused) {
  v1::ServerMessage message;
  ToProto(refused, message.mutable_refused());
  Send(std::move(message));
}

void Session::OnState(const StateInfo& info) {
  v1::ServerMessage message;
  ToProto(info, message.mutable_state());
  Send(std::move(message));
}

void Session::OnTrainer(const TrainerNews& news) {
  v1::ServerMessage message;
  ToProto(news, message.mutable_trainer());
  Send(std::move(message));
}

void Session::OnError(const absl::Status& status) {
  Close(status, absl::StrCat("its calls failed: ", status.message()));
}

// --- Beginning, pausing and ending --------------------------------------------------------------

void Session::Close(const absl::Status& status, const std::string& why) {
  {
    MutexLock lock(&mu_);
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    close_why_ = why;
    outbox_->Close(ErrorMessage(status));
  }
  call_->Kick();
  call_->Finish(ToGrpc(status));
  // A trainer that does not even read this must not keep the call.
  deps_->executor->PostAfter(deps_->config.report_after, [call = std::weak_ptr(call_)] {
    if (const auto open = call.lock()) open->Cancel();
  });
}

void Session::Lost(const std::string& why, std::chrono::nanoseconds silent_for) {
  std::shared_ptr<RoundEngine> engine;
  {
    MutexLock lock(&mu_);
    if (!seated_ || left_ || engine_ == nullptr) return;
    seated_ = false;
    engine = engine_;
  }
  engine->SlotLost(identity_.slot, this, why, silent_for);
}

bool Session::MayRead() const {
  return state_ == State::kOpen && posted_bytes_ < deps_->config.credit_bytes &&
         outbox_->messages() < kWaitingMessagesMax;
}

void Session::ReadMore() {
  {
    MutexLock lock(&mu_);
    if (state_ != State::kOpen) return;
    const bool was_paused = paused_;
    paused_ = !MayRead();
    if (paused_) return;
    // While we did not read, silence was ours.
    if (was_paused) last_heard_ = deps_->clock->Now();
  }
  call_->Read();
}

// Looks again when the present silence would be too long, so that it is reported without delay.
void Session::WatchSilence() {
  std::chrono::nanoseconds delay;
  {
    MutexLock lock(&mu_);
    delay = last_heard_ + deps_->config.report_after - deps_->clock->Now();
  }
  delay = std::max(delay, deps_->config.report_after / 25);
  deps_->executor->PostAfter(delay, [weak = weak_from_this()] {
    if (const auto session = weak.lock()) session->CheckSilence();
  });
}

void Session::CheckSilence() {
  bool silent = false;
  bool said_hello = false;
  {
    MutexLock lock(&mu_);
    if (state_ == State::kClosed) return;
    silent = !paused_ && state_ != State::kAttaching &&
             deps_->clock->Now() - last_heard_ >= deps_->config.report_after;
    said_hello = state_ != State::kHello;
  }
  if (!silent) {
    WatchSilence();
    return;
  }
  const std::string after = FormatDuration(deps_->config.report_after);
  if (!said_hello) {
    Close(BadFrame(absl::StrCat("no Hello within ", after)), "");
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

void Session::ResolveMetrics(RoundEngine* engine) {
  if (deps_->metrics == nullptr) return;
  engine->Snapshot([weak = weak_from_this()](const JobSnapshot& job) {
    const auto session = weak.lock();
    if (session == nullptr) return;
    auto metrics = session->deps_->metrics->Job(job.name);
    MutexLock lock(&session->mu_);
    session->job_metrics_ = std::move(metrics);
  });
}

}  // namespace ballast::server
