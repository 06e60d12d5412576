// Messages as gRPC's byte buffers: lent memory is shared and comes back.
#include "proto/convert/grpc_message.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/support/slice.h"

namespace ballast {
namespace {

Payload::Piece PieceOf(const std::string& bytes) { return {bytes.data(), bytes.size()}; }

std::string TextOf(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  EXPECT_TRUE(buffer.DumpToSingleSlice(&slice).ok());
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

TEST(GrpcMessage, HasTheHeadAndThenTheBodyWhichIsNotCopied) {
  const std::string first(300, 'a');
  const std::string second(5, 'b');
  const Payload body({PieceOf(first), PieceOf(second)}, nullptr);
  uint64_t copied = 0;
  const grpc::ByteBuffer buffer = ToByteBuffer({"head", body}, &copied);
  EXPECT_EQ(TextOf(buffer), "head" + first + second);
  EXPECT_EQ(SharedBytes(buffer, body), 305u);
  EXPECT_EQ(copied, 0u);
}

TEST(GrpcMessage, TheSameBytesElsewhereAreACopy) {
  const std::string first(300, 'a');
  const std::string second(5, 'b');
  const Payload body({PieceOf(first), PieceOf(second)}, nullptr);
  const std::vector<grpc::Slice> slices = {
      grpc::Slice(first.data(), first.size(), grpc::Slice::STATIC_SLICE), grpc::Slice(second)};
  EXPECT_EQ(SharedBytes(grpc::ByteBuffer(slices.data(), slices.size()), body), 300u);
  EXPECT_EQ(SharedBytes(grpc::ByteBuffer(), body), 0u);
}

TEST(GrpcMessage, HoldsTheOwnerUntilTheLastSliceIsGone) {
  auto owner = std::make_shared<int>();
  const std::weak_ptr<int> lent = owner;
  const std::string memory(1000, 'm');
  uint64_t copied = 0;
  std::optional<grpc::ByteBuffer> buffer = ToByteBuffer(
      {"head", Payload({{memory.data(), 400}, {memory.data() + 400, 600}}, std::move(owner))},
      &copied);
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer->Dump(&slices).ok());
  buffer.reset();
  slices.pop_back();
  EXPECT_FALSE(lent.expired());
  slices.clear();
  EXPECT_TRUE(lent.expired());
}

TEST(GrpcMessage, AControlMessageHasNoBody) {
  uint64_t copied = 0;
  EXPECT_EQ(TextOf(ToByteBuffer({"control", Payload()}, &copied)), "control");
  EXPECT_EQ(copied, 0u);
}

}  // namespace
}  // namespace ballast
