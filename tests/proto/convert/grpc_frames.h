// Frames as gRPC's byte buffers, for tests that speak raw gRPC. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/grpc_message.h"

namespace ballast {

// The whole message. `payload` holds header.length_bytes bytes in any number of slices; they are
// shared, not copied.
inline grpc::ByteBuffer MakeFrame(const FrameHeader& header,
                                  absl::Span<const grpc::Slice> payload) {
  absl::InlinedVector<grpc::Slice, 8> slices;
  slices.reserve(1 + payload.size());
  slices.emplace_back(EncodeFramePrefix(header));
  for (const grpc::Slice& slice : payload) slices.push_back(slice);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// As frame_codec.h has them.
inline absl::StatusOr<ClientInput> DecodeClientMessage(const grpc::ByteBuffer& message,
                                                       size_t max_frame_bytes,
                                                       size_t max_control_bytes) {
  BALLAST_ASSIGN_OR_RETURN(const Payload bytes, ToPayload(message));
  return DecodeClientMessage(bytes, max_frame_bytes, max_control_bytes);
}
inline absl::StatusOr<ServerInput> DecodeServerMessage(const grpc::ByteBuffer& message,
                                                       size_t max_frame_bytes,
                                                       size_t max_control_bytes) {
  BALLAST_ASSIGN_OR_RETURN(const Payload bytes, ToPayload(message));
  return DecodeServerMessage(bytes, max_frame_bytes, max_control_bytes);
}

}  // namespace ballast
