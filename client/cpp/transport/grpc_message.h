// Messages of a link as gRPC's byte buffers, without copying the lent part.
// Comes from: Stream. Goes to: gRPC, whose threads release the lent memory.
// Thread safety: pure functions; a body's owner is released on any thread.
#pragma once

#include <cstdint>

#include "client/cpp/transport/link.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast::client {

// `message` as one buffer. The buffer holds the owner of the body until gRPC drops its last slice.
// Adds to `*copied_bytes` what stands in the buffer as a copy of the body.
grpc::ByteBuffer ToByteBuffer(const Outgoing& message, uint64_t* copied_bytes);

// How many bytes of `body` stand in `buffer` as the very same memory, in the same order.
uint64_t SharedBytes(const grpc::ByteBuffer& buffer, const Payload& body);

}  // namespace ballast::client
