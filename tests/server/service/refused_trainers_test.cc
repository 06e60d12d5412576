// A server's log lines about trainers that it refuses.
#include "server/service/refused_trainers.h"

#include "common/base/reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const absl::Status kNoRoom = ReasonedError(absl::StatusCode::kResourceExhausted,
                                           Reason::kOverBudget, "the job needs 5 bytes of 3");

class RefusedTrainersTest : public ::testing::Test {
 protected:
  // The lines of one refusal.
  std::string Said(const std::string& job, const absl::Status& why) {
    ::testing::internal::CaptureStderr();
    log_.Add("attach", job, "ipv4:10.0.0.7:40000", why);
    return ::testing::internal::GetCapturedStderr();
  }

  FakeClock clock_;
  RefusedTrainers log_{&clock_};
};

TEST_F(RefusedTrainersTest, ARefusalNamesJobReasonAndPeer) {
  const std::string line = Said("gpt", kNoRoom);
  EXPECT_THAT(line, HasSubstr("WARN"));
  EXPECT_THAT(line, HasSubstr("refused to attach: the job needs 5 bytes of 3"));
  EXPECT_THAT(line, HasSubstr("run=\"gpt\""));
  EXPECT_THAT(line, HasSubstr("reason=\"OVER_BUDGET\""));
  EXPECT_THAT(line, HasSubstr("peer=\"ipv4:10.0.0.7:40000\""));
}

TEST_F(RefusedTrainersTest, AutomaticRetriesOfATrainerAreNotLogged) {
  EXPECT_THAT(Said("gpt", absl::UnavailableError("replays")), IsEmpty());
  EXPECT_THAT(Said("gpt", ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kNotHome,
                                        "ask server 0")),
              IsEmpty());
}

TEST_F(RefusedTrainersTest, ManyAreCountedAndNotWritten) {
  for (int i = 0; i < RefusedTrainers::kLinesMax; ++i) {
    EXPECT_THAT(Said("gpt", kNoRoom), Not(IsEmpty())) << i;
  }
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Said("gpt", kNoRoom), IsEmpty());
  clock_.Advance(RefusedTrainers::kInterval);
  EXPECT_THAT(Said("gpt", kNoRoom), HasSubstr("suppressed=3"));
  EXPECT_THAT(Said("gpt", kNoRoom), HasSubstr("suppressed=0"));
}

}  // namespace
}  // namespace ballast::server
