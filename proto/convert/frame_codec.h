// Bulk frames and control messages of the Data service, between bytes and plain structs. A frame is
// a hand-encoded protobuf message, so that its payload is neither copied into a message object nor
// out of it: the sender puts its own memory after a short prefix (EncodeFramePrefix), the receiver
// looks at the transport's pieces.
//
//   message := 0x7A <length> frame                       (field 15 of Client- and ServerMessage)
//   frame   := identity fields, crc32c, 0x7A <length> payload          (message DataFrame)
//
// The bytes equal those of stock protobuf, which leaves out zero fields.
// Comes from: streams. Goes to: server/service, client/cpp.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/variant.h"
#include "ballast/v1/data.pb.h"
#include "common/bytes/payload.h"
#include "common/job/frame_header.h"
#include "proto/convert/frame_fields.h"

namespace ballast {

using ClientInput = absl::variant<DecodedFrame, v1::ClientMessage>;
using ServerInput = absl::variant<DecodedFrame, v1::ServerMessage>;

// Reads one message of a stream. A message that begins with field 15 is a frame and is read by
// hand: fields in any order, each at most once, the payload last; unknown fields are skipped.
// Everything else is parsed by protobuf and has a kind other than a frame. The decoded frame's
// payload shares the owner of `message`. The checksum is not looked at; see CheckFrameCrc.
// Errors: INVALID_ARGUMENT BAD_FRAME for anything malformed, for a payload of more than
// `max_frame_bytes` and for another message of more than `max_control_bytes`.
absl::StatusOr<ClientInput> DecodeClientMessage(const Payload& message, size_t max_frame_bytes,
                                                size_t max_control_bytes);
absl::StatusOr<ServerInput> DecodeServerMessage(const Payload& message, size_t max_frame_bytes,
                                                size_t max_control_bytes);

// The bytes of a control message.
Payload MessageBytes(const google::protobuf::MessageLite& message);
// Parses `bytes` into `message`. INVALID_ARGUMENT BAD_FRAME when it has more than `max_bytes` bytes
// or is not a message of this type, or takes too much memory (ScanWire).
absl::Status ParseMessage(const Payload& bytes, size_t max_bytes,
                          google::protobuf::MessageLite* message);

}  // namespace ballast
