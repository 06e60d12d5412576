// Layout arithmetic: every element of every tensor is in exactly one run of one extent.
#include "common/tensor/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace ballast {
namespace {

std::vector<LayoutTensor> Mixed() {
  return {{100, DType::kF32, 0}, {7, DType::kBF16, 0}, {300, DType::kF32, 0},
          {0, DType::kF32, 0},   {1, DType::kF32, 1},  {129, DType::kBF16, 0}};
}

// Checks that runs tile every tensor and every extent without gap or overlap.
void ExpectCovers(const Layout& layout) {
  std::vector<uint64_t> covered(layout.tensors().size(), 0);
  for (const Extent& extent : layout.extents()) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < extent.run_count; ++i) {
      const Run& run = layout.runs()[extent.first_run + i];
      EXPECT_EQ(run.extent_offset, at);
      EXPECT_EQ(run.tensor_offset, covered[run.tensor]);
      EXPECT_EQ(layout.tensors()[run.tensor].group, extent.group);
      EXPECT_EQ(layout.tensors()[run.tensor].dtype, extent.dtype);
      at += run.elements;
      covered[run.tensor] += run.elements;
    }
    EXPECT_EQ(at, extent.elements);
    EXPECT_GT(extent.elements, 0u);
    EXPECT_LE(extent.elements, layout.extent_elements());
  }
  for (size_t t = 0; t < covered.size(); ++t) {
    EXPECT_EQ(covered[t], layout.tensors()[t].elements) << t;
  }
}

TEST(LayoutTest, EveryElementIsInExactlyOneRun) {
  const auto layout = Layout::Build(Mixed(), 64, 128);
  ASSERT_TRUE(layout.ok()) << layout.status();
  ExpectCovers(*layout);
  EXPECT_EQ(layout->total_elements(), 537u);
  // fp32 of group 0: 400 elements, bf16 of group 0: 136, group 1: 1.
  EXPECT_EQ(layout->extents().size(), 4u + 2u + 1u);
}

TEST(LayoutTest, AppendKeepsOldExtentsAndAddsNewOnes) {
  auto layout = Layout::Build(Mixed(), 64, 128);
  const auto before = layout->extents();
  ASSERT_TRUE(layout->Append({{200, DType::kF32, 2}}).ok());
  ExpectCovers(*layout);
  ASSERT_EQ(layout->extents().size(), before.size() + 2);
  for (size_t e = 0; e < before.size(); ++e) {
    EXPECT_EQ(layout->extents()[e].elements, before[e].elements);
    EXPECT_EQ(layout->extents()[e].first_run, before[e].first_run);
  }
}

TEST(LayoutTest, AppendedLayoutEqualsOneBuiltAtOnce) {
  auto grown = Layout::Build(Mixed(), 64, 128);
  ASSERT_TRUE(grown->Append({{200, DType::kF32, 2}}).ok());
  auto tensors = Mixed();
  tensors.push_back({200, DType::kF32, 2});
  const auto built = Layout::Build(tensors, 64, 128);
  ASSERT_EQ(grown->extents().size(), built->extents().size());
  EXPECT_EQ(grown->push_order(), built->push_order());
}

TEST(LayoutTest, AppendToAnExistingGroupIsRefusedAndChangesNothing) {
  auto layout = Layout::Build(Mixed(), 64, 128);
  const size_t extents = layout->extents().size();
  EXPECT_EQ(layout->Append({{5, DType::kF32, 1}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(layout->extents().size(), extents);
  EXPECT_EQ(layout->tensors().size(), Mixed().size());
}

TEST(LayoutTest, BadGeometryIsRefused) {
  EXPECT_FALSE(Layout::Build(Mixed(), 63, 128).ok());
  EXPECT_FALSE(Layout::Build(Mixed(), 0, 0).ok());
  EXPECT_FALSE(Layout::Build(Mixed(), 128, 64).ok());
  EXPECT_FALSE(Layout::Build(Mixed(), 128, 192).ok());
  EXPECT_FALSE(Layout::Build(Mixed(), 64, 32u << 20).ok());
  EXPECT_FALSE(Layout::Build({{uint64_t{1} << 60, DType::kF32, 0}}, 64, 128).ok());
  // Few bytes of request must not make millions of extents.
  EXPECT_FALSE(Layout::Build({{uint64_t{1} << 44, DType::kF32, 0}}, 64, 64).ok());
  EXPECT_FALSE(Layout::Build({{uint64_t{1} << 29, DType::kF32, 0}}, 64, 64).ok());
  EXPECT_TRUE(Layout::Build({{uint64_t{1} << 40, DType::kF32, 0}}, 64, 1 << 20).ok());
}

TEST(LayoutTest, PushOrderStartsWithTheLastTensors) {
  const auto layout = Layout::Build(Mixed(), 64, 128);
  const auto& order = layout->push_order();
  EXPECT_EQ(std::set<uint32_t>(order.begin(), order.end()).size(), layout->extents().size());
  const Extent& first = layout->extents()[order.front()];
  EXPECT_EQ(layout->runs()[first.first_run + first.run_count - 1].tensor, 5u);
}

TEST(LayoutTest, TurnsCountTheExtentsOfAFlatSpaceInPushOrderAndStayUnderGrowth) {
  auto layout = Layout::Build(
      {{300, DType::kF32, 0}, {200, DType::kBF16, 0}, {300, DType::kF32, 1}}, 64, 128);
  std::vector<uint32_t> turns;
  for (uint32_t e = 0; e < layout->extents().size(); ++e) turns.push_back(layout->Turn(e));
  EXPECT_EQ(turns, (std::vector<uint32_t>{2, 1, 0, 1, 0, 2, 1, 0}));
  ASSERT_TRUE(layout->Append({{200, DType::kF32, 2}}).ok());
  for (uint32_t e = 0; e < turns.size(); ++e) EXPECT_EQ(layout->Turn(e), turns[e]) << e;
  EXPECT_EQ(layout->Turn(8), 1u);
  EXPECT_EQ(layout->Turn(9), 0u);
}

TEST(LayoutTest, OwnersAreBalancedAndStableUnderGrowth) {
  auto layout = Layout::Build({{10000, DType::kF32, 0}}, 64, 128);
  const auto owners = PlanOwners(*layout, 7);
  std::vector<uint64_t> load(7, 0);
  for (size_t e = 0; e < owners.size(); ++e) load[owners[e]] += layout->extents()[e].elements;
  EXPECT_LE(
      *std::max_element(load.begin(), load.end()) - *std::min_element(load.begin(), load.end()),
      128u);
  ASSERT_TRUE(layout->Append({{5000, DType::kF32, 1}}).ok());
  const auto grown = PlanOwners(*layout, 7, owners);
  EXPECT_TRUE(std::equal(owners.begin(), owners.end(), grown.begin()));
}

TEST(LayoutTest, ChunksCoverExactlyThePresentRuns) {
  const auto layout =
      Layout::Build({{100, DType::kF32, 0}, {50, DType::kF32, 0}, {106, DType::kF32, 0}}, 64, 256);
  ASSERT_EQ(layout->extents().size(), 1u);
  const auto all = ChunkRanges(*layout, 0, 256, {});
  ASSERT_EQ(all.size(), 4u);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].offset_bytes, i * 256);
    EXPECT_EQ(all[i].length_bytes, 256u);
  }
  const auto some = ChunkRanges(*layout, 0, 256, {true, false, true});
  uint32_t total = 0;
  for (const ChunkRange& range : some) {
    total += range.length_bytes;
    EXPECT_EQ(range.offset_bytes / 256, (range.offset_bytes + range.length_bytes - 1) / 256);
  }
  EXPECT_EQ(total, 206u * 4);
  EXPECT_TRUE(ChunkRanges(*layout, 0, 256, {false, false, false}).empty());
}

}  // namespace
}  // namespace ballast
