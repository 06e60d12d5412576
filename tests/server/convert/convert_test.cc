// Messages to plain types and back, and the refusals on the way.
#include "server/convert/control_convert.h"
#include "server/convert/data_convert.h"
#include "server/convert/peer_convert.h"

#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/policy_convert.h"

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
  plan.epoch.contributors = {{{0, 1}, 2}, {{1}, 1, ContributorRule::kByPosition}};
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
  EXPECT_EQ(back->epoch.contributors, plan.epoch.contributors);
  EXPECT_EQ(back->servers, plan.servers);
  EXPECT_EQ(back->owner, plan.owner);
  EXPECT_EQ(back->layout_version, 4u);
}

TEST(ConvertTest, AGrantWithASealSurvivesTheWire) {
  SealAnswer answer{.version = 7, .prepared = true, .init_missing = true, .world_max = 3};
  const SealAnswer granted = *FromProto(ToProto(answer));
  EXPECT_EQ(granted.version, 7u);
  EXPECT_TRUE(granted.prepared && granted.init_missing);
  EXPECT_EQ(granted.world_max, 3u);
  EXPECT_TRUE(granted.refusal.ok());
  answer.refusal = ReasonedError(absl::StatusCode::kResourceExhausted, Reason::kOverQuota,
                                 "uses 3 of 3 seats", {.server = 1});
  const SealAnswer less = *FromProto(ToProto(answer));
  EXPECT_EQ(ReasonOf(less.refusal), Reason::kOverQuota);
  EXPECT_EQ(less.refusal, answer.refusal);
  EXPECT_EQ(FromProto(v1::PeerSealed())->world_max, UINT32_MAX) << "an older server";
}

TEST(ConvertTest, ARollOfJobsAndItsAnswerSurviveTheWire) {
  const JobRoll roll{.server = 5,
                     .jobs = {{77, {.name = "gpt"}, {2, 5}, /*begun=*/true},
                              {78, {.tenant = "a", .name = "gpt"}, {5}, /*begun=*/false}}};
  const absl::StatusOr<JobRoll> back = FromProto(ToProto(roll));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->server, 5u);
  EXPECT_EQ(back->jobs, roll.jobs);
  const RollAnswer answer{.lacking = {roll.jobs[1]}, .unknown = {77, UINT64_MAX}};
  const absl::StatusOr<RollAnswer> heard = FromProto(ToProto(answer));
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(heard->lacking, answer.lacking);
  EXPECT_EQ(heard->unknown, answer.unknown);
}

TEST(ConvertTest, ARollWithOneJobThatCannotBeIsRefusedWhole) {
  const JobRoll roll{.jobs = {{77, {.name = "gpt"}, {2, 5}, true}, {78, {.name = "b"}, {5}, true}}};
  const auto refused = [&](const std::function<void(v1::RolledJob*)>& change) {
    v1::PeerRoll changed = ToProto(roll);
    change(changed.mutable_jobs(1));
    v1::PeerRollReply reply;
    *reply.add_lacking() = changed.jobs(1);
    return absl::IsInvalidArgument(FromProto(changed).status()) &&
           absl::IsInvalidArgument(FromProto(reply).status());
  };
  EXPECT_FALSE(refused([](v1::RolledJob*) {}));
  EXPECT_TRUE(refused([](v1::RolledJob* job) { job->clear_name(); }));
  EXPECT_TRUE(refused([](v1::RolledJob* job) { job->set_tenant("a/../b"); }));
  EXPECT_TRUE(refused([](v1::RolledJob* job) { job->clear_servers(); }));
  EXPECT_TRUE(refused([](v1::RolledJob* job) { job->add_servers(5); })) << "5 twice";
}

TEST(ConvertTest, ReducedGradientsSurviveTheWireAndAJobWithoutThemHasItsBytes) {
  JobPlan plan = MakePlan();
  v1::PeerJob before = PeerJobToProto(plan);
  EXPECT_EQ(before.spec().gradients(), v1::GRADIENTS_LOCAL);
  plan.spec.gradients = Gradients::kReduced;
  const v1::PeerJob job = PeerJobToProto(plan);
  EXPECT_EQ(job.ByteSizeLong(), before.ByteSizeLong() + 3);
  const auto back = PeerJobFromProto(job);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->spec.gradients, Gradients::kReduced);
  const std::string difference = FirstDifference(plan.spec, MakePlan().spec);
  EXPECT_EQ(difference, "gradients is local, the job has reduced");
}

TEST(ConvertTest, TheAttemptThatMadeAJobSurvivesTheWireAndAJobWithoutOneHasItsBytes) {
  JobPlan plan = MakePlan();
  const size_t before = PeerJobToProto(plan).ByteSizeLong();
  plan.attempt = {7, 300};
  const v1::PeerJob job = PeerJobToProto(plan);
  EXPECT_EQ(job.ByteSizeLong(), before + 9 + 4) << "tags, 8 bytes, and 300 in two";
  const auto back = PeerJobFromProto(job);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->attempt.home, 7u);
  EXPECT_EQ(back->attempt.number, 300u);
}

TEST(ConvertTest, AnAttachOfAnOlderTrainerReadsAsLocalGradients) {
  JobPlan plan = MakePlan();
  plan.spec.gradients = Gradients::kReduced;
  v1::AttachRequest request;
  ballast::ToProto(plan.spec, request.mutable_spec());
  request.set_init(v1::INIT_MODE_BROADCAST);
  // The bytes that an older trainer sends end before the field, which is the last one.
  std::string bytes = request.spec().SerializeAsString();
  const std::string field = "\xc0\x01\x01";
  ASSERT_EQ(bytes.substr(bytes.size() - field.size()), field);
  bytes.resize(bytes.size() - field.size());
  ASSERT_TRUE(request.mutable_spec()->ParseFromString(bytes));
  const auto call = AttachFromProto(request);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->spec.gradients, Gradients::kLocal);
  EXPECT_EQ(FirstDifference(plan.spec, call->spec), "gradients is local, the job has reduced");
}

TEST(ConvertTest, RulesOfANewerReleaseAreRefusedByNumber) {
  v1::PeerJob job = PeerJobToProto(MakePlan());
  job.mutable_spec()->set_gradients(static_cast<v1::Gradients>(3));
  EXPECT_EQ(ReasonOf(PeerJobFromProto(job).status()), Reason::kBadSpec);
  v1::EpochRecord epoch = PeerJobToProto(MakePlan()).epoch();
  epoch.mutable_contributors(1)->set_rule(static_cast<v1::ContributorRule>(2));
  const absl::Status status = EpochFromProto(epoch).status();
  EXPECT_EQ(ReasonOf(status), Reason::kBadFrame);
  EXPECT_NE(std::string(status.message()).find("group 1 has divisor 1 and contributor rule 2"),
            std::string::npos)
      << status;
}

TEST(ConvertTest, DigestsOfGradientsSurviveTheWire) {
  v1::RoundBegin begin;
  begin.add_gradient_crc32c(7);
  begin.add_gradient_crc32c(0);
  const auto back = BeginFromProto(begin, 8);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->gradient_crc32c, (std::vector<uint32_t>{7, 0}));
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

// As docs/formats/wire.md has the messages: field numbers are never used for something else.
TEST(ConvertTest, BytesOfAPolicyStayAsTheyAre) {
  JobSpec spec;
  spec.policy.loss_scaler = LossScalerConfig{.initial_scale_power = 3, .hysteresis = 1};
  spec.policy.schedule = LRRangeTest{.lr_range_test_min_lr = std::vector<double>{0.5}};
  spec.policy.schedule_group = {0, 0};
  spec.policy.schedule_group_count = 1;
  v1::JobSpec message;
  ballast::ToProto(spec.policy, &message);
  const v1::ScheduleArgument& first = message.schedule().arguments(0);
  EXPECT_EQ(absl::BytesToHexString(first.SerializeAsString()),
            absl::StrCat("0a14", absl::BytesToHexString("lr_range_test_min_lr"), "1208",
                         "000000000000e03f", "1801"));
  EXPECT_EQ(message.schedule().arguments_size(), 4);
  message.mutable_schedule()->clear_arguments();
  EXPECT_EQ(absl::BytesToHexString(message.SerializeAsString()),
            absl::StrCat("9a0110", "0803", "10e807", "1801", "29000000000000f03f",  // loss_scaler
                         "a2010d", "0a0b", absl::BytesToHexString("LRRangeTest"),   // schedule
                         "b201020000", "b80101"));
  v1::Policy policy;
  ballast::ToProto(PolicyState{.version = 2,
                               .loss_scale = 8,
                               .opt_step = 3,
                               .consecutive_skips = 1,
                               .scaler_iteration = 4,
                               .last_overflow = -1,
                               .hysteresis_left = 2,
                               .skipped = 5,
                               .schedule_index = 6,
                               .rates = {{.lr = 0.5, .beta1 = 0.75}}},
                   &policy);
  EXPECT_EQ(
      absl::BytesToHexString(policy.SerializeAsString()),
      absl::StrCat("090000000000002040", "1004", "18ffffffffffffffffff01", "2002", "2805", "3006",
                   "3a12", "09000000000000e03f", "11000000000000e83f", "4003", "4801"));
}

TEST(ConvertTest, APolicyIsHeardAtTheAttachWithStateAndWithResults) {
  PolicyReport report{StartPolicy(JobSpec()), {NonfiniteKind::kGradient, 1, 2, 3, 0x7FC00000}};
  report.state.version = 2;
  report.state.loss_scale = 8;
  report.state.rates = {{0.5, 0.25, 0.125}};
  AttachResult attached;
  attached.plan = MakePlan();
  EXPECT_FALSE(AttachToProto(attached, {}, 1).has_policy());
  attached.state.policy = report;
  const v1::AttachReply reply = AttachToProto(attached, {}, 1);
  EXPECT_EQ(PolicyFromProto(reply.policy()), report.state);
  EXPECT_EQ(NonfiniteFromProto(reply.policy().why_skipped()), report.why_skipped);
  StateInfo info;
  info.policy = report;
  v1::StateInfo state;
  ToProto(info, &state);
  EXPECT_EQ(PolicyFromProto(state.policy()), report.state);
  RoundResult result;
  v1::RoundResult message;
  ballast::ToProto(result, &message);
  EXPECT_FALSE(message.has_policy());
  result.policy = report.state;
  ballast::ToProto(result, &message);
  EXPECT_EQ(RoundResultFromProto(message).policy, result.policy);
  v1::RoundBegin begin;
  EXPECT_EQ(BeginFromProto(begin, 1)->loss_scale, 0);
  begin.set_loss_scale(64);
  EXPECT_EQ(BeginFromProto(begin, 1)->loss_scale, 64);
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
  vote.rates = {{0.5, 0.25, 0.125}, {0.75, 0, 0}};
  v1::Prepare message;
  ballast::ToProto(vote, &message);
  auto back = VoteFromProto(message);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->norms, vote.norms);
  EXPECT_EQ(back->scalars, vote.scalars);
  EXPECT_EQ(back->rates, vote.rates);
  EXPECT_EQ(back->server, 4u);
  EXPECT_EQ(back->nonfinite, 3u);
  EXPECT_EQ(back->first_nonfinite, vote.first_nonfinite);
  EXPECT_EQ(back->contributor_digest, 0xFFFFFFFFu);
  message.mutable_norms(1)->set_extent(1);
  EXPECT_EQ(ReasonOf(VoteFromProto(message).status()), Reason::kBadFrame);
}

TEST(ConvertTest, ASecondVoteIsOneEvenWhenItHasNoSquares) {
  const std::vector<RunSquares> squares = {{1, 2, 0.1, -0.0}, {7, 0, INFINITY, 1e300}};
  for (const auto& sent :
       {std::optional<std::vector<RunSquares>>(), std::make_optional(std::vector<RunSquares>()),
        std::make_optional(squares)}) {
    v1::Prepare message;
    ballast::ToProto(Vote{.server = 4, .squares = sent}, &message);
    const auto back = VoteFromProto(message);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->squares, sent);
  }
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
  begin.set_schedule_index(0);
  EXPECT_EQ(BeginFromProto(begin, 1)->steps, (StepCounts{{7}, 8, 0})) << "0 is a position";
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
