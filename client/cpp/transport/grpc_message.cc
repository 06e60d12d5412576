#include "client/cpp/transport/grpc_message.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "grpcpp/support/slice.h"

namespace ballast::client {
namespace {

// A body that some slices of a buffer still show.
struct Lent {
  Payload body;
  std::atomic<size_t> slices;
};

void Release(void* lent) {
  auto* const self = static_cast<Lent*>(lent);
  if (self->slices.fetch_sub(1, std::memory_order_acq_rel) == 1) delete self;
}

}  // namespace

grpc::ByteBuffer ToByteBuffer(const Outgoing& message, uint64_t* copied_bytes) {
  const Payload::Pieces& pieces = message.body.pieces();
  std::vector<grpc::Slice> slices;
  slices.reserve(1 + pieces.size());
  slices.emplace_back(message.head);
  Lent* const lent = pieces.empty() ? nullptr : new Lent{message.body, {pieces.size()}};
  for (const Payload::Piece& piece : pieces) {
    // gRPC only reads from a slice that it sends; its type has no const form.
    slices.emplace_back(const_cast<char*>(piece.data), piece.bytes, &Release, lent);
  }
  grpc::ByteBuffer buffer(slices.data(), slices.size());
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

}  // namespace ballast::client
