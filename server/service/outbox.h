// Messages waiting to be sent to one trainer. Pieces of extents wait as references and are cut into
// frames one at a time, when the connection is ready for the next: a slow reader costs no memory.
// Progress is merged: at most one acknowledgement and one heartbeat wait.
//
// Order: control messages and pieces of extents in the order in which they were added; an
// acknowledgement or heartbeat overtakes them, because the trainer's pushes wait for credit and for
// signs of life. Comes from: TrainerStream (SlotSink calls, received bytes). Goes to: the writes of
// the stream. Thread safety: thread-compatible; guarded by the stream.
#pragma once

#include <cstdint>
#include <deque>

#include "absl/types/optional.h"
#include "absl/types/variant.h"
#include "ballast/v1/data.pb.h"
#include "proto/convert/frame_codec.h"
#include "server/round/round_types.h"

namespace ballast::server {

// One frame to be formed: `header` lacks its checksum only; `bytes` is exactly the payload.
struct OutFrame {
  FrameHeader header;
  OutBytes bytes;
};
using OutMessage = absl::variant<v1::ServerMessage, OutFrame>;

class Outbox {
 public:
  struct Limits {
    uint32_t chunk_bytes = 1 << 20;
    uint64_t credit_bytes = 16 << 20;
    uint32_t window_extents = 64;
  };
  // Fills the frames' identity.
  struct Identity {
    uint64_t job = 0;
    uint32_t epoch = 0;
    uint32_t slot = 0;
    uint64_t incarnation = 0;
  };

  Outbox(const Limits& limits, const Identity& identity) : limits_(limits), identity_(identity) {}

  void AddMessage(v1::ServerMessage message);
  // Cut into frames of at most chunk_bytes. An empty one is ignored.
  void AddPiece(const OutPiece& piece);
  // The answer to a trainer's heartbeat. Takes unsent progress along.
  void AddHeartbeat(uint64_t sequence);
  // The engine's progress; sent soon when `ack.flush`, when the window moved by a quarter, when a
  // quarter of the credit is owed, or with the next heartbeat.
  void AddAck(const Ack& ack);
  // Frame payload that the engine has taken, which gives its credit back.
  void AddReceived(uint64_t bytes);

  // Drops everything and lets `last` be the last message; later additions are ignored.
  void Close(v1::ServerMessage last);

  // The next message, or nothing.
  absl::optional<OutMessage> Take();
  bool empty() const;
  // Control messages waiting: a trainer that provokes them without reading them must be stopped.
  size_t messages() const { return messages_; }

 private:
  struct Piece {
    FrameHeader header;         // without offset, length and checksum
    uint32_t offset_bytes = 0;  // of the piece in its extent
    OutBytes bytes;
    size_t sent = 0;
  };

  // The window's base as the trainer knows it, in the round of `ack_`.
  uint32_t ToldBase() const;
  bool AckDue() const;
  v1::ServerMessage TakeAck();
  OutFrame TakeFrame(Piece* piece);

  const Limits limits_;
  const Identity identity_;
  std::deque<absl::variant<v1::ServerMessage, Piece>> queue_;
  size_t messages_ = 0;
  Ack ack_;
  bool ack_flush_ = false;
  uint64_t received_bytes_ = 0;
  uint64_t acked_bytes_ = 0;
  uint64_t acked_round_ = 0;
  uint32_t acked_base_ = 0;
  absl::optional<uint64_t> heartbeat_;
  bool closed_ = false;
};

}  // namespace ballast::server
