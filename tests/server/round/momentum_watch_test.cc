// SGD: a group that has stepped without momentum gets none later, in any process, also after a
// restart of the server.
#include "server/round/momentum_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/base/reason.h"
#include "server/optim/scalars.h"
#include "server/round/scalar_bits.h"
#include "tests/server/answer.h"
#include "tests/server/engine/durable_engines.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::DurableCluster;
using ::testing::HasSubstr;
using testing::Random;
using testing::RecordingSink;
using testing::Trainer;

void MakeSgd(JobSpec* spec) {
  const OptimizerRow& row = *FindOptimizer("SGD");
  spec->optimizer = row.kind;
  spec->formula_id = row.formula_id;
  spec->options = {1, 0, 0};  // with momentum buffers
}

RoundBegin BeginWith(uint64_t round, std::vector<double> momentum) {
  RoundBegin begin{.round = round, .layout_version = 1};
  for (const double value : momentum) begin.hyper.push_back({1e-2, value, 0.5, 0});
  return begin;
}

class MomentumWatchTest : public ::testing::Test {
 protected:
  MomentumWatchTest() { MakeSgd(&spec_); }

  Decision Applied(std::vector<double> momentum) {
    const Optimizer optimizer = OptimizerOf(spec_);
    Decision decision{.applied = true};
    for (uint32_t group = 0; group < momentum.size(); ++group) {
      const Hyper hyper = {1e-2, momentum[group], 0.5, 0};
      const optim::Scalars scalars =
          optim::MakeScalars(optimizer.kind, optimizer.options, hyper, /*step=*/3);
      decision.scalars.push_back({group, 3, ScalarsToBits(scalars)});
    }
    return decision;
  }
  bool Takes(const std::vector<double>& momentum) {
    const absl::Status status = watch_.Check(spec_, 1, BeginWith(4, momentum));
    EXPECT_TRUE(status.ok() || ReasonOf(status) == Reason::kBadHyperparam) << status;
    return status.ok();
  }

  JobSpec spec_;
  MomentumWatch watch_;
};

TEST_F(MomentumWatchTest, EachGroupForItself) {
  EXPECT_TRUE(Takes({0.9, 0.9}));
  watch_.OnDecision(spec_, Applied({0.9, 0}));
  EXPECT_TRUE(Takes({0.5, 0}));
  EXPECT_TRUE(Takes({0, 0}));
  EXPECT_TRUE(Takes({0.9, 1e-60})) << "0 in fp32";
  EXPECT_FALSE(Takes({0.9, 0.1}));
  const absl::Status status = watch_.Check(spec_, 1, BeginWith(4, {0, 0.25}));
  EXPECT_THAT(std::string(status.message()), HasSubstr("momentum 0.25 for group 1"));
}

TEST_F(MomentumWatchTest, OnlyARoundThatWasAppliedCounts) {
  Decision skipped = Applied({0});
  skipped.applied = false;
  watch_.OnDecision(spec_, skipped);
  EXPECT_TRUE(Takes({0.9}));
  watch_.OnDecision(spec_, Applied({0}));
  watch_.OnDecision(spec_, {.applied = true, .upload = UploadPlane::kWeights});
  EXPECT_FALSE(Takes({0.9}));
}

TEST_F(MomentumWatchTest, StateThatIsUploadedBringsItsBuffers) {
  watch_.OnDecision(spec_, Applied({0}));
  watch_.OnDecision(spec_, {.applied = true, .upload = UploadPlane::kMaster});
  EXPECT_TRUE(Takes({0.9}));
}

TEST_F(MomentumWatchTest, OtherOptimizersAreNotWatched) {
  const Decision zero = Applied({0});
  spec_ = JobSpec();
  watch_.OnDecision(spec_, zero);
  EXPECT_TRUE(watch_.Check(spec_, 0, {.round = 2, .hyper = {{1e-2, 0.9, 0.999, 1e-8, 0}}}).ok());
}

// A process that resumes the job has no memory of the rounds before.
TEST(SgdEngine, AGroupThatSteppedWithoutMomentumIsRefusedItByTheServer) {
  for (const bool restart : {false, true}) {
    SCOPED_TRACE(restart);
    DurableCluster cluster(
        {100}, 1, {0}, 1, [] { return 0; }, MakeSgd);
    const auto values = Random({100}, 3);
    Trainer trainer(&cluster, 0, values);
    const auto run = [&](uint64_t round) {
      trainer.BeginWith(BeginWith(round, {0}), values);
      trainer.PushExtent(0);
      trainer.EndRound();
    };
    run(1);
    if (restart) cluster.Restart(0, [] { return 0; });

    const auto sink = std::make_shared<RecordingSink>(1);
    Answer<absl::StatusOr<SlotWelcome>> welcome;
    cluster.Engine(0)->trainers().AttachSlot(
        {.slot = 0, .incarnation = testing::IncarnationOf(0), .epoch = 1, .round = 2}, sink,
        welcome.Setter());
    ASSERT_TRUE(welcome.Get().ok());
    cluster.Engine(0)->Begin(0, BeginWith(2, {0.9}));
    Answer<JobStatus> settled;
    cluster.Engine(0)->Status(settled.Setter());
    settled.Get();
    ASSERT_TRUE(sink->Ended(2)) << "the round is open";
    const absl::Status refused = sink->Wait(2);
    EXPECT_EQ(ReasonOf(refused), Reason::kBadHyperparam) << refused;

    trainer.Attach(0);
    run(2);
  }
}

}  // namespace
}  // namespace ballast::server
