// Which tensors go to which file of an export.
#include "server/exchange/export_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/reason.h"

namespace ballast::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr ExportOrigin kOrigin = {.snapshot = 0xabc, .round = 5};

JobSpec Spec(const std::vector<int64_t>& sizes) {
  JobSpec spec;
  spec.name = "job";
  for (size_t i = 0; i < sizes.size(); ++i) {
    spec.tensors.push_back({"t" + std::to_string(i), {sizes[i]}, DType::kF32, 0, {}});
  }
  return spec;
}

std::vector<uint32_t> Counts(const std::vector<int64_t>& sizes, uint32_t shards) {
  const auto plan = PlanExport(Spec(sizes), kOrigin, {.shards = shards});
  EXPECT_TRUE(plan.ok()) << plan.status();
  std::vector<uint32_t> counts;
  uint32_t next = 0;
  for (const ExportShard& shard : *plan) {
    EXPECT_EQ(shard.first_tensor, next);
    EXPECT_EQ(shard.weights.entries.size(), shard.tensor_count);
    next += shard.tensor_count;
    counts.push_back(shard.tensor_count);
  }
  EXPECT_EQ(next, sizes.size());
  return counts;
}

TEST(ExportPlan, ShardsAreOfWholeTensorsAndAboutEqual) {
  EXPECT_THAT(Counts({10, 10, 10, 10}, 1), ElementsAre(4));
  EXPECT_THAT(Counts({10, 10, 10, 10}, 2), ElementsAre(2, 2));
  EXPECT_THAT(Counts({10, 10, 10, 10}, 4), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(Counts({30, 10, 10, 10}, 2), ElementsAre(1, 3));
}

TEST(ExportPlan, NoShardIsEmpty) {
  EXPECT_THAT(Counts({10}, 3), ElementsAre(1));
  EXPECT_THAT(Counts({0, 0, 0}, 3), ElementsAre(3));
  EXPECT_THAT(Counts({1000, 1, 1}, 3), ElementsAre(1, 1, 1));
  for (uint32_t shards = 1; shards < 9; ++shards) {
    for (const uint32_t count : Counts({7, 0, 300, 1, 1, 40, 0, 999, 3}, shards)) {
      EXPECT_GT(count, 0u) << shards;
    }
  }
}

TEST(ExportPlan, StateHasMastersOnlyWhereWeightsSayLess) {
  JobSpec spec = Spec({4, 6});
  spec.tensors[1].dtype = DType::kBF16;
  spec.tensors[1].aliases = {"tied"};
  const auto plan = PlanExport(spec, kOrigin, {.state = true});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->size(), 1u);
  const ExportShard& shard = plan->front();
  EXPECT_EQ(shard.weights.name, "model.safetensors");
  EXPECT_EQ(shard.state.name, "optimizer/state.safetensors");
  EXPECT_EQ(shard.weights.entries[0].dtype, SafeDType::kF32);
  EXPECT_EQ(shard.weights.entries[1].dtype, SafeDType::kBF16);
  EXPECT_THAT(
      shard.weights.metadata,
      UnorderedElementsAre(Pair("format", "pt"), Pair("ballast.round", "5"),
                           Pair("ballast.snapshot", "0000000000000abc"), Pair("tied", "t1")));
  std::vector<std::string> names;
  for (const TensorEntry& entry : shard.state.entries) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("exp_avg.t0", "exp_avg_sq.t0", "master.t1", "exp_avg.t1",
                                 "exp_avg_sq.t1", "step.t0", "step.t1"));
}

TEST(ExportPlan, NamesOfSeveralFilesSayHowManyThereAre) {
  const auto plan = PlanExport(Spec({5, 5}), kOrigin, {.state = true, .shards = 2});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((*plan)[1].weights.name, "model-00002-of-00002.safetensors");
  EXPECT_EQ((*plan)[0].state.name, "optimizer/state-00001-of-00002.safetensors");
}

TEST(ExportPlan, AJobThatSafetensorsCannotHoldIsRefused) {
  JobSpec spec = Spec({5, 5});
  spec.tensors[1].name = "__metadata__";
  const absl::Status status = PlanExport(spec, kOrigin, {}).status();
  EXPECT_EQ(ReasonOf(status), Reason::kBadSpec) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("__metadata__"));
}

}  // namespace
}  // namespace ballast::server
