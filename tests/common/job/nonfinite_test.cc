// Nonfinite: which place of a round is named, and the text that names it.
#include "common/job/nonfinite.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "common/base/reason.h"

namespace ballast {
namespace {

constexpr uint32_t kNan = 0x7FC00000;

// Two tensors in extents of 128: "a" of 3 x 50, then "b", a scalar; "c" of another group.
JobSpec Spec() {
  JobSpec spec;
  spec.name = "run";
  spec.group_count = 2;
  spec.tile_elements = 64;
  spec.extent_elements = 128;
  spec.tensors = {{"a", {3, 50}, DType::kF32, 0, {}},
                  {"b", {}, DType::kF32, 0, {}},
                  {"c", {2, 0, 7}, DType::kF32, 1, {}},
                  {"d", {5}, DType::kBF16, 1, {}}};
  return spec;
}

std::string Text(const Nonfinite& place) {
  const JobSpec spec = Spec();
  const auto layout =
      Layout::Build(LayoutTensors(spec.tensors), spec.tile_elements, spec.extent_elements);
  return NonfiniteText(*layout, spec, place);
}

TEST(NonfiniteTest, NamesTensorIndexAndSlotAcrossExtents) {
  EXPECT_EQ(Text({NonfiniteKind::kGradient, 0, 51, 1, kNan}),
            "tensor \"a\"[1, 1] (element 51): slot 1's gradient is nan");
  EXPECT_EQ(Text({NonfiniteKind::kGradient, 1, 21, 0, 0xFF800000}),
            "tensor \"a\"[2, 49] (element 149): slot 0's gradient is -inf");
  EXPECT_EQ(Text({NonfiniteKind::kSum, 1, 22, 3, std::bit_cast<uint32_t>(3e38f)}),
            "tensor \"b\" (element 0): the fp32 sum of the slots overflows when slot 3's gradient "
            "of 3.00000001e+38 is added");
  EXPECT_EQ(
      Text({NonfiniteKind::kNorm, 2, 4, 0, std::bit_cast<uint32_t>(-1e30f)}),
      "tensor \"d\"[4] (element 4): slot 0's gradient is -1.00000002e+30, finite, but the sum "
      "of squares of its tile overflows fp32");
  EXPECT_EQ(Text({}), "every element is finite");
}

TEST(NonfiniteTest, APlaceThatDoesNotExistHasATextToo) {
  EXPECT_EQ(Text({NonfiniteKind::kGradient, 9, 5, 1, kNan}),
            "extent 9, element 5: slot 1's gradient is nan");
  EXPECT_NE(Text({NonfiniteKind::kGradient, 0, UINT32_MAX, 1, kNan}), "");
}

TEST(NonfiniteTest, TheLowestInFlatSpaceOrderComesFirstAndNormsComeLast) {
  const Nonfinite none;
  const Nonfinite low{NonfiniteKind::kSum, 1, 7, 3, 0};
  const Nonfinite same_extent{NonfiniteKind::kGradient, 1, 8, 0, 0};
  const Nonfinite high{NonfiniteKind::kGradient, 2, 0, 0, 0};
  const Nonfinite norm{NonfiniteKind::kNorm, 0, 0, 0, 0};
  const Nonfinite order[] = {low, same_extent, high, norm, none};
  for (size_t i = 0; i < std::size(order); ++i) {
    for (size_t j = 0; j < std::size(order); ++j) {
      EXPECT_EQ(ComesBefore(order[i], order[j]), i < j) << i << " " << j;
    }
  }
}

TEST(NonfiniteTest, TheErrorOfAHaltedRoundSaysWhyWhereAndWhatNext) {
  JobSpec spec = Spec();
  const auto layout = Layout::Build(LayoutTensors(spec.tensors), 64, 128);
  const UnappliedRound round{12, 4, 6, {NonfiniteKind::kGradient, 0, 51, 1, kNan}};
  spec.max_consecutive_skips = 5;
  spec.durability = Durability::kPower;
  const absl::Status cap = HaltError(*layout, spec, round);
  EXPECT_EQ(ReasonOf(cap), Reason::kNonfinite);
  EXPECT_EQ(FieldsOf(cap).round, 12u);
  EXPECT_EQ(FieldsOf(cap).slot, 1);
  EXPECT_EQ(cap.message(),
            "job \"run\": round 12 was halted (it is number 6 in a row that cannot be applied; "
            "max_consecutive_skips is 5): tensor \"a\"[1, 1] (element 51): slot 1's gradient is "
            "nan; 4 elements are not finite. Nothing was applied: weights and optimizer state are "
            "those of before the round. Find the cause (data, learning rate, loss_scale), then "
            "step again, or start the trainers again with resume=\"auto\"");
  spec.nonfinite = NonfinitePolicy::kHalt;
  EXPECT_NE(HaltError(*layout, spec, round).message().find("(nonfinite is halt)"),
            absl::string_view::npos);
  spec.durability = Durability::kNone;  // Nothing could be continued.
  EXPECT_EQ(HaltError(*layout, spec, round).message().find("resume"), absl::string_view::npos);
}

}  // namespace
}  // namespace ballast
