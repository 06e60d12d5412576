// When a lost server is tried again, reported and given up: with a made-up clock.
#include "client/cpp/session/reconnect.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/reason.h"

namespace ballast::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Action = Reconnect::Action;
using Time = Reconnect::Time;

constexpr Time kStart = Time(seconds(1000));

Reconnect::Limits Limits() {
  Reconnect::Limits limits;
  limits.timeout = seconds(20);
  return limits;
}

TEST(Reconnect, AServerThatIsThereNeedsNothing) {
  Reconnect reconnect(Limits());
  EXPECT_FALSE(reconnect.away());
  EXPECT_EQ(reconnect.Next(kStart), Action::kNothing);
  EXPECT_EQ(reconnect.due(), Time::max());
}

TEST(Reconnect, TriesBackOffFrom100MillisecondsToOneSecond) {
  Reconnect reconnect(Limits());
  reconnect.OnLost("gone", kStart);
  Time now = kStart;
  for (const int wait_ms : {100, 200, 400, 800, 1000, 1000}) {
    EXPECT_EQ(reconnect.due(), now + milliseconds(wait_ms));
    EXPECT_EQ(reconnect.Next(now + milliseconds(wait_ms) - milliseconds(1)), Action::kNothing);
    now += milliseconds(wait_ms);
    EXPECT_EQ(reconnect.Next(now), Action::kOpen);
    EXPECT_EQ(reconnect.Next(now), Action::kNothing) << "one try at a time";
    EXPECT_GT(reconnect.due(), now);
    reconnect.OnLost("refused", now);
  }
  EXPECT_EQ(reconnect.since(), kStart);
  EXPECT_EQ(reconnect.last_error(), "refused");
}

// A server that reads its state exists, and a second lost at its end would be lost for nothing.
TEST(Reconnect, AServerThatRecoversIsAskedEvery100Milliseconds) {
  Reconnect reconnect(Limits());
  reconnect.OnLost("gone", kStart);
  Time now = kStart;
  const auto try_at = [&](int wait_ms) {
    EXPECT_EQ(reconnect.due(), now + milliseconds(wait_ms));
    now += milliseconds(wait_ms);
    EXPECT_EQ(reconnect.Next(now), Action::kOpen);
  };
  for (const int wait_ms : {100, 200, 400}) {
    try_at(wait_ms);
    reconnect.OnLost("refused", now);
  }
  try_at(800);
  for (int i = 0; i < 5; ++i) {
    reconnect.OnLost("recovering", now, /*recovering=*/true);
    try_at(100);
  }
  reconnect.OnLost("gone again", now);
  try_at(200);
}

TEST(Reconnect, ASecondWordOfALossOnlyChangesTheError) {
  Reconnect reconnect(Limits());
  reconnect.OnLost("silent", kStart);
  reconnect.OnLost("reset", kStart + milliseconds(90));
  EXPECT_EQ(reconnect.due(), kStart + milliseconds(100));
  EXPECT_EQ(reconnect.last_error(), "reset");
}

TEST(Reconnect, WaitingIsReportedEveryFiveSeconds) {
  Reconnect reconnect(Limits());
  reconnect.OnLost("gone", kStart);
  EXPECT_EQ(reconnect.Next(kStart + milliseconds(100)), Action::kOpen);
  // That try stays under way.
  EXPECT_EQ(reconnect.due(), kStart + seconds(5));
  EXPECT_EQ(reconnect.Next(kStart + seconds(5)), Action::kReport);
  EXPECT_EQ(reconnect.Next(kStart + seconds(5)), Action::kNothing);
  EXPECT_EQ(reconnect.due(), kStart + seconds(10));
  EXPECT_EQ(reconnect.Next(kStart + seconds(10)), Action::kReport);
}

TEST(Reconnect, ATryAndAReportThatAreDueTogetherBothHappen) {
  Reconnect reconnect(Limits());
  reconnect.OnLost("gone", kStart);
  std::vector<Action> actions;
  for (int i = 0; i < 3; ++i) actions.push_back(reconnect.Next(kStart + seconds(6)));
  EXPECT_EQ(actions, (std::vector<Action>{Action::kOpen, Action::kReport, Action::kNothing}));
}

TEST(Reconnect, ItGivesUpAtTheTimeoutEvenDuringATry) {
  Reconnect reconnect(Limits());
  reconnect.OnLost("gone", kStart);
  EXPECT_EQ(reconnect.Next(kStart + seconds(1)), Action::kOpen);
  EXPECT_EQ(reconnect.Next(kStart + seconds(19)), Action::kReport);
  EXPECT_EQ(reconnect.due(), kStart + seconds(20));
  EXPECT_EQ(reconnect.Next(kStart + seconds(20)), Action::kGiveUp);
  EXPECT_EQ(reconnect.Next(kStart + seconds(21)), Action::kGiveUp);
}

TEST(Reconnect, TheTimeoutCountsEachAbsenceByItself) {
  Reconnect reconnect(Limits());
  reconnect.OnLost("gone", kStart);
  reconnect.OnBack(kStart + seconds(15));
  EXPECT_EQ(reconnect.Next(kStart + seconds(25)), Action::kNothing);
  reconnect.OnLost("gone again", kStart + seconds(25));
  EXPECT_EQ(reconnect.since(), kStart + seconds(25));
  EXPECT_EQ(reconnect.Next(kStart + seconds(44)), Action::kOpen);
  EXPECT_EQ(reconnect.Next(kStart + seconds(45)), Action::kGiveUp);
}

TEST(Reconnect, AServerThatFallsOverAtOnceIsNotTriedFaster) {
  Reconnect reconnect(Limits());
  Time now = kStart;
  for (const int wait_ms : {100, 200, 400, 800, 1000}) {
    reconnect.OnLost("gone", now);
    EXPECT_EQ(reconnect.due(), now + milliseconds(wait_ms));
    now += milliseconds(wait_ms);
    EXPECT_EQ(reconnect.Next(now), Action::kOpen);
    reconnect.OnBack(now);
  }
  now += seconds(2);
  reconnect.OnLost("gone", now);
  EXPECT_EQ(reconnect.due(), now + milliseconds(100));
}

TEST(IsNotYet, TellsAbsenceFromRefusal) {
  const auto error = [](absl::StatusCode code, Reason reason, int slot = -1) {
    ErrorFields fields;
    fields.slot = slot;
    return ReasonedError(code, reason, "text", fields);
  };
  using Code = absl::StatusCode;
  for (const absl::Status& status :
       {absl::OkStatus(), absl::UnavailableError("Socket closed"),
        absl::InternalError("RST_STREAM"), absl::CancelledError("RST_STREAM"),
        error(Code::kUnavailable, Reason::kUnspecified),
        error(Code::kUnavailable, Reason::kServerLost),
        error(Code::kUnavailable, Reason::kShuttingDown),
        error(Code::kUnavailable, Reason::kRecovering),
        error(Code::kUnavailable, Reason::kStorageFailed),
        error(Code::kNotFound, Reason::kUnknownJob),
        error(Code::kFailedPrecondition, Reason::kFutureEpoch),
        error(Code::kUnavailable, Reason::kTrainerLost, 2)}) {
    EXPECT_TRUE(IsNotYet(status, 2)) << status;
  }
  for (const absl::Status& status :
       {error(Code::kUnavailable, Reason::kTrainerLost, 1),
        error(Code::kUnavailable, Reason::kTrainerLost),
        error(Code::kInternal, Reason::kUnspecified),
        error(Code::kFailedPrecondition, Reason::kStaleEpoch),
        error(Code::kFailedPrecondition, Reason::kWrongIncarnation),
        error(Code::kFailedPrecondition, Reason::kJobFailed),
        error(Code::kFailedPrecondition, Reason::kWrongVersion),
        error(Code::kFailedPrecondition, Reason::kProtocolMismatch),
        error(Code::kDataLoss, Reason::kStateLost), error(Code::kAborted, Reason::kVoteMismatch)}) {
    EXPECT_FALSE(IsNotYet(status, 2)) << status;
  }
}

TEST(PauseMeter, AbsencesThatOverlapCountOnce) {
  PauseMeter meter;
  meter.StartRound(kStart);
  EXPECT_EQ(meter.paused(kStart + seconds(1)), seconds(0));
  meter.OnLost(kStart + seconds(1));
  meter.OnLost(kStart + seconds(2));
  EXPECT_EQ(meter.paused(kStart + seconds(3)), seconds(2));
  meter.OnBack(kStart + seconds(4));
  meter.OnBack(kStart + seconds(5));
  EXPECT_EQ(meter.paused(kStart + seconds(9)), seconds(4));
  meter.OnLost(kStart + seconds(10));
  EXPECT_EQ(meter.paused(kStart + seconds(11)), seconds(5));
  EXPECT_EQ(meter.reconnects(), 2u);
}

TEST(PauseMeter, APassageCountsButIsNoReconnect) {
  PauseMeter meter;
  meter.StartRound(kStart);
  meter.OnLost(kStart + seconds(1));
  meter.OnPassed(kStart + seconds(3));
  EXPECT_EQ(meter.paused(kStart + seconds(9)), seconds(2));
  EXPECT_EQ(meter.reconnects(), 0u);
}

TEST(PauseMeter, ARoundCountsOnlyItsOwnTime) {
  PauseMeter meter;
  meter.OnLost(kStart);
  meter.StartRound(kStart + seconds(5));
  EXPECT_EQ(meter.paused(kStart + seconds(6)), seconds(1));
  meter.OnBack(kStart + seconds(7));
  EXPECT_EQ(meter.paused(kStart + seconds(8)), seconds(2));
  EXPECT_EQ(meter.reconnects(), 1u);
  meter.EndRound();
  EXPECT_EQ(meter.reconnects(), 0u);
  meter.StartRound(kStart + seconds(9));
  EXPECT_EQ(meter.paused(kStart + seconds(10)), seconds(0));
}

}  // namespace
}  // namespace ballast::client
