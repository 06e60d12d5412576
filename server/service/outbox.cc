#include "server/service/outbox.h"

#include <algorithm>
#include <utility>

namespace ballast::server {

void Outbox::AddMessage(v1::ServerMessage message) {
  if (closed_) return;
  queue_.emplace_back(std::move(message));
  ++messages_;
}

void Outbox::AddPiece(const OutPiece& piece) {
  if (closed_ || piece.bytes.bytes == 0) return;
  Piece out;
  out.header.job = identity_.job;
  out.header.epoch = identity_.epoch;
  out.header.slot = identity_.slot;
  out.header.incarnation = identity_.incarnation;
  out.header.round = piece.round;
  out.header.extent = piece.extent;
  out.header.dtype = piece.dtype;
  out.header.kind = piece.kind;
  out.header.array = piece.array;
  out.offset_bytes = piece.offset_bytes;
  out.bytes = piece.bytes;
  queue_.emplace_back(std::move(out));
}

void Outbox::AddHeartbeat(uint64_t sequence) {
  if (closed_) return;
  heartbeat_ = sequence;
  // Merged acknowledgements are at most one heartbeat late. A trainer whose window is smaller than
  // this server's may have nothing more to send until it hears that the window has moved.
  ack_flush_ = ack_flush_ || received_bytes_ != acked_bytes_ || ack_.window_base > ToldBase();
}

void Outbox::AddAck(const Ack& ack) {
  ack_ = ack;
  ack_flush_ = ack_flush_ || ack.flush;
}

void Outbox::AddReceived(uint64_t bytes) { received_bytes_ += bytes; }

void Outbox::Close(v1::ServerMessage last) {
  if (closed_) return;
  queue_.clear();
  heartbeat_.reset();
  queue_.emplace_back(std::move(last));
  messages_ = 1;
  closed_ = true;
}

uint32_t Outbox::ToldBase() const { return ack_.round == acked_round_ ? acked_base_ : 0; }

bool Outbox::AckDue() const {
  if (closed_) return false;
  if (ack_flush_) return true;
  if (received_bytes_ - acked_bytes_ >= std::max<uint64_t>(limits_.credit_bytes / 4, 1)) {
    return true;
  }
  return ack_.window_base >= ToldBase() + std::max<uint64_t>(limits_.window_extents / 4, 1);
}

bool Outbox::empty() const { return queue_.empty() && !heartbeat_.has_value() && !AckDue(); }

v1::ServerMessage Outbox::TakeAck() {
  v1::ServerMessage message;
  v1::Ack* ack = message.mutable_ack();
  ack->set_received_bytes(received_bytes_);
  ack->set_durable_round(ack_.durable_round);
  ack->set_applied_round(ack_.applied_round);
  ack->set_window_base(ack_.window_base);
  ack->set_round(ack_.round);
  ack_flush_ = false;
  acked_bytes_ = received_bytes_;
  acked_round_ = ack_.round;
  acked_base_ = ack_.window_base;
  return message;
}

OutFrame Outbox::TakeFrame(Piece* piece) {
  const size_t bytes = std::min<size_t>(limits_.chunk_bytes, piece->bytes.bytes - piece->sent);
  OutFrame frame;
  frame.header = piece->header;
  frame.header.offset_bytes = piece->offset_bytes + static_cast<uint32_t>(piece->sent);
  frame.header.length_bytes = static_cast<uint32_t>(bytes);
  frame.bytes = {piece->bytes.data + piece->sent, bytes, piece->bytes.owner};
  piece->sent += bytes;
  return frame;
}

absl::optional<OutMessage> Outbox::Take() {
  if (AckDue()) return OutMessage(TakeAck());
  if (heartbeat_.has_value()) {
    v1::ServerMessage message;
    message.mutable_heartbeat()->set_sequence(*heartbeat_);
    heartbeat_.reset();
    return OutMessage(std::move(message));
  }
  if (queue_.empty()) return absl::nullopt;
  if (auto* piece = absl::get_if<Piece>(&queue_.front())) {
    OutMessage out(TakeFrame(piece));
    if (piece->sent == piece->bytes.bytes) queue_.pop_front();
    return out;
  }
  OutMessage out(std::move(absl::get<v1::ServerMessage>(queue_.front())));
  queue_.pop_front();
  --messages_;
  return out;
}

}  // namespace ballast::server
