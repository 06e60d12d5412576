// One bulk frame as bytes: the fields of message DataFrame, written and read by hand. See
// frame_codec.h for the grammar.
// Comes from, and goes to: frame_codec. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/bytes/payload.h"
#include "common/job/frame_header.h"
#include "proto/convert/payload_reader.h"

namespace ballast {

// Tag of field 15 with wire type 2: the frame in its message, and the payload in its frame.
constexpr unsigned char kField15 = 0x7A;

// A received frame. The payload keeps gRPC's slices alive.
struct DecodedFrame {
  FrameHeader header;
  Payload payload;
};

// The bytes of a message up to its payload of header.length_bytes bytes; crc32c must be set.
std::string EncodeFramePrefix(const FrameHeader& header);

// Reads the rest of a message. `reader` stands after the message's tag. INVALID_ARGUMENT BAD_FRAME
// for anything malformed, and for a payload of more than `max_frame_bytes`.
absl::StatusOr<DecodedFrame> ReadFrame(PayloadReader* reader, size_t max_frame_bytes);

// INVALID_ARGUMENT BAD_FRAME with `what` is malformed.
absl::Status BadFrame(absl::string_view what);

}  // namespace ballast
