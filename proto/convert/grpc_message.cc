#include "proto/convert/grpc_message.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/base/status_macros.h"
#include "grpcpp/support/slice.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/frame_fields.h"

namespace ballast {
namespace {

// A body that some slices of a buffer still show.
struct Lent {
  std::shared_ptr<const void> owner;
  std::atomic<size_t> slices;
};

void Release(void* lent) {
  auto* const self = static_cast<Lent*>(lent);
  if (self->slices.fetch_sub(1, std::memory_order_acq_rel) == 1) delete self;
}

}  // namespace

absl::StatusOr<Payload> ToPayload(const grpc::ByteBuffer& message) {
  if (!message.Valid()) return BadFrame("no bytes");
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  if (!message.Dump(slices.get()).ok()) return BadFrame("not a readable byte buffer");
  Payload::Pieces pieces;
  pieces.reserve(slices->size());
  for (const grpc::Slice& slice : *slices) {
    pieces.push_back({reinterpret_cast<const char*>(slice.begin()), slice.size()});
  }
  return Payload(std::move(pieces), std::move(slices));
}

grpc::ByteBuffer ToByteBuffer(const Outgoing& message) {
  const Payload::Pieces& pieces = message.body.pieces();
  absl::InlinedVector<grpc::Slice, 8> slices;
  slices.reserve(1 + pieces.size());
  slices.emplace_back(message.head);
  Lent* const lent = pieces.empty() ? nullptr : new Lent{message.body.owner(), {pieces.size()}};
  for (const Payload::Piece& piece : pieces) {
    // gRPC only reads from a slice that it sends; its type has no const form.
    slices.emplace_back(const_cast<char*>(piece.data), piece.bytes, &Release, lent);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer ToByteBuffer(const Outgoing& message, uint64_t* copied_bytes) {
  grpc::ByteBuffer buffer = ToByteBuffer(message);
  *copied_bytes += message.body.bytes() - SharedBytes(buffer, message.body);
  return buffer;
}

uint64_t SharedBytes(const grpc::ByteBuffer& buffer, const Payload& body) {
  if (body.bytes() == 0) return 0;
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return 0;
  uint64_t shared = 0;
  auto slice = slices.begin();
  for (const Payload::Piece& piece : body.pieces()) {
    slice = std::find_if(slice, slices.end(), [&piece](const grpc::Slice& each) {
      return reinterpret_cast<const char*>(each.begin()) == piece.data &&
             each.size() == piece.bytes;
    });
    if (slice == slices.end()) break;
    shared += piece.bytes;
  }
  return shared;
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, size_t max_bytes,
                          google::protobuf::MessageLite* message) {
  BALLAST_ASSIGN_OR_RETURN(const Payload payload, ToPayload(bytes));
  return ParseMessage(payload, max_bytes, message);
}

}  // namespace ballast
