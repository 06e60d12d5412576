// JobSpec validation: each bad field gets its own named error.
#include "common/job/job_spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "common/base/reason.h"

namespace ballast {
namespace {

JobSpec Good() {
  JobSpec spec;
  spec.name = "job-1";
  spec.world = 2;
  spec.group_count = 2;
  spec.tensors = {{"a.weight", {3, 4}, DType::kF32, 0, {"a.tied"}}, {"b", {}, DType::kBF16, 1, {}}};
  return spec;
}

TEST(JobSpecTest, AcceptsAGoodSpec) { EXPECT_TRUE(ValidateJobSpec(Good(), {}).ok()); }

// Changes that make the good spec bad, and the error for each.
struct Case {
  const char* expect;
  std::function<void(JobSpec*)> spoil;
};
const Case kBadSpecs[] = {
    {"job name", [](JobSpec* s) { s->name = "../up"; }},
    {"world is 0", [](JobSpec* s) { s->world = 0; }},
    {"world is 5000", [](JobSpec* s) { s->world = 5000; }},
    {"no tensors", [](JobSpec* s) { s->tensors.clear(); }},
    {"group_count is 0", [](JobSpec* s) { s->group_count = 0; }},
    {"is in group 1", [](JobSpec* s) { s->group_count = 1; }},
    {"max_grad_norm", [](JobSpec* s) { s->max_grad_norm = std::nan(""); }},
    {"max_grad_norm", [](JobSpec* s) { s->max_grad_norm = -1; }},
    {"loss_scale", [](JobSpec* s) { s->loss_scale = 0; }},
    {"optimizer kind", [](JobSpec* s) { s->optimizer = OptimizerKind::kUnspecified; }},
    {"optimizer kind 8 is not known; this version offers AdamW (1), Adam (2), SGD (3)",
     [](JobSpec* s) { s->optimizer = static_cast<OptimizerKind>(8); }},
    {"the job has 1 options; AdamW has 2", [](JobSpec* s) { s->options = {0}; }},
    {"option amsgrad is 2; it must be 0 or 1",
     [](JobSpec* s) {
       s->options = {2, 0};
     }},
    {"option nesterov needs momentum",
     [](JobSpec* s) {
       s->optimizer = OptimizerKind::kSgd;
       s->options = {0, 1, 0};
     }},
    {"option initial_accumulator_value is -1; it must be finite and at least 0",
     [](JobSpec* s) {
       s->optimizer = OptimizerKind::kAdagrad;
       s->options = {-1, 0, 0};
     }},
    {"reduction_id", [](JobSpec* s) { s->reduction_id = 9; }},
    {"durability", [](JobSpec* s) { s->durability = Durability{}; }},
    {"nonfinite policy 7", [](JobSpec* s) { s->nonfinite = static_cast<NonfinitePolicy>(7); }},
    {"tile_elements", [](JobSpec* s) { s->tile_elements = 1; }},
    {"extent_elements", [](JobSpec* s) { s->extent_elements = 65537; }},
    {"tensor name \"b\" appears twice", [](JobSpec* s) { s->tensors[0].name = "b"; }},
    {"\"a.tied\" appears twice", [](JobSpec* s) { s->tensors[1].name = "a.tied"; }},
    {R"(the name "a\nb" of tensor 0 contains a control character)",
     [](JobSpec* s) { s->tensors[0].name = "a\nb"; }},
    {R"(xxx..." of tensor 0 has 300 bytes)",
     [](JobSpec* s) { s->tensors[0].name = std::string(300, 'x'); }},
    {R"(the name "" of tensor 1 has 0 bytes)", [](JobSpec* s) { s->tensors[1].name = ""; }},
    {R"(the name "\t" of an alias of tensor 0 ("a.weight") contains)",
     [](JobSpec* s) { s->tensors[0].aliases = {"\t"}; }},
    {"dtype", [](JobSpec* s) { s->tensors[0].dtype = kNoDType; }},
    {"negative dimension", [](JobSpec* s) { s->tensors[0].shape = {-1}; }},
    {"9 dimensions", [](JobSpec* s) { s->tensors[0].shape.assign(9, 1); }},
    {"more than", [](JobSpec* s) { s->tensors[0].shape.assign(3, int64_t{1} << 40); }},
    {"more than",
     [](JobSpec* s) {
       s->tensors[0].shape = {int64_t{1} << 62, 4};
     }},
};

TEST(JobSpecTest, RefusesEachBadFieldByName) {
  for (const Case& c : kBadSpecs) {
    JobSpec spec = Good();
    c.spoil(&spec);
    const absl::Status status = ValidateJobSpec(spec, {});
    EXPECT_EQ(ReasonOf(status), Reason::kBadSpec) << c.expect << ": " << status;
    EXPECT_NE(std::string(status.message()).find(c.expect), std::string::npos) << status;
  }
}

TEST(JobSpecTest, FirstDifferenceNamesTheField) {
  EXPECT_EQ(FirstDifference(Good(), Good()), "");
  JobSpec other = Good();
  other.world = 4;
  EXPECT_EQ(FirstDifference(Good(), other), "world is 4, the job has 2");
  other = Good();
  other.tensors[0].shape = {4, 3};
  EXPECT_EQ(FirstDifference(Good(), other),
            "tensor 0 (\"a.weight\") has shape [4, 3], the job has [3, 4]");
  other = Good();
  other.tensors[1].name = "c";
  EXPECT_NE(FirstDifference(Good(), other).find("is named \"c\""), std::string::npos);
}

TEST(JobSpecTest, OptionsAreInitialUnlessTheSpecNamesThem) {
  JobSpec spec = Good();
  EXPECT_EQ(OptimizerOf(spec).options, (Options{0, 0}));
  EXPECT_EQ(StateArrayCount(spec), 3u);
  JobSpec named = Good();
  named.options = {0, 0};
  EXPECT_EQ(FirstDifference(spec, named), "");
  named.options = {1, 0};
  EXPECT_TRUE(ValidateJobSpec(named, {}).ok());
  EXPECT_EQ(StateArrayCount(named), 4u);
  EXPECT_EQ(FirstDifference(spec, named), "amsgrad is on, the job has off");
  named.optimizer = OptimizerKind::kAdagrad;
  named.options = {0.25, 0, 0};
  ASSERT_EQ(StateArrayCount(named), 2u);
  EXPECT_EQ(InitialValue(named, 0), 0.0f);
  EXPECT_EQ(InitialValue(named, 1), 0.25f);
  EXPECT_EQ(FirstDifference(spec, named), "optimizer is Adagrad, the job has AdamW");
}

}  // namespace
}  // namespace ballast
