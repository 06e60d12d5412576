// A trainer with reduced gradients and a home of another release: contributors in its epoch record,
// written by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/client/cpp/client_fixture.h"

namespace ballast::client {
namespace {

using ::testing::HasSubstr;

class ContributorsTest : public ClientTest {
 protected:
  ContributorsTest() {
    StartServers(1);
    options_.world = 2;
  }

  // The home's record has these slots for both groups of the model.
  void Answer(const std::vector<uint32_t>& slots, double divisor, int rule = 0) {
    Server(0).change_attach = [=](v1::AttachReply* reply) {
      for (uint32_t group = 0; group < 2; ++group) {
        v1::ContributorSet* const set = reply->mutable_epoch()->add_contributors();
        set->set_group(group);
        set->set_divisor(divisor);
        set->set_rule(static_cast<v1::ContributorRule>(rule));
        for (const uint32_t slot : slots) set->add_slots(slot);
      }
    };
  }

  // Nothing is sent then, neither weights nor a round.
  void ExpectRefused(const std::string& gradients) {
    const absl::Status status = Attach();
    ExpectReason(status, absl::StatusCode::kFailedPrecondition, "UNSUPPORTED");
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("does not know for gradients \"" + gradients + "\"; use the same"));
    EXPECT_TRUE(Server(0).hellos.empty());
    EXPECT_TRUE(Server(0).begins.empty());
  }
};

// It skips the field of the specification that it does not know, and has every slot push.
TEST_F(ContributorsTest, AnOlderHomeThatIgnoresEqualGradientsIsRefused) {
  options_.gradients = Gradients::kReduced;
  Answer({0, 1}, 2);
  ExpectRefused("reduced");
}

TEST_F(ContributorsTest, ARecordWithoutContributorsIsRefused) {
  options_.gradients = Gradients::kReduced;
  ExpectRefused("reduced");
}

TEST_F(ContributorsTest, AnotherDivisorIsRefused) {
  options_.gradients = Gradients::kReduced;
  Answer({0}, 2);
  ExpectRefused("reduced");
}

TEST_F(ContributorsTest, ARuleOfANewerHomeIsRefused) {
  Answer({0, 1}, 2, 2);
  ExpectRefused("local");
}

TEST_F(ContributorsTest, ARuleForSumsIsRefusedByATrainerThatPushesItsOwnGradient) {
  Answer({0, 1}, 2, v1::CONTRIBUTOR_RULE_BY_POSITION);
  ExpectRefused("local");
}

TEST_F(ContributorsTest, AHomeOfThisReleaseIsTaken) {
  options_.gradients = Gradients::kReduced;
  Answer({0}, 1);
  EXPECT_TRUE(Attach().ok());
}

TEST_F(ContributorsTest, AnOlderHomeServesATrainerThatAsksForNothingNew) {
  Answer({0, 1}, 2);
  EXPECT_TRUE(Attach().ok());
}

}  // namespace
}  // namespace ballast::client
