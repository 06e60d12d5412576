// Uploads: rounds in which the lead pushes weights, or planes of the state, in place of gradients.
// The answers of the protocol, and the bits that engines make of it.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/round/round_fsm.h"
#include "tests/server/engine/engine_cluster.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::Cluster;
using testing::IncarnationOf;
using testing::kChunk;
using testing::LayoutOf;
using testing::MakeBegin;
using testing::MakeFrame;
using testing::MakePlan;
using testing::Random;
using testing::Reference;

RoundBegin MakeUpload(uint64_t round, std::vector<uint32_t> digests) {
  return {.round = round,
          .layout_version = 1,
          .upload = UploadPlane::kWeights,
          .weight_crc32c = digests};
}

RoundBegin MakePlane(UploadPlane plane, std::optional<StepCounts> steps = std::nullopt) {
  RoundBegin begin = MakeUpload(1, {7, 8});
  begin.upload = plane;
  begin.steps = std::move(steps);
  return begin;
}

// Tensor 1 is of 16 bits.
JobPlan MakeMixedPlan(uint32_t world) {
  JobPlan plan = MakePlan({200, 100}, world, {0});
  plan.spec.tensors[1].dtype = DType::kBF16;
  plan.owner.assign(LayoutOf(plan).extents().size(), 0);
  return plan;
}

// One server that owns all of a job of `world` trainers.
class Server {
 public:
  explicit Server(uint32_t world, Durability durability = Durability::kNone)
      : Server(MakePlan({200, 100}, world, {0}), durability) {}
  Server(JobPlan plan, Durability durability)
      : plan_(std::move(plan)), fsm_(Plan(durability), LayoutOf(plan_), 0, kChunk, 64) {
    Push(FrameKind::kInit, 0);
  }

  Effects Feed(const Input& input) {
    Effects effects;
    fsm_.Step(input, &effects);
    for (size_t i = 0; i < effects.size(); ++i) {
      const auto* const reduce = std::get_if<ReduceExtent>(&effects[i]);
      if (reduce == nullptr) continue;
      Effects more;
      // As weights of which some are NaN look.
      fsm_.Step(ReducedInput{reduce->extent, 1.0, 3}, &more);
      effects.insert(effects.end(), more.begin(), more.end());
    }
    return effects;
  }
  Effects Push(FrameKind kind, uint32_t slot) {
    Effects all;
    refusals_.clear();
    for (const uint32_t extent : fsm_.owned()) {
      for (const ChunkRange& range : ChunkRanges(fsm_.layout(), extent, kChunk, {})) {
        FrameHeader header = MakeFrame(plan_, kind, slot, fsm_.round(), extent, range);
        header.dtype = fsm_.layout().extents()[extent].dtype;
        header.epoch = fsm_.plan().epoch.epoch;
        header.incarnation = fsm_.plan().epoch.Find(slot)->incarnation;
        if (std::optional<FrameRefused> refused = fsm_.RefusalOf(header)) {
          refusals_.push_back(*std::move(refused));
          continue;
        }
        Effects more = Feed(FrameInput{header});
        all.insert(all.end(), more.begin(), more.end());
      }
    }
    return all;
  }
  Effects Begin(uint32_t slot, const RoundBegin& begin) { return Feed(BeginInput{slot, begin}); }

  const JobPlan& Plan(Durability durability) {
    plan_.spec.durability = durability;
    return plan_;
  }
  JobPlan plan_;
  RoundFsm fsm_;
  std::vector<FrameRefused> refusals_;  // of the last Push
};

template <typename T>
const T* First(const Effects& effects) {
  for (const Effect& effect : effects) {
    if (const T* const found = std::get_if<T>(&effect)) return found;
  }
  return nullptr;
}

TEST(UploadTest, OnlyTheLeadPushesAndNothingButTheWeightsChanges) {
  Server server(3);
  server.Begin(2, MakeUpload(1, {7, 8}));
  server.Push(FrameKind::kGradient, 2);
  ASSERT_FALSE(server.refusals_.empty());
  EXPECT_EQ(server.refusals_.front().reason, Reason::kNotContributor);
  server.Begin(0, MakeUpload(1, {7, 8}));
  EXPECT_EQ(First<PrepareRound>(server.Push(FrameKind::kGradient, 0)), nullptr);
  const Effects last = server.Begin(1, MakeUpload(1, {7, 8}));
  const auto* const prepare = First<PrepareRound>(last);
  ASSERT_NE(prepare, nullptr);
  EXPECT_EQ(prepare->record.upload, UploadPlane::kWeights);
  EXPECT_TRUE(prepare->record.vote.scalars.empty());
  const Effects durable = server.Feed(DurableInput{});
  const auto* const apply = First<ApplyRound>(durable);
  ASSERT_NE(apply, nullptr);
  EXPECT_EQ(apply->decision.upload, UploadPlane::kWeights);
  server.Feed(SteppedInput{});
  EXPECT_EQ(server.fsm_.round(), 2u);
  EXPECT_EQ(server.fsm_.policy().opt_step, 0u);
  EXPECT_EQ(server.fsm_.tensor_steps(), (std::vector<uint64_t>{0, 0}));
  // The next round is a step of all again.
  for (const uint32_t slot : {0u, 1u, 2u}) server.Begin(slot, MakeBegin(2));
  EXPECT_EQ(server.fsm_.Contributors(0), (std::vector<uint32_t>{0, 1, 2}));
}

TEST(UploadTest, UnequalWeightsFailTheJobNamingTensorAndSlots) {
  Server server(2);
  server.Begin(0, MakeUpload(1, {7, 8}));
  const Effects effects = server.Begin(1, MakeUpload(1, {7, 9}));
  const auto* const failed = First<FailJob>(effects);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(failed->status), Reason::kInitMismatch);
  EXPECT_EQ(FieldsOf(failed->status).slot, 1);
  EXPECT_NE(failed->status.message().find("tensor \"t1\" that slot 1 uploads differs from slot 0"),
            std::string::npos)
      << failed->status;
}

TEST(UploadTest, SlotsWithoutDigestsTakeTheLeadsWeights) {
  Server server(3);
  server.Begin(1, MakeUpload(1, {}));
  server.Begin(0, MakeUpload(1, {7, 8}));
  EXPECT_EQ(server.fsm_.phase(), Phase::kCollect);
  // Those that have some are compared all the same.
  EXPECT_NE(First<FailJob>(server.Begin(2, MakeUpload(1, {6, 8}))), nullptr);
}

TEST(UploadTest, AnUploadAndAStepOfOneRoundFailTheJob) {
  for (const bool upload_first : {true, false}) {
    Server server(2);
    server.Begin(0, upload_first ? MakeUpload(1, {7, 8}) : MakeBegin(1));
    const Effects effects = server.Begin(1, upload_first ? MakeBegin(1) : MakeUpload(1, {7, 8}));
    const auto* const failed = First<FailJob>(effects);
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(ReasonOf(failed->status), Reason::kInitMismatch);
    const std::string who = upload_first ? "slot 0 uploads weights in round 1, which slot 1 steps"
                                         : "slot 1 uploads weights in round 1, which slot 0 steps";
    EXPECT_NE(failed->status.message().find(who), std::string::npos) << failed->status;
  }
}

// Slot 1 begins no round so.
void ExpectRefused(Server* server, const RoundBegin& bad) {
  const Effects effects = server->Begin(1, bad);
  const auto* const failed = First<FailSlot>(effects);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(ReasonOf(failed->status), Reason::kBadFrame);
  EXPECT_FALSE(server->fsm_.Begun(1));
}

TEST(UploadTest, MalformedUploadsAreRefused) {
  RoundBegin with_hyper = MakeBegin(1);
  with_hyper.upload = UploadPlane::kWeights;
  RoundBegin with_presence = MakeUpload(1, {7, 8});
  with_presence.presence = {true, false};
  for (const RoundBegin& bad : {with_hyper, with_presence, MakeUpload(1, {7})}) {
    Server server(2);
    ExpectRefused(&server, bad);
  }
}

TEST(UploadTest, ASlotThatIsBackMayBeginItsUploadAgainButNoOther) {
  Server server(2, Durability::kPower);
  server.Begin(0, MakeUpload(1, {7, 8}));
  EXPECT_EQ(First<FailSlot>(server.Begin(0, MakeUpload(1, {7, 8}))), nullptr);
  EXPECT_NE(First<FailSlot>(server.Begin(0, MakeUpload(1, {7, 9}))), nullptr);
}

TEST(UploadTest, ARestartedServerGoesOnWithWhatOfAnUploadIsInTheLog) {
  Server server(2, Durability::kPower);
  Restored restored{.round = 5, .tensor_step = {3, 4}};
  restored.policy.opt_step = 4;
  restored.reduced[1] = {.extent = 1, .sumsq = 1.0};
  Effects effects;
  server.fsm_.Restore(restored, &effects);
  EXPECT_EQ(server.fsm_.CompleteFor(0), std::vector<uint32_t>{1});
  server.Begin(1, MakeUpload(5, {7, 8}));
  server.Begin(0, MakeUpload(5, {7, 8}));
  EXPECT_NE(First<PrepareRound>(server.Push(FrameKind::kGradient, 0)), nullptr);
  EXPECT_EQ(First<ApplyRound>(server.Feed(DurableInput{}))->decision.upload, UploadPlane::kWeights);
  server.Feed(SteppedInput{});
  EXPECT_EQ(server.fsm_.tensor_steps(), (std::vector<uint64_t>{3, 4}));
  EXPECT_EQ(server.fsm_.policy().opt_step, 4u);
}

TEST(UploadTest, AServerRestoredWhilePreparedUploadsAllTheSame) {
  Server before(1, Durability::kPower);
  before.Begin(0, MakeUpload(1, {7, 8}));
  const Effects pushed = before.Push(FrameKind::kGradient, 0);
  Server after(1, Durability::kPower);
  Restored restored{.round = 1, .tensor_step = {0, 0}};
  restored.prepared = First<PrepareRound>(pushed)->record;
  Effects effects;
  after.fsm_.Restore(restored, &effects);
  ASSERT_NE(First<ApplyRound>(effects), nullptr);
  EXPECT_EQ(First<ApplyRound>(effects)->decision.upload, UploadPlane::kWeights);
}

TEST(UploadTest, TheNextEpochMayStepInTheRoundThatWasAnUpload) {
  Server server(2, Durability::kPower);
  server.Begin(0, MakeUpload(1, {7, 8}));
  server.Push(FrameKind::kGradient, 0);
  server.Feed(SealInput{});
  JobPlan next = server.fsm_.plan();
  next.epoch.epoch = 2;
  next.epoch.members[1].incarnation = IncarnationOf(1) + 1;
  Effects effects;
  ASSERT_TRUE(server.fsm_.Adopt(next, 64, &effects).ok());
  for (const uint32_t slot : {0u, 1u}) server.Begin(slot, MakeBegin(1));
  EXPECT_EQ(First<PrepareRound>(server.Push(FrameKind::kGradient, 0)), nullptr);
  const Effects pushed = server.Push(FrameKind::kGradient, 1);
  ASSERT_NE(First<PrepareRound>(pushed), nullptr);
  EXPECT_EQ(First<PrepareRound>(pushed)->record.upload, UploadPlane::kNone);
}

// --- Planes of the state ------------------------------------------------------------------------

TEST(StatePlaneTest, StepCountsTakeEffectWithTheDecision) {
  Server server(2);
  const StepCounts steps{{5, 9}, 11};
  server.Begin(1, MakePlane(StatePlaneOf(2), steps));
  server.Begin(0, MakePlane(StatePlaneOf(2), steps));
  const Effects pushed = server.Push(FrameKind::kGradient, 0);
  ASSERT_NE(First<PrepareRound>(pushed), nullptr);
  EXPECT_EQ(First<PrepareRound>(pushed)->record.upload, StatePlaneOf(2));
  EXPECT_EQ(First<PrepareRound>(pushed)->record.steps, steps);
  EXPECT_EQ(server.fsm_.tensor_steps(), (std::vector<uint64_t>{0, 0}));
  const Effects decided = server.Feed(DurableInput{});
  EXPECT_EQ(First<ApplyRound>(decided)->decision.upload, StatePlaneOf(2));
  EXPECT_EQ(First<ApplyRound>(decided)->decision.policy.opt_step, 11u);
  server.Feed(SteppedInput{});
  EXPECT_EQ(server.fsm_.tensor_steps(), steps.tensor);
  EXPECT_EQ(server.fsm_.policy().opt_step, 11u);
}

TEST(StatePlaneTest, APositionOfTheScheduleTakesEffectWithTheDecision) {
  JobPlan plan = MakeMixedPlan(1);
  plan.spec.policy.schedule = WarmupLR{.warmup_num_steps = 9};
  Server server(plan, Durability::kNone);
  server.Begin(0, MakePlane(StatePlaneOf(2), StepCounts{{5, 9}, 11, 7}));
  server.Push(FrameKind::kGradient, 0);
  server.Feed(DurableInput{});
  server.Feed(SteppedInput{});
  EXPECT_EQ(server.fsm_.round(), 2u);
  EXPECT_EQ(server.fsm_.policy().schedule_index, 7);
  EXPECT_EQ(server.fsm_.policy().opt_step, 11u);
}

TEST(StatePlaneTest, APositionIsRefusedWhereItIsNone) {
  JobPlan scheduled = MakeMixedPlan(2);
  scheduled.spec.policy.schedule = WarmupLR{.warmup_num_steps = 9};
  for (const int64_t index : {int64_t{-2}, static_cast<int64_t>(kStepCountMax) + 1}) {
    Server server(scheduled, Durability::kNone);
    ExpectRefused(&server, MakePlane(StatePlaneOf(2), StepCounts{{1, 2}, 2, index}));
  }
  Server server(MakeMixedPlan(2), Durability::kNone);
  ExpectRefused(&server, MakePlane(StatePlaneOf(2), StepCounts{{1, 2}, 2, 1}));
}

TEST(StatePlaneTest, WithoutStepCountsTheyStay) {
  Server server(1);
  Restored restored{.round = 1, .tensor_step = {3, 4}};
  restored.policy.opt_step = 4;
  Effects effects;
  server.fsm_.Restore(restored, &effects);
  server.Begin(0, MakePlane(UploadPlane::kMaster));
  server.Push(FrameKind::kGradient, 0);
  server.Feed(DurableInput{});
  server.Feed(SteppedInput{});
  EXPECT_EQ(server.fsm_.round(), 2u);
  EXPECT_EQ(server.fsm_.tensor_steps(), (std::vector<uint64_t>{3, 4}));
  EXPECT_EQ(server.fsm_.policy().opt_step, 4u);
}

TEST(StatePlaneTest, OnlySixteenBitTensorsArePushedInALowPlane) {
  Server server(MakeMixedPlan(2), Durability::kNone);
  RoundBegin begin = MakePlane(StatePlaneOf(1, /*low=*/true));
  begin.presence = {false, true};
  server.Begin(0, begin);
  server.Begin(1, begin);
  bool prepared = false;
  for (const Effect& effect : server.Push(FrameKind::kGradient, 0)) {
    prepared = prepared || std::holds_alternative<PrepareRound>(effect);
  }
  EXPECT_TRUE(prepared);
  // The helper sends all; the extents of tensor 0 are not expected.
  ASSERT_FALSE(server.refusals_.empty());
  for (const FrameRefused& refused : server.refusals_) {
    EXPECT_EQ(server.fsm_.layout().extents()[refused.extent].dtype, DType::kF32);
  }
  EXPECT_EQ(server.fsm_.PresentTensors(), (std::vector<bool>{false, true}));
}

TEST(StatePlaneTest, MalformedPlanesAreRefused) {
  const std::vector<uint64_t> two = {1, 2};
  RoundBegin low_of_all = MakePlane(UploadPlane::kMasterLow);
  RoundBegin low_of_none = low_of_all;
  low_of_none.presence = {false, false};
  RoundBegin high_of_one = MakePlane(UploadPlane::kMaster);
  high_of_one.presence = {false, true};
  for (const RoundBegin& bad :
       {low_of_all, low_of_none, high_of_one, MakePlane(UploadPlane::kWeights, StepCounts{two, 1}),
        MakePlane(StatePlaneOf(2), StepCounts{{1}, 1}),
        MakePlane(StatePlaneOf(2), StepCounts{{1, kStepCountMax + 1}, 1}),
        MakePlane(StatePlaneOf(2), StepCounts{two, kStepCountMax + 1}),
        MakePlane(StatePlaneOf(3))}) {
    Server server(MakeMixedPlan(2), Durability::kNone);
    ExpectRefused(&server, bad);
  }
}

TEST(StatePlaneTest, OtherPlanesOrStepCountsFailTheJob) {
  const RoundBegin first = MakePlane(StatePlaneOf(2), StepCounts{{5, 9}, 9});
  RoundBegin other_bits = first;
  other_bits.weight_crc32c = {7, 9};
  const std::vector<std::pair<RoundBegin, std::string>> others = {
      {MakePlane(StatePlaneOf(1)),
       "slot 1 uploads first moments in round 1, in which slot 0 "
       "uploads second moments"},
      {MakePlane(UploadPlane::kWeights), "slot 1 uploads weights in round 1, in which slot 0"},
      {MakePlane(StatePlaneOf(2)), "slot 1 uploads other step counts than slot 0"},
      {MakePlane(StatePlaneOf(2), StepCounts{{5, 8}, 9}), "other step counts"},
      {MakePlane(StatePlaneOf(2), StepCounts{{5, 9}, 8}), "other step counts"},
      {other_bits, "second moments of tensor \"t1\" that slot 1 uploads differs from slot 0's"},
      {MakeBegin(1), "slot 0 uploads second moments in round 1, which slot 1 steps"}};
  for (const auto& [other, why] : others) {
    Server server(2);
    server.Begin(0, first);
    const Effects effects = server.Begin(1, other);
    const auto* const failed = First<FailJob>(effects);
    ASSERT_NE(failed, nullptr) << why;
    EXPECT_EQ(ReasonOf(failed->status), Reason::kInitMismatch);
    EXPECT_NE(failed->status.message().find(why), std::string::npos) << failed->status;
  }
}

TEST(StatePlaneTest, AServerRestoredWhilePreparedKnowsTheStepCounts) {
  const StepCounts steps{{5, 9}, 11};
  Server before(1, Durability::kPower);
  before.Begin(0, MakePlane(StatePlaneOf(2), steps));
  const Effects pushed = before.Push(FrameKind::kGradient, 0);
  Server after(1, Durability::kPower);
  Restored restored{.round = 1, .tensor_step = {0, 0}};
  restored.prepared = First<PrepareRound>(pushed)->record;
  Effects effects;
  after.fsm_.Restore(restored, &effects);
  ASSERT_NE(First<ApplyRound>(effects), nullptr);
  EXPECT_EQ(First<ApplyRound>(effects)->decision.upload, StatePlaneOf(2));
  after.Feed(SteppedInput{});
  EXPECT_EQ(after.fsm_.tensor_steps(), steps.tensor);
  EXPECT_EQ(after.fsm_.policy().opt_step, 11u);
}

// --- Bits ---------------------------------------------------------------------------------------

using Tensors = std::vector<std::vector<float>>;

const std::vector<int64_t> kSizes = {300, 1, 77, 640, 129};

void ExpectSameBits(const Tensors& got, const Tensors& expected, const std::string& what) {
  for (size_t t = 0; t < expected.size(); ++t) {
    EXPECT_EQ(std::memcmp(got[t].data(), expected[t].data(), expected[t].size() * 4), 0)
        << what << " tensor " << t;
  }
}

class Uploads : public ::testing::TestWithParam<std::vector<uint32_t>> {
 protected:
  void StepAll(Cluster* cluster, uint64_t round, Reference* reference) {
    std::vector<Tensors> grads;
    for (uint32_t slot = 0; slot < 2; ++slot) {
      grads.push_back(Random(kSizes, static_cast<uint32_t>(100 * round + slot)));
      cluster->Begin(slot, MakeBegin(round));
      cluster->Send(FrameKind::kGradient, slot, round, grads.back());
    }
    ASSERT_TRUE(cluster->Wait(round).ok());
    reference->Step(grads, 0.5f, MakeBegin(round).hyper[0], std::vector<bool>(kSizes.size(), true));
  }
  // Slot 1 pushes nothing and receives the weights.
  void Upload(Cluster* cluster, uint64_t round, Reference* reference) {
    Tensors weights = Random(kSizes, static_cast<uint32_t>(round));
    weights[0][3] = -0.0f;
    weights[0][4] = std::numeric_limits<float>::infinity();
    weights[3][5] = std::numeric_limits<float>::denorm_min();
    const std::vector<uint32_t> digests(kSizes.size(), 5);
    cluster->Begin(1, MakeUpload(round, digests));
    cluster->Begin(0, MakeUpload(round, digests));
    cluster->Send(FrameKind::kGradient, 0, round, weights);
    ASSERT_TRUE(cluster->Wait(round).ok());
    reference->p = weights;
  }
};

TEST_P(Uploads, ReplaceMastersAndKeepMomentsAndStepCounts) {
  Cluster cluster(MakePlan(kSizes, 2, GetParam()));
  const Tensors init = Random(kSizes, 1);
  Reference reference(init);
  cluster.Send(FrameKind::kInit, 0, 1, init);
  for (uint64_t round = 1; round <= 9; ++round) {
    if (round % 3 == 0) {
      Upload(&cluster, round, &reference);
    } else {
      StepAll(&cluster, round, &reference);
    }
    ASSERT_FALSE(HasFatalFailure());
    for (const uint32_t slot : {0u, 1u}) {
      ExpectSameBits(cluster.Weights(slot), reference.p, absl::StrCat("weights of slot ", slot));
    }
    const std::vector<Tensors> state = cluster.FetchArrays(round + 1);
    ExpectSameBits(state[0], reference.p, "masters");
    ExpectSameBits(state[1], reference.m, "m");
    ExpectSameBits(state[2], reference.v, "v");
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST_P(Uploads, OfStateReplaceOneArrayAndTheStepCounts) {
  Cluster cluster(MakePlan(kSizes, 2, GetParam()));
  const Tensors init = Random(kSizes, 1);
  Reference reference(init);
  cluster.Send(FrameKind::kInit, 0, 1, init);
  for (uint64_t round = 1; round <= 6; round += 2) {
    StepAll(&cluster, round, &reference);
    const auto array = static_cast<uint32_t>(round / 2);
    Tensors values = Random(kSizes, static_cast<uint32_t>(round));
    for (float& value : values[2]) value = 0;
    // No second moment is negative; the last array is of any bits, and no step follows.
    values[0][7] = round == 5 ? std::bit_cast<float>(0xFF800001) : 1e-40f;
    *std::vector{&reference.p, &reference.m, &reference.v}[array] = values;
    reference.step = {round, 0, 3, 4, 1000};
    RoundBegin begin = MakeUpload(round + 1, std::vector<uint32_t>(kSizes.size(), 5));
    begin.upload = static_cast<UploadPlane>(2 + 2 * array);
    begin.steps = StepCounts{reference.step, 7};
    for (const uint32_t slot : {1u, 0u}) cluster.Begin(slot, begin);
    cluster.Send(FrameKind::kGradient, 0, round + 1, values);
    ASSERT_TRUE(cluster.Wait(round + 1).ok());
    const std::vector<Tensors> state = cluster.FetchArrays(round + 2);
    ExpectSameBits(state[0], reference.p, "masters");
    ExpectSameBits(state[1], reference.m, "m");
    ExpectSameBits(state[2], reference.v, "v");
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Servers, Uploads,
                         ::testing::Values(std::vector<uint32_t>{0},
                                           std::vector<uint32_t>{2, 5, 9}));

}  // namespace
}  // namespace ballast::server
