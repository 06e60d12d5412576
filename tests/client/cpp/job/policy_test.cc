// Loss scale and schedule at the client: its requests, the values it sends, and its refusals.
#include "tests/client/cpp/client_fixture.h"

namespace ballast::client {
namespace {

class PolicyTest : public ClientTest {
 protected:
  void StartScaled() {
    StartServers(2);
    options_.policy.loss_scale = DynamicLossScale();
    for (auto& server : servers_) {
      server->change_attach = [](v1::AttachReply* reply) {
        reply->mutable_policy()->set_loss_scale(64);
        reply->mutable_policy()->set_schedule_index(7);
        reply->mutable_policy()->set_consecutive_skips(1);
        reply->mutable_policy()->add_rates()->set_lr(0.5);
        v1::Nonfinite* const why = reply->mutable_policy()->mutable_why_skipped();
        why->set_kind(v1::NONFINITE_KIND_GRADIENT);
        why->set_value_bits(0x7FC00000);
      };
    }
  }
  absl::Status BeginAt(double loss_scale) {
    const std::vector<Hyper> hyper(2, AdamWHyper());
    return client_->BeginStep(hyper, model_.Buffers(), loss_scale);
  }
};

TEST_F(PolicyTest, AHomeThatKnowsNoPolicyIsRefused) {
  StartServers(1);
  options_.policy.schedule.type = "WarmupLR";
  const absl::Status refused = Attach();
  EXPECT_EQ(GetErrorInfo(refused).reason_name, "UNSUPPORTED") << refused;
}

TEST_F(PolicyTest, TheAttachReplyCarriesTheFirstRoundsPolicy) {
  StartScaled();
  ASSERT_TRUE(Attach().ok());
  const Policy policy = client_->policy();
  EXPECT_EQ(policy.loss_scale, 64);
  EXPECT_EQ(policy.schedule_index, 7);
  EXPECT_TRUE(policy.last_skipped);
  EXPECT_NE(policy.why_skipped.find("\"embed\"[0, 0]"), std::string::npos) << policy.why_skipped;
  ASSERT_EQ(policy.rates.size(), 1u);
  EXPECT_EQ(policy.rates[0].lr, 0.5);
}

TEST_F(PolicyTest, AStepOfAnotherScaleIsNotSentAndOneOfTheRightScaleMayFollow) {
  StartScaled();
  ASSERT_TRUE(Attach().ok());
  for (const double scale : {0.0, 1.0}) {
    const absl::Status refused = BeginAt(scale);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(GetErrorInfo(refused).reason_name, "LOSS_SCALE_MISMATCH") << refused;
  }
  ASSERT_TRUE(BeginAt(64).ok());
  ASSERT_EQ(*client_->Wait(std::chrono::seconds(60), nullptr), true);
  for (auto& server : servers_) {
    ASSERT_EQ(server->begins.size(), 1u);
    EXPECT_EQ(server->begins[0].loss_scale(), 64);
  }
}

TEST_F(PolicyTest, UnknownScheduleFieldsAreRefusedBeforeSending) {
  StartServers(1);
  options_.policy.schedule.type = "WarmupLR";
  options_.policy.schedule.arguments = {{"warmup", 3.0}};
  EXPECT_EQ(GetErrorInfo(Attach()).reason_name, "BAD_HYPERPARAM");
  options_.policy.schedule.arguments = {{"warmup_num_steps", 0.0}};
  EXPECT_EQ(GetErrorInfo(Attach()).reason_name, "BAD_HYPERPARAM");
  options_.policy.schedule = ScheduleOptions();
  options_.policy.profile = static_cast<PolicyProfile>(9);
  EXPECT_EQ(GetErrorInfo(Attach()).reason_name, "BAD_ARGUMENT");
}

}  // namespace
}  // namespace ballast::client
