#include "proto/convert/frame_codec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "proto/convert/frame_fields.h"
#include "proto/convert/payload_reader.h"
#include "proto/convert/wire_scan.h"

namespace ballast {
namespace {

// All fields but the payload take less; the rest is room for fields of later protocols.
constexpr size_t kMaxPrefixBytes = 1024;
constexpr size_t kScanAbove = 4096;

bool BeginsWithFrame(const Payload& message) {
  for (const Payload::Piece& piece : message.pieces()) {
    if (piece.bytes > 0) return static_cast<unsigned char>(*piece.data) == kField15;
  }
  return false;
}

// What protobuf parses but no peer sends.
bool IsMeaningless(const v1::ClientMessage& message) {
  return message.kind_case() == v1::ClientMessage::KIND_NOT_SET || message.has_frame();
}

// A weight frame with one flipped tag bit looks like a refusal without a reason.
bool IsMeaningless(const v1::ServerMessage& message) {
  return message.kind_case() == v1::ServerMessage::KIND_NOT_SET || message.has_frame() ||
         (message.has_refused() && message.refused().reason() == v1::REASON_UNSPECIFIED);
}

absl::Status TooLong(size_t bytes, size_t limit) {
  return BadFrame(absl::StrCat("message of ", bytes, " bytes, limit ", limit));
}

template <typename Message>
absl::StatusOr<absl::variant<DecodedFrame, Message>> Decode(const Payload& message,
                                                            size_t max_frame_bytes,
                                                            size_t max_control_bytes) {
  const size_t limit = std::max(max_frame_bytes + kMaxPrefixBytes, max_control_bytes);
  if (message.bytes() > limit) return TooLong(message.bytes(), limit);
  if (BeginsWithFrame(message)) {
    PayloadReader reader(message);
    unsigned char tag = 0;
    reader.ReadByte(&tag);
    BALLAST_ASSIGN_OR_RETURN(DecodedFrame frame, ReadFrame(&reader, max_frame_bytes));
    return frame;
  }
  Message control;
  BALLAST_RETURN_IF_ERROR(ParseMessage(message, max_control_bytes, &control));
  if (IsMeaningless(control)) {
    return BadFrame("a message of no known kind, or a frame behind other fields");
  }
  return control;
}

}  // namespace

absl::StatusOr<ClientInput> DecodeClientMessage(const Payload& message, size_t max_frame_bytes,
                                                size_t max_control_bytes) {
  return Decode<v1::ClientMessage>(message, max_frame_bytes, max_control_bytes);
}

absl::StatusOr<ServerInput> DecodeServerMessage(const Payload& message, size_t max_frame_bytes,
                                                size_t max_control_bytes) {
  return Decode<v1::ServerMessage>(message, max_frame_bytes, max_control_bytes);
}

Payload MessageBytes(const google::protobuf::MessageLite& message) {
  return Payload::FromString(message.SerializeAsString());
}

absl::Status ParseMessage(const Payload& bytes, size_t max_bytes,
                          google::protobuf::MessageLite* message) {
  if (bytes.bytes() > max_bytes) return TooLong(bytes.bytes(), max_bytes);
  // A short one is cheap, regardless of its content.
  if (bytes.bytes() > kScanAbove) BALLAST_RETURN_IF_ERROR(ScanWire(bytes, *message).status());
  return ParseScanned(bytes, message);
}

}  // namespace ballast
