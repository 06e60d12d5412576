// HomeRendezvous: a long poll that ends without an answer is made again, a home that is away is
// asked again for as long as the job allows, and every other error comes back as it is.
#include "client/cpp/session/home_rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "common/base/reason.h"

namespace ballast::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class HomeRendezvousTest : public ::testing::Test {
 protected:
  using Answer = absl::StatusOr<v1::RendezvousReply>;

  HomeRendezvous::Deps Deps() {
    HomeRendezvous::Deps deps;
    deps.job = 7;
    deps.slot = 2;
    deps.incarnation = 99;
    deps.reconnect_timeout = seconds(10);
    deps.time_scale = 2;
    deps.call = [this](const v1::RendezvousRequest& request, milliseconds,
                       v1::RendezvousReply* reply) {
      asked_.push_back(request);
      now_ += takes_;
      if (answers_.empty()) return last_;
      const Answer answer = answers_.front();
      answers_.pop_front();
      if (answer.ok()) *reply = *answer;
      return answer.status();
    };
    deps.wait = [this](milliseconds time) {
      now_ += time;
      return stop_;
    };
    deps.now = [this] { return std::chrono::steady_clock::time_point(now_); };
    deps.epoch = [] { return 12u; };
    return deps;
  }
  static Answer Over(const std::string& id = "") {
    v1::RendezvousReply reply;
    reply.set_over(true);
    reply.set_id(id);
    return reply;
  }

  std::chrono::nanoseconds now_ = seconds(1000);
  std::chrono::nanoseconds takes_{0};
  std::deque<Answer> answers_;
  absl::Status last_ = absl::UnavailableError("no server");
  absl::Status stop_;
  std::vector<v1::RendezvousRequest> asked_;
  const Meeting meeting_{12, 3, "main", seconds(60)};
};

TEST_F(HomeRendezvousTest, TheCallSaysWhichTrainerAsksForWhat) {
  HomeRendezvous rendezvous(Deps());
  rendezvous.SetDoing({CollectivePhase::kAllGather, 4, 9});
  answers_ = {Over("id")};
  EXPECT_EQ(*rendezvous.Exchange(meeting_, "mine"), "id");
  const v1::RendezvousRequest& request = asked_.front();
  EXPECT_EQ(request.ShortDebugString(),
            "job: 7 epoch: 12 slot: 2 incarnation: 99 act: RENDEZVOUS_ACT_EXCHANGE generation: 3 "
            "tag: \"main\" id: \"mine\" timeout_ms: 120000 wait_ms: 10000 "
            "doing { phase: COLLECTIVE_PHASE_ALL_GATHER bucket: 4 round: 9 }");
}

TEST_F(HomeRendezvousTest, AMeetingRankReportsItsActivity) {
  HomeRendezvous rendezvous(Deps());
  answers_ = {Over(), Over(), Over()};
  EXPECT_TRUE(rendezvous.RollCall().ok());
  EXPECT_EQ(rendezvous.doing().phase, CollectivePhase::kNone);
  EXPECT_TRUE(rendezvous.Ready(meeting_, "id").ok());
  EXPECT_EQ(rendezvous.doing().phase, CollectivePhase::kInit);
  rendezvous.SetDoing({CollectivePhase::kPush, 0, 1});
  EXPECT_TRUE(rendezvous.Ready(meeting_, "id").ok());
  EXPECT_EQ(rendezvous.doing().phase, CollectivePhase::kPush);
}

TEST_F(HomeRendezvousTest, APollThatIsNotOverIsMadeAgain) {
  answers_ = {v1::RendezvousReply(), v1::RendezvousReply(), Over()};
  EXPECT_TRUE(HomeRendezvous(Deps()).Ready(meeting_, "id").ok());
  EXPECT_EQ(asked_.size(), 3u);
}

TEST_F(HomeRendezvousTest, AHomeThatIsAwayIsAskedAgain) {
  answers_ = {absl::UnavailableError("gone"), absl::DeadlineExceededError("silent"),
              ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering, "starts"), Over()};
  EXPECT_TRUE(HomeRendezvous(Deps()).Ready(meeting_, "id").ok());
  EXPECT_EQ(asked_.size(), 4u);
}

TEST_F(HomeRendezvousTest, AHomeThatStaysAwayIsAnErrorAfterTheReconnectTimeout) {
  takes_ = seconds(1);
  EXPECT_EQ(HomeRendezvous(Deps()).Ready(meeting_, "id"), last_);
  EXPECT_EQ(asked_.size(), 10u);  // 1.1 s each
}

TEST_F(HomeRendezvousTest, ARollCallAndAnEndWaitNoLongerThanASecondForAHomeThatIsAway) {
  takes_ = milliseconds(10);
  HomeRendezvous rendezvous(Deps());
  const auto began = now_;
  for (const absl::Status& status :
       {rendezvous.RollCall().status(), rendezvous.GiveUp(meeting_, "why")}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), "the job's home is away: no server");
  }
  EXPECT_LE(now_ - began, 2 * 2 * milliseconds(1000));  // two calls; the time scale is 2
  last_ = absl::DeadlineExceededError("silent");
  EXPECT_EQ(rendezvous.RollCall().status().code(), absl::StatusCode::kUnavailable);
  answers_ = {absl::UnavailableError("gone"), Over()};
  EXPECT_TRUE(rendezvous.RollCall().ok());  // It was back within the second.
}

TEST_F(HomeRendezvousTest, AnAnswerBeginsTheReconnectTimeoutAnew) {
  takes_ = seconds(9);
  answers_ = {last_, v1::RendezvousReply(), last_, Over()};
  EXPECT_TRUE(HomeRendezvous(Deps()).Ready(meeting_, "id").ok());
}

TEST_F(HomeRendezvousTest, WithoutDurabilityAHomeThatIsAwayIsAnError) {
  HomeRendezvous::Deps deps = Deps();
  deps.reconnect_timeout = milliseconds(0);
  EXPECT_EQ(HomeRendezvous(deps).Ready(meeting_, "id"), last_);
  EXPECT_EQ(asked_.size(), 1u);
}

TEST_F(HomeRendezvousTest, EveryOtherErrorComesBackAtOnce) {
  for (const absl::Status& status :
       {ReasonedError(absl::StatusCode::kDeadlineExceeded, Reason::kTrainerLost, "rank 3"),
        ReasonedError(absl::StatusCode::kAborted, Reason::kRendezvousEnded, "given up"),
        ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch, "over")}) {
    answers_ = {status};
    asked_.clear();
    EXPECT_EQ(HomeRendezvous(Deps()).GiveUp(meeting_, "why"), status);
    EXPECT_EQ(asked_.size(), 1u);
  }
}

TEST_F(HomeRendezvousTest, AnAbortedClientEndsTheWait) {
  stop_ = absl::CancelledError("aborted");
  EXPECT_EQ(HomeRendezvous(Deps()).Ready(meeting_, "id"), stop_);
}

TEST_F(HomeRendezvousTest, TheRollCallIsOfThePresentEpoch) {
  Answer answer = Over();
  answer->set_generation(5);
  answer->set_ended("given up");
  answer->set_lease_ms(30000);
  v1::RankHeard* const rank = answer->add_ranks();
  rank->set_slot(3);
  rank->set_heard(true);
  rank->set_ago_ms(1500);
  rank->set_since_epoch(11);
  rank->mutable_doing()->set_phase(static_cast<v1::CollectivePhase>(77));  // of a newer home
  answers_ = {answer};
  const absl::StatusOr<RollCallReport> report = HomeRendezvous(Deps()).RollCall();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(asked_.front().epoch(), 12u);
  EXPECT_EQ(report->generation, 5u);
  EXPECT_EQ(report->ended, "given up");
  ASSERT_EQ(report->ranks.size(), 1u);
  EXPECT_EQ(report->ranks[0].ago, milliseconds(1500));
  EXPECT_EQ(report->ranks[0].since_epoch, 11u);
  EXPECT_EQ(report->lease, seconds(30));
  EXPECT_EQ(report->ranks[0].doing.phase, CollectivePhase::kNone);
}

}  // namespace
}  // namespace ballast::client
