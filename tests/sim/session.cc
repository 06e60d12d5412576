#include "tests/sim/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/overloaded.h"
#include "common/base/reason.h"

namespace ballast::sim {
namespace {

constexpr Tick kReportAfter = 2500 * kMillisecond;

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

void SimServer::Session::OnUp(UpMessage message) {
  last_heard_ = clock()->Now();
  if (state_ == State::kClosed) return;
  std::visit(Overloaded{
                 [this](const server::SlotHello& hello) { Hello(hello); },
                 [this](const server::RoundBegin& begin) { engine_->Begin(hello_.slot, begin); },
                 [this](FrameMessage& frame) { OnFrame(std::move(frame)); },
                 [this](const HeartbeatMessage&) {
                   if (received_bytes_ != acked_bytes_) FlushAck();
                   Send(HeartbeatMessage{});
                 },
                 [this](const FetchMessage& fetch) {
                   engine_->FetchState(hello_.slot, fetch.round, fetch.weights, fetch.arrays);
                 },
                 [this](const LeaveMessage&) {
                   left_ = true;
                   engine_->Leave(hello_.slot, hello_.incarnation);
                 },
             },
             message);
}

void SimServer::Session::Hello(const server::SlotHello& hello) {
  hello_ = hello;
  state_ = State::kAttaching;
  engine_->AttachSlot(hello, shared_from_this(),
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
    Send(*welcome);
  }
  if (over) engine_->SlotLost(hello_.slot, this, "its connection closed", {});
}

void SimServer::Session::OnFrame(FrameMessage frame) {
  const FrameHeader& header = frame.header;
  if (header.slot != hello_.slot || header.incarnation != hello_.incarnation) {
    context_.world->Red("a trainer sends frames that are not its own");
    return;
  }
  const auto received = std::make_shared<Received>(std::move(frame.payload), weak_from_this());
  engine_->Frame(header, Payload(received->payload.pieces(), received));
}

void SimServer::Session::OnTaken(size_t bytes) {
  received_bytes_ += bytes;
  if (AckDue()) FlushAck();
}

void SimServer::Session::OnClosed() {
  const std::string why = close_why_.empty() ? "its connection broke" : close_why_;
  state_ = State::kClosed;
  Lost(why);
}

// --- To the trainer -----------------------------------------------------------------------------

void SimServer::Session::Send(DownMessage message) {
  if (state_ == State::kClosed || stream_ == nullptr || !process_->alive()) return;
  context_.network->SendDown(stream_, std::move(message));
}

bool SimServer::Session::AckDue() const {
  const Shape& shape = context_.swarm->shape;
  if (received_bytes_ - acked_bytes_ >= std::max<uint64_t>(shape.credit_bytes / 4, 1)) return true;
  const uint64_t told = ack_.round == acked_round_ ? acked_base_ : 0;
  return ack_.window_base >= told + std::max<uint32_t>(shape.window_extents[0] / 4, 1);
}

void SimServer::Session::FlushAck() {
  acked_bytes_ = received_bytes_;
  acked_round_ = ack_.round;
  acked_base_ = ack_.window_base;
  Send(AckMessage{received_bytes_, ack_.round, ack_.window_base});
}

void SimServer::Session::OnAck(const server::Ack& ack) {
  ack_ = ack;
  if (ack.flush || AckDue()) FlushAck();
}

void SimServer::Session::OnResult(const RoundResult& result) {
  const server::RoundFsm& fsm = process_->fsm();
  uint64_t all = 0;
  for (const uint32_t extent : fsm.owned()) all += fsm.layout().ExtentWireBytes(extent);
  if (result.applied && result.weight_bytes < all) context_.world->Met(Cover::kUntouchedExtent);
  if (result.round < welcome_round_) context_.world->Met(Cover::kLastRoundAgain);
  Send(result);
}

void SimServer::Session::OnExtent(const server::OutPiece& piece) {
  if (stream_ == nullptr || !process_->alive()) return;
  auto bytes =
      std::make_shared<std::vector<char>>(piece.bytes.data, piece.bytes.data + piece.bytes.bytes);
  Send(PieceMessage{piece.kind, piece.array, piece.round, piece.extent, piece.offset_bytes,
                    std::move(bytes)});
  if (piece.kind != FrameKind::kState) return;
  // Planes of the state stay where they are until the last byte is sent.
  process_->KeepWhileSent(piece.bytes.owner);
}

void SimServer::Session::OnDone(const server::RoundDone& done) { Send(done); }

void SimServer::Session::OnRefused(const server::FrameRefused& refused) {
  if (refused.reason == Reason::kDuplicate) context_.world->Met(Cover::kDuplicateFrame);
  if (refused.reason == Reason::kOutOfWindow) context_.world->Met(Cover::kOutOfWindow);
  if (refused.reason == Reason::kBadChecksum) context_.world->Met(Cover::kBadChecksum);
  // A stray process' frame came through no stream.
  const bool stray = refused.reason == Reason::kStaleEpoch ||
                     refused.reason == Reason::kFutureEpoch ||
                     refused.reason == Reason::kWrongIncarnation;
  if (!stray) Send(refused);
}

void SimServer::Session::OnState(const server::StateInfo& info) { Send(info); }

void SimServer::Session::OnError(const absl::Status& status) {
  Close(status, absl::StrCat("its calls failed: ", status.message()));
}

void SimServer::Session::Close(const absl::Status& status, const std::string& why) {
  if (state_ == State::kClosed || stream_ == nullptr || !process_->alive()) return;
  close_why_ = why;
  Send(ErrorMessage{status});
  state_ = State::kClosed;
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
