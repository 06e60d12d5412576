// Messages between our own types and gRPC's byte buffers, without copying frames.
// Comes from: the transports over gRPC, of server and client. Goes to: gRPC, whose threads release
// the lent memory. Thread safety: pure functions; a body's owner is released on any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes/outgoing.h"
#include "common/bytes/payload.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast {

// The bytes of `message`, which are shared, not copied. Error: INVALID_ARGUMENT BAD_FRAME when
// `message` holds nothing or cannot be read.
absl::StatusOr<Payload> ToPayload(const grpc::ByteBuffer& message);

// `message` as one buffer. The buffer holds the owner of the body until gRPC drops its last slice.
grpc::ByteBuffer ToByteBuffer(const Outgoing& message);
// Also adds the number of copied body bytes to `*copied_bytes`.
grpc::ByteBuffer ToByteBuffer(const Outgoing& message, uint64_t* copied_bytes);

// Bytes of `body` that `buffer` refers to without a copy, in the same order.
uint64_t SharedBytes(const grpc::ByteBuffer& buffer, const Payload& body);

// Control messages in one slice, for generic unary calls.
grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message);

// ParseMessage of frame_codec.h.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, size_t max_bytes,
                          google::protobuf::MessageLite* message);

}  // namespace ballast
