// One round over several servers: completeness, agreement and malformed answers.
#include "client/cpp/job/round_progress.h"

#include <gtest/gtest.h>

#include "common/base/reason.h"

namespace ballast::client {
namespace {

using Time = RoundProgress::Time;

Time At(int ms) { return Time() + std::chrono::milliseconds(ms); }

RoundResult Result(uint64_t weight_bytes) {
  RoundResult result;
  result.round = 5;
  result.applied = true;
  result.grad_norm = 1.5;
  result.clip_coef = 0.5;
  result.loss_scale = 1;
  result.opt_step = 4;
  result.weight_bytes = weight_bytes;
  return result;
}

v1::RoundDone Done() {
  v1::RoundDone done;
  done.set_round(5);
  done.set_step_ns(10);
  done.set_weight_overflows(1);
  return done;
}

RoundProgress TwoServers() { return RoundProgress(5, {1, 3}, {100, 40}, At(0)); }

TEST(RoundProgress, IsCompleteWhenEveryServerIsDone) {
  RoundProgress progress = TwoServers();
  progress.OnPushed(At(10));
  RoundResult first = Result(100);
  first.collect_ns = 7;
  first.vote_ns = 1;
  RoundResult second = Result(40);
  second.collect_ns = 5;
  second.vote_ns = 2;
  EXPECT_TRUE(progress.OnResult(0, first, At(20)).ok());
  EXPECT_FALSE(progress.all_results());
  EXPECT_TRUE(progress.OnWeight(0, 6, 100, At(25)).ok());
  EXPECT_TRUE(progress.OnDone(0, Done()).ok());
  EXPECT_TRUE(progress.OnResult(1, second, At(30)).ok());
  EXPECT_TRUE(progress.OnWeight(1, 6, 40, At(50)).ok());
  EXPECT_FALSE(progress.complete());
  EXPECT_EQ(progress.Missing(), std::vector<uint32_t>{3});
  EXPECT_TRUE(progress.OnDone(1, Done()).ok());
  EXPECT_TRUE(progress.complete());

  const RoundReport report = progress.Report(At(60));
  EXPECT_EQ(report.round, 5u);
  EXPECT_TRUE(report.applied);
  EXPECT_EQ(report.grad_norm, 1.5);
  EXPECT_EQ(report.clip_coef, 0.5);
  EXPECT_EQ(report.opt_step, 4u);
  EXPECT_EQ(report.weight_overflows, 2u);
  EXPECT_EQ(report.bytes_down, 140u);
  EXPECT_EQ(report.push_ns, 10'000'000u);
  EXPECT_EQ(report.wait_ns, 20'000'000u);
  EXPECT_EQ(report.pull_ns, 20'000'000u);
  EXPECT_EQ(report.collect_ns, 7u);
  EXPECT_EQ(report.vote_ns, 2u);
  EXPECT_EQ(report.step_ns, 10u);
}

TEST(RoundProgress, ASkippedRoundHasNoWeights) {
  RoundProgress progress = TwoServers();
  RoundResult result = Result(0);
  result.applied = false;
  result.nonfinite = 3;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(progress.OnResult(i, result, At(20)).ok());
    EXPECT_TRUE(progress.OnDone(i, Done()).ok());
  }
  const RoundReport report = progress.Report(At(30));
  EXPECT_FALSE(report.applied);
  EXPECT_EQ(report.nonfinite, 3u);
  EXPECT_EQ(report.bytes_down, 0u);
}

TEST(RoundProgress, ServersThatDisagreeAreFound) {
  const auto differ = [](void (*change)(RoundResult*)) {
    RoundProgress progress = TwoServers();
    RoundResult other = Result(40);
    change(&other);
    EXPECT_TRUE(progress.OnResult(0, Result(100), At(1)).ok());
    const absl::Status status = progress.OnResult(1, other, At(1));
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(ReasonOf(status), Reason::kVoteMismatch);
    EXPECT_EQ(FieldsOf(status).server, 3);
    EXPECT_EQ(FieldsOf(status).round, 5u);
  };
  differ([](RoundResult* r) { r->applied = false; });
  differ([](RoundResult* r) { r->grad_norm = 1.5000000000000002; });
  differ([](RoundResult* r) { r->clip_coef = 0.25; });
  differ([](RoundResult* r) { r->loss_scale = 2; });
  differ([](RoundResult* r) { r->opt_step = 5; });
  differ([](RoundResult* r) { r->nonfinite = 1; });
  differ([](RoundResult* r) { r->policy = PolicyState{.version = 2}; });
}

TEST(RoundProgress, EqualNansAgree) {
  RoundProgress progress = TwoServers();
  RoundResult result = Result(0);
  result.grad_norm = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(progress.OnResult(0, result, At(1)).ok());
  EXPECT_TRUE(progress.OnResult(1, result, At(1)).ok());
}

TEST(RoundProgress, AnswersOutOfOrderAreErrors) {
  RoundResult late = Result(100);
  late.round = 4;
  v1::RoundDone old = Done();
  old.set_round(4);
  {
    RoundProgress progress = TwoServers();
    EXPECT_FALSE(progress.OnResult(0, late, At(1)).ok());
    EXPECT_FALSE(progress.OnResult(0, Result(101), At(1)).ok());
    EXPECT_FALSE(progress.OnWeight(0, 6, 1, At(1)).ok());
    EXPECT_FALSE(progress.OnDone(0, Done()).ok());
  }
  RoundProgress progress = TwoServers();
  EXPECT_TRUE(progress.OnResult(0, Result(100), At(1)).ok());
  EXPECT_FALSE(progress.OnResult(0, Result(100), At(1)).ok());
  EXPECT_FALSE(progress.OnWeight(0, 5, 1, At(1)).ok());
  EXPECT_FALSE(progress.OnDone(0, Done()).ok());  // weights are missing
  EXPECT_FALSE(progress.OnWeight(0, 6, 101, At(1)).ok());

  RoundProgress ended = TwoServers();
  EXPECT_TRUE(ended.OnResult(0, Result(0), At(1)).ok());
  EXPECT_FALSE(ended.OnDone(0, old).ok());
  EXPECT_TRUE(ended.OnDone(0, Done()).ok());
  EXPECT_FALSE(ended.OnDone(0, Done()).ok());
  EXPECT_FALSE(ended.OnWeight(0, 6, 0, At(1)).ok());
}

TEST(RoundProgress, AServerThatStartsOverCountsOnce) {
  RoundProgress progress = TwoServers();
  EXPECT_TRUE(progress.OnResult(0, Result(100), At(10)).ok());
  EXPECT_TRUE(progress.OnWeight(0, 6, 70, At(20)).ok());
  EXPECT_TRUE(progress.answered(0));
  progress.Restart(0);
  EXPECT_FALSE(progress.answered(0));
  EXPECT_FALSE(progress.OnWeight(0, 6, 30, At(30)).ok()) << "before its new result";
  EXPECT_TRUE(progress.OnResult(0, Result(100), At(30)).ok());
  EXPECT_FALSE(progress.all_results());
  EXPECT_TRUE(progress.OnWeight(0, 6, 100, At(40)).ok());
  EXPECT_TRUE(progress.OnDone(0, Done()).ok());
  EXPECT_TRUE(progress.done(0));
  EXPECT_TRUE(progress.OnResult(1, Result(40), At(50)).ok());
  EXPECT_TRUE(progress.all_results());
  EXPECT_TRUE(progress.OnWeight(1, 6, 40, At(60)).ok());
  EXPECT_TRUE(progress.OnDone(1, Done()).ok());
  EXPECT_EQ(progress.Report(At(70)).bytes_down, 140u);
}

TEST(RoundProgress, AServerMayNotDecideOtherwiseTheSecondTime) {
  RoundProgress progress = TwoServers();
  EXPECT_TRUE(progress.OnResult(0, Result(100), At(10)).ok());
  progress.Restart(0);
  RoundResult other = Result(100);
  other.grad_norm = 2;
  const absl::Status status = progress.OnResult(0, other, At(20));
  EXPECT_EQ(ReasonOf(status), Reason::kVoteMismatch) << status;
}

}  // namespace
}  // namespace ballast::client
