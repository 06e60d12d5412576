// Tensors as bytes of extents, and the lease on the caller's memory.
#include "client/cpp/job/lent_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/bytes/crc32c.h"

namespace ballast::client {
namespace {

using ::ballast::DType;

// One flat space of tensors with 10, 100, 0 and 90 fp32 elements in extents of 128 elements.
Layout SmallLayout() {
  std::vector<LayoutTensor> tensors(4);
  tensors[0].elements = 10;
  tensors[1].elements = 100;
  tensors[2].elements = 0;
  tensors[3].elements = 90;
  return *Layout::Build(tensors, 64, 128);
}

TEST(PiecesOf, CutsARangeAtTensorBorders) {
  const Layout layout = SmallLayout();
  const auto pieces = PiecesOf(layout, 0, 4, 20, 480);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0].tensor, 0u);
  EXPECT_EQ(pieces[0].tensor_offset, 20u);
  EXPECT_EQ(pieces[0].bytes, 20u);
  EXPECT_EQ(pieces[1].tensor, 1u);
  EXPECT_EQ(pieces[1].tensor_offset, 0u);
  EXPECT_EQ(pieces[1].bytes, 400u);
  EXPECT_EQ(pieces[2].tensor, 3u);
  EXPECT_EQ(pieces[2].tensor_offset, 0u);
  EXPECT_EQ(pieces[2].bytes, 60u);
}

TEST(PiecesOf, EveryRangeOfEveryExtentIsCoveredOnce) {
  const Layout layout = SmallLayout();
  uint64_t start = 0;
  for (uint32_t extent = 0; extent < layout.extents().size(); ++extent) {
    const uint32_t bytes = layout.ExtentWireBytes(extent);
    for (uint32_t offset = 0; offset < bytes; offset += 4) {
      for (uint32_t length = 4; offset + length <= bytes; length += 4) {
        uint64_t at = start + offset;
        for (const TensorPiece& piece : PiecesOf(layout, extent, 4, offset, length)) {
          const uint64_t first[] = {0, 40, 440, 440};
          ASSERT_EQ(first[piece.tensor] + piece.tensor_offset, at);
          ASSERT_GT(piece.bytes, 0u);
          at += piece.bytes;
        }
        ASSERT_EQ(at, start + offset + length);
      }
    }
    start += bytes;
  }
}

TEST(PiecesOf, RangesOutsideOrAcrossElementsHaveNone) {
  const Layout layout = SmallLayout();
  EXPECT_TRUE(PiecesOf(layout, 0, 4, 0, 516).empty());
  EXPECT_TRUE(PiecesOf(layout, 0, 4, 512, 4).empty());
  EXPECT_TRUE(PiecesOf(layout, 0, 4, UINT32_MAX - 3, 4).empty());
  EXPECT_TRUE(PiecesOf(layout, 0, 4, 2, 4).empty());
  EXPECT_TRUE(PiecesOf(layout, 0, 4, 0, 6).empty());
  EXPECT_TRUE(PiecesOf(layout, 0, 4, 0, 0).empty());
}

TEST(Scatter, WritesToTheTensorsWhateverThePiecesOfThePayload) {
  const Layout layout = SmallLayout();
  std::string bytes(480, '\0');
  std::iota(bytes.begin(), bytes.end(), static_cast<char>(1));
  const auto pieces = PiecesOf(layout, 0, 4, 20, 480);
  for (const size_t step : {1, 7, 64, 480}) {
    Payload::Pieces parts;
    for (size_t at = 0; at < bytes.size(); at += step) {
      parts.push_back({bytes.data() + at, std::min(step, bytes.size() - at)});
    }
    std::vector<std::string> tensors = {std::string(40, 'x'), std::string(400, 'x'), "",
                                        std::string(360, 'x')};
    std::vector<void*> outs;
    for (const TensorPiece& piece : pieces) {
      outs.push_back(tensors[piece.tensor].data() + piece.tensor_offset);
    }
    uint32_t crc = 5;
    EXPECT_EQ(Scatter(Payload(parts, nullptr), pieces, outs, &crc), 480u);
    EXPECT_EQ(crc, Crc32c(bytes.data(), bytes.size(), 5));
    EXPECT_EQ(tensors[0], std::string(20, 'x') + bytes.substr(0, 20));
    EXPECT_EQ(tensors[1], bytes.substr(20, 400));
    EXPECT_EQ(tensors[3], bytes.substr(420, 60) + std::string(300, 'x'));
  }
}

TEST(Scatter, LeavesOutPiecesWithoutMemory) {
  const Layout layout = SmallLayout();
  std::string last(360, 'x');
  const std::vector<void*> outs = {nullptr, nullptr, last.data()};
  const Payload payload = Payload::FromString(std::string(420, 'a') + std::string(60, 'b'));
  uint32_t crc = 0;
  EXPECT_EQ(Scatter(payload, PiecesOf(layout, 0, 4, 20, 480), outs, &crc), 60u);
  EXPECT_EQ(crc, payload.Crc32c());
  EXPECT_EQ(last, std::string(60, 'b') + std::string(300, 'x'));
}

TEST(BufferLease, IsReleasedWithTheLastReference) {
  BufferLease lease;
  EXPECT_TRUE(lease.WaitReleased(std::chrono::nanoseconds(0)));
  std::shared_ptr<const void> owner = lease.Lend();
  std::shared_ptr<const void> copy = owner;
  std::shared_ptr<const void> other = lease.Lend();
  owner.reset();
  other.reset();
  EXPECT_FALSE(lease.WaitReleased(std::chrono::nanoseconds(0)));
  copy.reset();
  EXPECT_TRUE(lease.WaitReleased(std::chrono::nanoseconds(0)));
}

}  // namespace
}  // namespace ballast::client
