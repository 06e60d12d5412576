#include "tests/sim/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/bytes/crc32c.h"
#include "proto/convert/channel.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/status_convert.h"
#include "server/convert/convert.h"

namespace ballast::sim {
namespace {

constexpr Tick kReportAfter = 2500 * kMillisecond;

std::string Encode(server::OutMessage message) {
  auto* const frame = absl::get_if<server::OutFrame>(&message);
  if (frame == nullptr) return absl::get<v1::ServerMessage>(message).SerializeAsString();
  frame->header.crc32c = Crc32c(frame->bytes.data, frame->bytes.bytes, IdentityCrc(frame->header));
  return EncodeFramePrefix(frame->header) + std::string(frame->bytes.data, frame->bytes.bytes);
}

}  // namespace

// Counts as received when the engine lets it go.
struct SimServer::Session::Received {
  Received(Payload payload_in, std::weak_ptr<Session> session_in)
      : payload(std::move(payload_in)), session(std::move(session_in)) {}
  ~Received() {
    if (const auto of = session.lock()) of->OnTaken(payload.bytes());
  }
  Received(const Received&) = delete;
  Received& operator=(const Received&) = delete;

  const Payload payload;
  const std::weak_ptr<Session> session;
};

// --- From the trainer ---------------------------------------------------------------------------

void SimServer::Session::OnUp(const Payload& message) {
  last_heard_ = clock()->Now();
  if (state_ == State::kClosed) return;
  const auto input = DecodeClientMessage(message, kMaxMessageBytes, kMaxMessageBytes);
  if (!input.ok()) return context_.world->Red("a trainer sends what is no message");
  if (const auto* const frame = absl::get_if<DecodedFrame>(&*input)) {
    OnFrame(*frame);
  } else {
    OnControl(absl::get<v1::ClientMessage>(*input));
  }
}

void SimServer::Session::OnControl(const v1::ClientMessage& message) {
  switch (message.kind_case()) {
    case v1::ClientMessage::kHello:
      return Hello(message.hello());
    case v1::ClientMessage::kBegin: {
      auto begin = server::BeginFromProto(message.begin(), kMaxMessageBytes);
      if (!begin.ok()) return context_.world->Red(begin.status().ToString());
      return engine_->Begin(hello_.slot, *std::move(begin));
    }
    case v1::ClientMessage::kHeartbeat:
      outbox_->AddHeartbeat(message.heartbeat().sequence());
      return Pump();
    case v1::ClientMessage::kFetchState: {
      const v1::FetchState& fetch = message.fetch_state();
      return engine_->FetchState(hello_.slot, fetch.round(), fetch.weights(),
                                 {fetch.arrays().begin(), fetch.arrays().end()});
    }
    case v1::ClientMessage::kLeave:
      left_ = true;
      return engine_->Leave(hello_.slot, hello_.incarnation);
    default:
      return context_.world->Red("a trainer sends a message of an unknown kind");
  }
}

void SimServer::Session::Hello(const v1::Hello& hello) {
  hello_ = {.slot = hello.slot(), .incarnation = hello.incarnation(), .epoch = hello.epoch()};
  hello_.round = hello.round();
  const Shape& shape = context_.swarm->shape;
  outbox_ = std::make_unique<server::Outbox>(
      server::Outbox::Limits{shape.chunk_bytes, shape.credit_bytes, engine_->window_extents()},
      server::Outbox::Identity{hello.job(), hello.epoch(), hello.slot(), hello.incarnation()});
  state_ = State::kAttaching;
  engine_->AttachSlot(hello_, shared_from_this(),
                      process_->InLife([self = shared_from_this()](
                                           const absl::StatusOr<server::SlotWelcome>& welcome) {
                        self->OnAttached(welcome);
                      }));
}

void SimServer::Session::OnAttached(const absl::StatusOr<server::SlotWelcome>& welcome) {
  if (!welcome.ok()) {
    Close(welcome.status(), "");
    return;
  }
  if (!process_->fsm().plan().epoch.Holds(hello_.slot, hello_.incarnation)) {
    return context_.world->Red("a process that is no member gets a stream");
  }
  const bool over = !stream_->server_open;
  seated_ = !over;
  if (state_ == State::kAttaching) {
    state_ = State::kOpen;
    welcome_round_ = welcome->round;
    v1::ServerMessage message;
    message.mutable_welcome()->set_round(welcome->round);
    message.mutable_welcome()->mutable_complete()->Assign(welcome->complete.begin(),
                                                          welcome->complete.end());
    message.mutable_welcome()->mutable_init_missing()->Assign(welcome->init_missing.begin(),
                                                              welcome->init_missing.end());
    Send(std::move(message));
  }
  if (over) engine_->SlotLost(hello_.slot, this, "its connection closed", {});
}

void SimServer::Session::OnFrame(const DecodedFrame& frame) {
  const FrameHeader& header = frame.header;
  if (header.slot != hello_.slot || header.incarnation != hello_.incarnation) {
    context_.world->Red("a trainer sends frames that are not its own");
    return;
  }
  const auto received = std::make_shared<Received>(frame.payload, weak_from_this());
  engine_->Frame(header, Payload(received->payload.pieces(), received));
}

void SimServer::Session::OnTaken(size_t bytes) {
  outbox_->AddReceived(bytes);
  Pump();
}

void SimServer::Session::OnUpEnded() {
  if (state_ == State::kClosed) return;
  const std::string why = "its connection closed without a Leave";
  if (!left_) {
    Close(ReasonedError(absl::StatusCode::kUnavailable, Reason::kTrainerLost, why), why);
    return Lost(why);
  }
  state_ = State::kClosed;
  context_.network->CloseDown(stream_, absl::OkStatus());
}

void SimServer::Session::OnClosed() {
  const std::string why = close_why_.empty() ? "its connection broke" : close_why_;
  state_ = State::kClosed;
  Lost(why);
}

// --- To the trainer -----------------------------------------------------------------------------

void SimServer::Session::Send(v1::ServerMessage message) {
  outbox_->AddMessage(std::move(message));
  Pump();
}

void SimServer::Session::Pump() {
  const bool goes_out = stream_ != nullptr && process_->alive();
  while (absl::optional<server::OutMessage> message = outbox_->Take()) {
    if (!goes_out) continue;
    context_.network->SendDown(stream_, Payload::FromString(Encode(*std::move(message))));
  }
}

void SimServer::Session::OnAck(const server::Ack& ack) {
  outbox_->AddAck(ack);
  Pump();
}

void SimServer::Session::OnResult(const RoundResult& result) {
  const server::RoundFsm& fsm = process_->fsm();
  uint64_t all = 0;
  for (const uint32_t extent : fsm.owned()) all += fsm.layout().ExtentWireBytes(extent);
  if (result.applied && result.weight_bytes < all) context_.world->Met(Cover::kUntouchedExtent);
  if (result.round < welcome_round_) context_.world->Met(Cover::kLastRoundAgain);
  v1::ServerMessage message;
  ToProto(result, message.mutable_result());
  Send(std::move(message));
}

void SimServer::Session::OnExtent(const server::OutPiece& piece) {
  if (stream_ == nullptr || !process_->alive()) return;
  outbox_->AddPiece(piece);
  Pump();
  if (piece.kind != FrameKind::kState) return;
  // Planes of the state stay where they are until the last byte is sent.
  process_->KeepWhileSent(piece.bytes.owner);
}

void SimServer::Session::OnDone(const server::RoundDone& done) {
  v1::ServerMessage message;
  ToProto(done, message.mutable_done());
  Send(std::move(message));
}

void SimServer::Session::OnRefused(const server::FrameRefused& refused) {
  if (refused.reason == Reason::kDuplicate) context_.world->Met(Cover::kDuplicateFrame);
  if (refused.reason == Reason::kOutOfWindow) context_.world->Met(Cover::kOutOfWindow);
  if (refused.reason == Reason::kBadChecksum) context_.world->Met(Cover::kBadChecksum);
  // A stray process' frame came through no stream.
  const bool stray = refused.reason == Reason::kStaleEpoch ||
                     refused.reason == Reason::kFutureEpoch ||
                     refused.reason == Reason::kWrongIncarnation;
  if (stray) return;
  v1::ServerMessage message;
  ToProto(refused, message.mutable_refused());
  Send(std::move(message));
}

void SimServer::Session::OnState(const server::StateInfo& info) {
  v1::ServerMessage message;
  ToProto(info, message.mutable_state());
  Send(std::move(message));
}

void SimServer::Session::OnTrainer(const server::TrainerNews& news) {
  v1::ServerMessage message;
  ToProto(news, message.mutable_trainer());
  Send(std::move(message));
}

void SimServer::Session::OnError(const absl::Status& status) {
  Close(status, absl::StrCat("its calls failed: ", status.message()));
}

void SimServer::Session::Close(const absl::Status& status, const std::string& why) {
  if (state_ == State::kClosed || stream_ == nullptr || !process_->alive()) return;
  state_ = State::kClosed;
  close_why_ = why;
  v1::ServerMessage message;
  *message.mutable_error() = DetailOf(status);
  outbox_->Close(std::move(message));
  Pump();
  context_.network->CloseDown(stream_, status);
}

void SimServer::Session::Lost(const std::string& why, Tick silent_for) {
  if (!std::exchange(seated_, false) || left_) return;
  engine_->SlotLost(hello_.slot, this, why,
                    std::chrono::nanoseconds(static_cast<int64_t>(silent_for)));
}

void SimServer::Session::WatchSilence() {
  const Tick since = clock()->Now() - last_heard_;
  const Tick delay = std::max(kReportAfter - std::min(since, kReportAfter), kReportAfter / 25);
  clock()->After(delay, EventKind::kTimer, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr || self->state_ == State::kClosed) return;
    const bool silent = self->state_ != State::kAttaching &&
                        self->clock()->Now() - self->last_heard_ >= kReportAfter;
    if (!silent) {
      self->WatchSilence();
      return;
    }
    ErrorFields fields;
    fields.slot = static_cast<int>(self->hello_.slot);
    self->Close(
        ReasonedError(absl::StatusCode::kUnavailable, Reason::kTrainerLost, "no heartbeat", fields),
        "no heartbeat");
    self->Lost("no heartbeat", kReportAfter);
  });
}

}  // namespace ballast::sim
