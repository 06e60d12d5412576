// Messages of a link as gRPC's byte buffers, without copying the lent part.
// Comes from: Stream. Goes to: gRPC, whose threads release the lent memory.
// Thread safety: pure functions; a body's owner is released on any thread.
#pragma once

#include <cstdint>

#include "client/cpp/transport/link.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast::client {

// `message` as one buffer. The buffer holds the owner of the body until gRPC drops its last slice.
// Adds the number of copied body bytes to `*copied_bytes`.
grpc::ByteBuffer ToByteBuffer(const Outgoing& message, uint64_t* copied_bytes);

// Bytes of `body` that `buffer` refers to without a copy, in the same order.
uint64_t SharedBytes(const grpc::ByteBuffer& buffer, const Payload& body);

}  // namespace ballast::client
