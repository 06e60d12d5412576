// Messages to plain types and back, and what is refused on the way.
#include "server/rpc/convert.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert/job_convert.h"

namespace ballast::server {
namespace {

JobPlan MakePlan() {
  JobPlan plan;
  plan.job = 77;
  plan.spec.name = "gpt";
  plan.spec.world = 2;
  plan.spec.group_count = 2;
  plan.spec.tensors = {{"a", {3, 4}, DType::kBF16, 0, {"a2"}}, {"b", {}, DType::kF32, 1, {}}};
  plan.spec.max_grad_norm = 1.5;
  plan.spec.loss_scale = 1024;
  plan.spec.tile_elements = 128;
  plan.spec.extent_elements = 256;
  plan.epoch.epoch = 3;
  plan.epoch.start_round = 9;
  plan.epoch.members = {{0, 100}, {1, 101}};
  plan.epoch.contributors = {{{0, 1}, 2}, {{1}, 1}};
  plan.servers = {2, 5};
  plan.owner = {5, 2};
  plan.layout_version = 4;
  return plan;
}

TEST(ConvertTest, AJobPlanSurvivesTheWire) {
  const JobPlan plan = MakePlan();
  const auto back = PeerJobFromProto(PeerJobToProto(plan));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(FirstDifference(plan.spec, back->spec), "");
  EXPECT_EQ(back->spec.tensors, plan.spec.tensors);
  EXPECT_EQ(back->job, 77u);
  EXPECT_EQ(back->epoch.epoch, 3u);
  EXPECT_EQ(back->epoch.start_round, 9u);
  EXPECT_EQ(back->epoch.members[1].incarnation, 101u);
  EXPECT_EQ(back->epoch.contributors[0].slots, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(back->epoch.contributors[0].divisor, 2);
  EXPECT_EQ(back->servers, plan.servers);
  EXPECT_EQ(back->owner, plan.owner);
  EXPECT_EQ(back->layout_version, 4u);
}

TEST(ConvertTest, AnOptimizerAndItsOptionsSurviveTheWire) {
  JobPlan plan = MakePlan();
  v1::JobSpec initial;
  ballast::ToProto(plan.spec, &initial);
  EXPECT_EQ(initial.options_size(), 0);
  plan.spec.optimizer = OptimizerKind::kAdagrad;
  plan.spec.options = {0.25, 1, 0};
  const auto back = PeerJobFromProto(PeerJobToProto(plan));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->spec.optimizer, OptimizerKind::kAdagrad);
  EXPECT_EQ(back->spec.options, plan.spec.options);
}

TEST(ConvertTest, APolicySurvivesTheWireAndAJobWithoutOneHasItsBytes) {
  JobPlan plan = MakePlan();
  v1::JobSpec before;
  ballast::ToProto(plan.spec, &before);
  EXPECT_FALSE(before.has_loss_scaler() || before.has_schedule());
  EXPECT_EQ(before.schedule_group_size() + before.schedule_group_count() + before.profile(), 0u);
  plan.spec.policy.profile = PolicyProfile::kDeepSpeed;
  plan.spec.policy.loss_scaler =
      LossScalerConfig{.initial_scale_power = 3, .profile = PolicyProfile::kDeepSpeed};
  plan.spec.policy.schedule =
      WarmupLR{.warmup_min_lr = std::vector<double>{0.5}, .warmup_type = WarmupType::kLinear};
  plan.spec.policy.schedule_group = {0, 0};
  plan.spec.policy.schedule_group_count = 1;
  const auto back = PeerJobFromProto(PeerJobToProto(plan));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->spec.policy == plan.spec.policy);
}

TEST(ConvertTest, UnknownEnumNumbersOfASpecAreNamed) {
  v1::AttachRequest request;
  ballast::ToProto(MakePlan().spec, request.mutable_spec());
  request.set_init(v1::INIT_MODE_BROADCAST);
  ASSERT_TRUE(AttachFromProto(request).ok());
  std::vector<v1::AttachRequest> bad(5, request);
  bad[0].mutable_spec()->mutable_tensors(1)->set_dtype(static_cast<v1::DType>(9));
  bad[1].mutable_spec()->mutable_tensors(1)->clear_dtype();
  bad[2].mutable_spec()->set_optimizer(static_cast<v1::OptimizerKind>(9));
  bad[3].mutable_spec()->clear_durability();
  bad[4].set_init(static_cast<v1::InitMode>(3));
  for (const v1::AttachRequest& message : bad) {
    const auto call = AttachFromProto(message);
    EXPECT_EQ(ReasonOf(call.status()), Reason::kBadSpec) << call.status();
  }
  EXPECT_THAT(AttachFromProto(bad[0]).status().message(), testing::HasSubstr("\"b\""));
}

TEST(ConvertTest, EqualInitNeedsOneDigestPerTensor) {
  v1::AttachRequest request;
  ballast::ToProto(MakePlan().spec, request.mutable_spec());
  request.set_init(v1::INIT_MODE_EQUAL);
  EXPECT_EQ(ReasonOf(AttachFromProto(request).status()), Reason::kBadSpec);
  request.add_tensor_crc32c(1);
  EXPECT_EQ(ReasonOf(AttachFromProto(request).status()), Reason::kBadSpec);
  request.add_tensor_crc32c(2);
  request.set_wait_timeout_ms(std::numeric_limits<uint64_t>::max());
  const auto call = AttachFromProto(request);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->wait, std::chrono::hours(24));
}

TEST(ConvertTest, AVoteSurvivesTheWireBitForBit) {
  Vote vote;
  vote.server = 4;
  vote.norms = {{1, 0.1}, {7, std::numeric_limits<double>::infinity()}};
  vote.nonfinite = 3;
  vote.first_nonfinite = {NonfiniteKind::kSum, 7, 12, 2, 0x7F800000};
  vote.contributor_digest = 0xFFFFFFFF;
  vote.scalars = {{0, 12, {0x3F800000, 0x7FC00001}}};
  v1::Prepare message;
  ballast::ToProto(vote, &message);
  auto back = VoteFromProto(message);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->norms, vote.norms);
  EXPECT_EQ(back->scalars, vote.scalars);
  EXPECT_EQ(back->server, 4u);
  EXPECT_EQ(back->nonfinite, 3u);
  EXPECT_EQ(back->first_nonfinite, vote.first_nonfinite);
  EXPECT_EQ(back->contributor_digest, 0xFFFFFFFFu);
  message.mutable_norms(1)->set_extent(1);
  EXPECT_EQ(ReasonOf(VoteFromProto(message).status()), Reason::kBadFrame);
}

TEST(ConvertTest, PresenceBitsComeLeastSignificantFirst) {
  v1::RoundBegin begin;
  begin.set_round(3);
  begin.set_presence(std::string("\x05\x80", 2));
  begin.add_hyper()->add_value(0.5);
  const auto out = BeginFromProto(begin, 2);
  ASSERT_TRUE(out.ok());
  ASSERT_EQ(out->presence.size(), 16u);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(out->presence[i], i == 0 || i == 2 || i == 15) << i;
  EXPECT_EQ(out->hyper, (std::vector<Hyper>{{0.5}}));
  EXPECT_EQ(ReasonOf(BeginFromProto(begin, 1).status()), Reason::kBadFrame);
}

TEST(ConvertTest, ARoundUploadsNothingWeightsOrOnePlane) {
  v1::RoundBegin begin;
  EXPECT_EQ(BeginFromProto(begin, 1)->upload, UploadPlane::kNone);
  EXPECT_FALSE(BeginFromProto(begin, 1)->steps.has_value());
  begin.set_upload(true);
  EXPECT_EQ(BeginFromProto(begin, 1)->upload, UploadPlane::kWeights);
  begin.set_plane(v1::STATE_PLANE_ARRAY1_LOW);
  EXPECT_EQ(ReasonOf(BeginFromProto(begin, 1).status()), Reason::kBadFrame);
  begin.set_upload(false);
  EXPECT_EQ(BeginFromProto(begin, 1)->upload, StatePlaneOf(1, /*low=*/true));
  begin.add_tensor_step(7);
  begin.set_opt_step(8);
  EXPECT_EQ(BeginFromProto(begin, 1)->steps, (StepCounts{{7}, 8}));
  for (const int unknown : {1, 10, -1}) {
    begin.set_plane(static_cast<v1::StatePlane>(unknown));
    EXPECT_EQ(ReasonOf(BeginFromProto(begin, 1).status()), Reason::kBadFrame) << unknown;
  }
}

TEST(ConvertTest, ProtocolRangesWithoutOverlapAreRefusedWithBoth) {
  v1::ProtocolRange theirs;
  theirs.set_min(kProtocolMax + 1);
  theirs.set_max(kProtocolMax + 3);
  const auto status = ChooseProtocol(theirs, "the trainer").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), Reason::kProtocolMismatch);
  EXPECT_THAT(status.message(), testing::HasSubstr("2 to 4"));
  EXPECT_THAT(status.message(), testing::HasSubstr("1 to 1"));
  theirs.set_min(0);
  EXPECT_EQ(ChooseProtocol(theirs, "the trainer").value(), kProtocolMax);
  theirs.set_max(0);
  EXPECT_FALSE(ChooseProtocol(theirs, "the trainer").ok());
}

}  // namespace
}  // namespace ballast::server
