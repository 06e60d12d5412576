// RendezvousFsm: an id is written once, a communicator opens when every rank has made it of that
// id, and every rank that waits hears why it never will.
#include "common/rendezvous/rendezvous_fsm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/reason.h"

namespace ballast::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kEpoch = 12;
constexpr seconds kLease{30};

Epoch EpochOf(uint32_t number, uint32_t world, uint64_t first = 100) {
  Epoch epoch{.number = number};
  for (uint32_t slot = 0; slot < world; ++slot) epoch.ranks[slot] = {first + slot, ""};
  return epoch;
}

class RendezvousTest : public ::testing::Test {
 protected:
  std::chrono::nanoseconds now_ = seconds(1000);
  RendezvousFsm fsm_{"job", EpochOf(kEpoch, 4), {now_, kLease}};
  std::map<Ticket, absl::StatusOr<Reply>> answers_;
  Ticket tickets_ = 0;

  static Call Of(Act act, uint32_t slot, const std::string& id = "") {
    Call call{.epoch = kEpoch, .slot = slot, .incarnation = 100 + slot, .act = act};
    call.generation = 1;
    call.tag = "main";
    call.id = id;
    call.timeout = seconds(60);
    call.wait = seconds(10);
    return call;
  }
  void Take(const Effects& effects) {
    for (const Answer& answer : effects.answers) {
      EXPECT_TRUE(answers_.emplace(answer.ticket, answer.reply).second) << "answered twice";
    }
  }
  Ticket Do(const Call& call) {
    Effects effects;
    fsm_.OnCall(now_, ++tickets_, call, &effects);
    Take(effects);
    return tickets_;
  }
  void Pass(std::chrono::nanoseconds time) {
    now_ += time;
    Effects effects;
    fsm_.OnDue(now_, &effects);
    Take(effects);
  }
  void GoTo(const Epoch& epoch) {
    Effects effects;
    fsm_.OnEpoch(now_, epoch, &effects);
    Take(effects);
  }
  bool Waits(Ticket ticket) const { return answers_.count(ticket) == 0; }
  absl::Status StatusOf(Ticket ticket) const {
    return Waits(ticket) ? absl::UnknownError("waits") : answers_.at(ticket).status();
  }
  std::string IdOf(Ticket ticket) const {
    return StatusOf(ticket).ok() ? answers_.at(ticket)->id : StatusOf(ticket).ToString();
  }
  // Every rank but those of `without` has the id, and is ready. The last ticket.
  Ticket Gather(const std::vector<uint32_t>& without = {}, const std::string& id = "id") {
    for (uint32_t slot = 0; slot < 4; ++slot) {
      if (std::count(without.begin(), without.end(), slot) == 0) {
        Do(Of(Act::kExchange, slot, slot == 0 ? id : ""));
      }
    }
    Ticket last = 0;
    for (uint32_t slot = 0; slot < 4; ++slot) {
      if (std::count(without.begin(), without.end(), slot) == 0) {
        last = Do(Of(Act::kReady, slot, id));
      }
    }
    return last;
  }
};

TEST_F(RendezvousTest, ARankThatComesBeforeTheIdWaitsForIt) {
  const Ticket early = Do(Of(Act::kExchange, 2));
  EXPECT_TRUE(Waits(early));
  EXPECT_EQ(IdOf(Do(Of(Act::kExchange, 0, "id"))), "id");
  EXPECT_EQ(IdOf(early), "id");
  EXPECT_EQ(IdOf(Do(Of(Act::kExchange, 3))), "id");
}

TEST_F(RendezvousTest, ItOpensWhenTheLastRankIsReadyAndNotBefore) {
  const Ticket third = Gather({3});
  EXPECT_TRUE(Waits(third));
  EXPECT_FALSE(fsm_.is_open("main"));
  Do(Of(Act::kExchange, 3));
  EXPECT_TRUE(Waits(third));
  EXPECT_TRUE(StatusOf(Do(Of(Act::kReady, 3, "id"))).ok());
  EXPECT_TRUE(StatusOf(third).ok());
  EXPECT_TRUE(answers_.at(third)->over);
  EXPECT_TRUE(fsm_.is_open("main"));
  // A lost answer is asked for again.
  EXPECT_TRUE(StatusOf(Do(Of(Act::kReady, 1, "id"))).ok());
}

TEST_F(RendezvousTest, AnOpenMeetingGivesItsIdNoMore) {
  Gather();
  for (const uint32_t slot : {0u, 2u}) {
    const absl::Status refused = StatusOf(Do(Of(Act::kExchange, slot, slot == 0 ? "id" : "")));
    EXPECT_EQ(ReasonOf(refused), Reason::kRendezvousEnded);
    EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(refused.message(), HasSubstr("rank " + std::to_string(slot) + " asks for the id"));
    EXPECT_THAT(refused.message(), HasSubstr("which every rank uses already"));
  }
  EXPECT_TRUE(fsm_.is_open("main"));  // Nothing has changed.
  EXPECT_TRUE(StatusOf(Do(Of(Act::kReady, 2, "id"))).ok());
}

TEST_F(RendezvousTest, AnIdIsWrittenOnceAndTheSameOneAgainIsNoHarm) {
  Do(Of(Act::kExchange, 0, "id"));
  EXPECT_EQ(IdOf(Do(Of(Act::kExchange, 0, "id"))), "id");
  const absl::Status other = StatusOf(Do(Of(Act::kExchange, 0, "other")));
  EXPECT_EQ(ReasonOf(other), Reason::kConflict);
  EXPECT_THAT(other.message(), HasSubstr("rank 0 of job \"job\""));
  EXPECT_EQ(IdOf(Do(Of(Act::kExchange, 1))), "id");
}

TEST_F(RendezvousTest, ARankWithAnotherIdIsRefusedAndIsNotReady) {
  Gather({1});
  const absl::Status other = StatusOf(Do(Of(Act::kReady, 1, "of another job")));
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(other), Reason::kConflict);
  EXPECT_FALSE(fsm_.is_open("main"));
  Do(Of(Act::kReady, 1, "id"));
  EXPECT_TRUE(fsm_.is_open("main"));
}

TEST_F(RendezvousTest, NoIdIsUsedTwice) {
  Gather();
  Call next = Of(Act::kExchange, 0, "id");
  next.generation = 2;
  const absl::Status used = StatusOf(Do(next));
  EXPECT_EQ(ReasonOf(used), Reason::kBadArgument);
  EXPECT_THAT(used.message(), HasSubstr("was used before"));
  EXPECT_TRUE(fsm_.is_open("main"));  // Nothing has changed.
  GoTo(EpochOf(kEpoch + 1, 4));
  next.epoch = kEpoch + 1;
  EXPECT_THAT(StatusOf(Do(next)).message(), HasSubstr("was used before"));
}

TEST_F(RendezvousTest, BadCallsAreRefusedByNameAndChangeNothing) {
  const struct {
    const char* text;
    Reason reason;
    std::function<void(Call*)> spoil;
  } kCases[] = {
      {"generation 0", Reason::kBadArgument, [](Call* c) { c->generation = 0; }},
      {"a tag of 0 bytes", Reason::kBadArgument, [](Call* c) { c->tag = ""; }},
      {"a tag of 65 bytes", Reason::kBadArgument, [](Call* c) { c->tag = std::string(65, 'a'); }},
      {"a tag of 2 bytes", Reason::kBadArgument, [](Call* c) { c->tag = "a/"; }},
      {"an id of 1025 bytes is above the limit of 1024", Reason::kBadArgument,
       [](Call* c) { c->id = std::string(1025, 'x'); }},
      {"gives none", Reason::kBadArgument, [](Call* c) { c->id = ""; }},
      {"rank 0, the lowest, gives it", Reason::kBadArgument,
       [](Call* c) { c->slot = 1, c->incarnation = 101; }},
      {"outside of the world of epoch 12, which has 4 ranks, 0 to 3", Reason::kBadArgument,
       [](Call* c) { c->slot = 4; }},
      {"another process holds the seat", Reason::kWrongIncarnation,
       [](Call* c) { c->incarnation = 7; }},
      {"epoch 11 of job \"job\" is over: the job is in epoch 12", Reason::kStaleEpoch,
       [](Call* c) { c->epoch = 11; }},
      {"speaks of epoch 13", Reason::kFutureEpoch, [](Call* c) { c->epoch = 13; }},
      {"without an id", Reason::kBadArgument, [](Call* c) { c->act = Act::kReady, c->id = ""; }},
      {"a time limit of 0 s", Reason::kBadArgument, [](Call* c) { c->timeout = seconds(0); }},
      {"at most 86400 s", Reason::kBadArgument,
       [](Call* c) { c->timeout = kTimeoutMax + seconds(1); }},
  };
  for (const auto& one : kCases) {
    Call call = Of(Act::kExchange, 0, "id");
    one.spoil(&call);
    const absl::Status status = StatusOf(Do(call));
    EXPECT_THAT(status.message(), HasSubstr(one.text));
    EXPECT_EQ(ReasonOf(status), one.reason) << one.text;
  }
  // No meeting was begun by any of them, and the id is new.
  EXPECT_EQ(IdOf(Do(Of(Act::kExchange, 0, "id"))), "id");
  Pass(seconds(59));
  EXPECT_TRUE(Waits(Do(Of(Act::kReady, 0, "id"))));
}

TEST_F(RendezvousTest, ASeatWithAnIdentityIsForThatIdentity) {
  Epoch secured = EpochOf(kEpoch + 1, 2);
  secured.ranks[0].identity = "ballast://tenant-a/trainer";
  GoTo(secured);
  Call call = Of(Act::kExchange, 0, "id");
  call.epoch = kEpoch + 1;
  call.identity = "ballast://tenant-b/trainer";
  EXPECT_EQ(ReasonOf(StatusOf(Do(call))), Reason::kWrongIncarnation);
  call.identity = secured.ranks[0].identity;
  EXPECT_EQ(IdOf(Do(call)), "id");
}

TEST_F(RendezvousTest, TheTimeLimitNamesTheRankAndWhatItDidLast) {
  Call init = Of(Act::kRollCall, 3);
  init.doing = {CollectivePhase::kReduceScatter, 7, 812};
  Do(init);
  now_ -= seconds(2);  // Older news change nothing.
  fsm_.OnHeard(3, {now_, {CollectivePhase::kPush, 0, 1}});
  now_ += seconds(2);
  const Ticket waits = Gather({3});
  Pass(seconds(59));
  EXPECT_TRUE(answers_.at(waits).ok());  // "ask again" after 10 s
  const Ticket again = Do(Of(Act::kReady, 0, "id"));
  Pass(seconds(1));
  EXPECT_EQ(StatusOf(again).message(),
            "rank 3 of epoch 12 did not arrive within 60 s (last heard 60 s ago, in reduce-scatter "
            "of bucket 7 of round 812)");
  EXPECT_EQ(ReasonOf(StatusOf(again)), Reason::kTrainerLost);
  EXPECT_EQ(StatusOf(again).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(FieldsOf(StatusOf(again)).slot, 3);
  // The generation is over for the one that comes late, too; the next one is not.
  EXPECT_EQ(ReasonOf(StatusOf(Do(Of(Act::kExchange, 3)))), Reason::kTrainerLost);
  Call next = Of(Act::kExchange, 3);
  next.generation = 2;
  EXPECT_TRUE(Waits(Do(next)));
}

TEST_F(RendezvousTest, ARankThatCameAndIsNotReadyIsNamedWhereNobodyElseIsMissing) {
  const Ticket waits = Gather({2});
  Do(Of(Act::kExchange, 2));
  Pass(seconds(60));
  EXPECT_EQ(StatusOf(waits).message(),
            "rank 2 of epoch 12 did not become ready within 60 s (last heard 60 s ago)");
}

TEST_F(RendezvousTest, AnOpenMeetingHasNoTimeLimit) {
  Gather();
  Pass(seconds(61));
  EXPECT_TRUE(fsm_.is_open("main"));
}

TEST_F(RendezvousTest, ACallIsAnsweredAfterItsWaitAndAsksAgain) {
  const Ticket early = Do(Of(Act::kExchange, 1));
  Pass(milliseconds(9999));
  EXPECT_TRUE(Waits(early));
  Pass(milliseconds(1));
  ASSERT_TRUE(StatusOf(early).ok());
  EXPECT_FALSE(answers_.at(early)->over);
  Call patient = Of(Act::kExchange, 1);
  patient.wait = seconds(3600);
  const Ticket again = Do(patient);
  Pass(kWaitMax);
  EXPECT_TRUE(StatusOf(again).ok());
}

TEST_F(RendezvousTest, ALaterCallOfARankTakesThePlaceOfTheEarlier) {
  const Ticket early = Do(Of(Act::kExchange, 1));
  const Ticket later = Do(Of(Act::kExchange, 1));
  ASSERT_TRUE(StatusOf(early).ok());
  EXPECT_FALSE(answers_.at(early)->over);
  Do(Of(Act::kExchange, 0, "id"));
  EXPECT_EQ(IdOf(later), "id");
}

TEST_F(RendezvousTest, ARankThatAsksAgainForTheIdIsNotReadyAnyMore) {
  Gather({3});
  Do(Of(Act::kExchange, 1));
  Do(Of(Act::kExchange, 3));
  Do(Of(Act::kReady, 3, "id"));
  EXPECT_FALSE(fsm_.is_open("main"));
  Do(Of(Act::kReady, 1, "id"));
  EXPECT_TRUE(fsm_.is_open("main"));
}

TEST_F(RendezvousTest, AGenerationThatIsGivenUpEndsEveryWaiterWithTheReason) {
  const Ticket ready = Gather({2, 3});
  Call other = Of(Act::kExchange, 2);
  other.tag = "norm";
  const Ticket elsewhere = Do(other);
  Call up = Of(Act::kGiveUp, 3);
  up.why = "no\nmemory";
  EXPECT_TRUE(StatusOf(Do(up)).ok());
  for (const Ticket ticket : {ready, elsewhere, Do(Of(Act::kExchange, 1))}) {
    EXPECT_EQ(ReasonOf(StatusOf(ticket)), Reason::kRendezvousEnded);
    EXPECT_THAT(StatusOf(ticket).message(), HasSubstr("rank 3 gave up generation 1"));
    EXPECT_THAT(StatusOf(ticket).message(), HasSubstr("no?memory"));
  }
  up.slot = 1, up.incarnation = 101, up.why = "another reason";
  EXPECT_TRUE(StatusOf(Do(up)).ok());
  EXPECT_THAT(StatusOf(Do(Of(Act::kExchange, 1))).message(), HasSubstr("no?memory"));
}

TEST_F(RendezvousTest, ANewerGenerationEndsTheOlderAndAnOlderIsRefused) {
  const Ticket waits = Gather({3});
  Call newer = Of(Act::kExchange, 3);
  newer.generation = 2;
  EXPECT_TRUE(Waits(Do(newer)));
  EXPECT_THAT(StatusOf(waits).message(), HasSubstr("rank 3 has begun generation 2"));
  for (const Act act : {Act::kExchange, Act::kReady}) {
    const absl::Status older = StatusOf(Do(Of(act, 0, "id")));
    EXPECT_EQ(ReasonOf(older), Reason::kRendezvousEnded);
    EXPECT_THAT(older.message(), HasSubstr("generation 1"));
  }
  EXPECT_TRUE(StatusOf(Do(Of(Act::kGiveUp, 0))).ok());  // It is over already.
  newer.slot = 0, newer.incarnation = 100, newer.id = "new";
  EXPECT_EQ(IdOf(Do(newer)), "new");
}

TEST_F(RendezvousTest, TheNextEpochEndsEveryWaiter) {
  const Ticket waits = Gather({3});
  GoTo(EpochOf(kEpoch + 1, 4, 200));
  EXPECT_EQ(ReasonOf(StatusOf(waits)), Reason::kStaleEpoch);
  EXPECT_EQ(StatusOf(waits).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(StatusOf(Do(Of(Act::kReady, 3, "id")))), Reason::kStaleEpoch);
  Call next = Of(Act::kExchange, 0, "next");
  next.epoch = kEpoch + 1;
  EXPECT_EQ(ReasonOf(StatusOf(Do(next))), Reason::kWrongIncarnation);
  next.incarnation = 200;
  EXPECT_EQ(IdOf(Do(next)), "next");
}

TEST_F(RendezvousTest, ASealedEpochTakesNoMoreCallsUntilTheNextOne) {
  const Ticket waits = Gather({3});
  Epoch sealed = EpochOf(kEpoch, 4);
  sealed.sealed = true;
  GoTo(sealed);
  EXPECT_EQ(ReasonOf(StatusOf(waits)), Reason::kStaleEpoch);
  GoTo(EpochOf(kEpoch, 4));  // A seal is for ever.
  EXPECT_THAT(StatusOf(Do(Of(Act::kExchange, 3))).message(), HasSubstr("epoch 12"));
  EXPECT_EQ(ReasonOf(StatusOf(Do(Of(Act::kExchange, 3)))), Reason::kStaleEpoch);
}

TEST_F(RendezvousTest, ReadyRanksBringTheIdBackToAHomeThatHasForgottenIt) {
  EXPECT_TRUE(Waits(Do(Of(Act::kReady, 1, "id"))));
  const Ticket wrong = Do(Of(Act::kReady, 2, "other"));
  EXPECT_TRUE(Waits(wrong));
  Do(Of(Act::kReady, 0, "id"));
  EXPECT_EQ(ReasonOf(StatusOf(wrong)), Reason::kConflict);
  EXPECT_EQ(IdOf(Do(Of(Act::kExchange, 3))), "id");
  Do(Of(Act::kReady, 3, "id"));
  EXPECT_FALSE(fsm_.is_open("main"));
  Do(Of(Act::kReady, 2, "id"));
  EXPECT_TRUE(fsm_.is_open("main"));
}

TEST_F(RendezvousTest, ARankThatWaitsForTheIdGetsItFromTheRankThatBringsItBack) {
  const Ticket waits = Do(Of(Act::kExchange, 3));
  const Ticket ready = Do(Of(Act::kReady, 0, "id"));
  EXPECT_EQ(IdOf(waits), "id");
  EXPECT_TRUE(Waits(ready));
}

TEST_F(RendezvousTest, TagsOfAGenerationAreLimited) {
  for (size_t i = 0; i < kTagsMax; ++i) {
    Call call = Of(Act::kExchange, 0, "id" + std::to_string(i));
    call.tag = "t" + std::to_string(i);
    EXPECT_TRUE(StatusOf(Do(call)).ok());
  }
  const absl::Status refused = StatusOf(Do(Of(Act::kExchange, 0, "id")));
  EXPECT_EQ(ReasonOf(refused), Reason::kOverBudget);
  EXPECT_THAT(refused.message(), HasSubstr("one more than the 16"));
}

TEST_F(RendezvousTest, TheRollCallSaysWhenEachRankWasHeard) {
  fsm_.OnHeard(2, {now_ - seconds(5), {CollectivePhase::kAllGather, 3, 9}});
  fsm_.OnHeard(9, {now_, {}});  // No rank.
  Call up = Of(Act::kGiveUp, 1);
  up.why = "x";
  Do(up);
  const Ticket asked = Do(Of(Act::kRollCall, 0));
  ASSERT_TRUE(StatusOf(asked).ok());
  const Reply reply = *answers_.at(asked);
  ASSERT_EQ(reply.ranks.size(), 4u);
  EXPECT_EQ(reply.ranks[0].ago, seconds(0));
  EXPECT_EQ(reply.ranks[2].ago, seconds(5));
  EXPECT_EQ(DoingText(reply.ranks[2].doing), "in all-gather of bucket 3 of round 9");
  EXPECT_FALSE(reply.ranks[3].heard);
  EXPECT_EQ(reply.lease, kLease);
  EXPECT_EQ(reply.generation, 1u);
  EXPECT_THAT(reply.ended, HasSubstr("rank 1 gave up"));
}

TEST_F(RendezvousTest, NewsOfAProcessThatLostItsSeatAreForgotten) {
  fsm_.OnHeard(1, {now_, {CollectivePhase::kPush, 0, 5}});
  fsm_.OnHeard(2, {now_, {CollectivePhase::kPush, 0, 5}});
  Epoch next = EpochOf(kEpoch + 1, 4);
  next.ranks[1].incarnation = 7;
  GoTo(next);
  Call call = Of(Act::kRollCall, 0);
  call.epoch = kEpoch + 1;
  const Reply reply = *answers_.at(Do(call));
  EXPECT_FALSE(reply.ranks[1].heard);
  EXPECT_TRUE(reply.ranks[2].heard);
}

TEST_F(RendezvousTest, ARankThatWasNotHeardSaysSinceWhenTheHomeListens) {
  now_ += seconds(2);
  Reply reply = *answers_.at(Do(Of(Act::kRollCall, 0)));
  EXPECT_FALSE(reply.ranks[1].heard);
  EXPECT_EQ(reply.ranks[1].ago, seconds(2));  // not "never"
  Epoch next = EpochOf(kEpoch + 1, 4);
  next.ranks[1].incarnation = 7;
  GoTo(next);
  now_ += seconds(3);
  Call call = Of(Act::kRollCall, 0);
  call.epoch = kEpoch + 1;
  reply = *answers_.at(Do(call));
  EXPECT_EQ(reply.ranks[1].ago, seconds(3));  // from its seat on
  EXPECT_EQ(reply.ranks[2].ago, seconds(5));
}

TEST_F(RendezvousTest, TheRollCallSaysWhichSeatsHaveANewProcess) {
  Epoch next = EpochOf(kEpoch + 1, 4);
  next.ranks[1].incarnation = 7;
  GoTo(next);
  next.number = kEpoch + 2;
  GoTo(next);  // Its number stays the same.
  Call call = Of(Act::kRollCall, 0);
  call.epoch = kEpoch + 2;
  const Reply reply = *answers_.at(Do(call));
  EXPECT_EQ(reply.ranks[1].since_epoch, kEpoch + 1);
  EXPECT_EQ(reply.ranks[2].since_epoch, 0u);
  call.act = Act::kExchange;
  call.id = "id";
  const Ticket waits = Do(call);
  EXPECT_TRUE(StatusOf(waits).ok());
  call.act = Act::kReady;
  const Ticket ready = Do(call);
  Pass(seconds(60));
  EXPECT_THAT(StatusOf(ready).message(),
              HasSubstr("rank 1 of epoch 14 did not arrive within 60 s (not heard since it took "
                        "its seat, 60 s ago); rank 2 of epoch 14 did not arrive within 60 s (not "
                        "heard since the home began to listen, 60 s ago)"));
}

// Peers that do anything at all: a meeting that is not open at its time limit lacks a rank, and
// every call is answered once.
TEST_F(RendezvousTest, EveryTimeoutNamesARank) {
  std::mt19937 random(12);
  const auto below = [&](uint32_t bound) { return static_cast<uint32_t>(random() % bound); };
  size_t limits = 0;
  for (uint32_t epoch = kEpoch; epoch < kEpoch + 400; ++epoch) {
    GoTo(EpochOf(epoch, 4));
    const std::string id = std::to_string(epoch);
    for (int i = 0; i < 60; ++i) {
      Call call = Of(static_cast<Act>(1 + below(4)), below(4), below(3) == 0 ? "x" + id : id);
      call.epoch = epoch;
      if (below(3) == 0) call.id.clear();
      call.generation = 1 + below(2);
      call.tag = below(4) == 0 ? "norm" : "main";
      if (call.act == Act::kGiveUp && below(8) != 0) call.act = Act::kReady;
      Do(call);
      Pass(seconds(below(10) == 0 ? 60 : 1));
    }
    Pass(seconds(60));
    EXPECT_FALSE(fsm_.anybody_waits());
  }
  for (const auto& [ticket, answer] : answers_) {
    if (ReasonOf(answer.status()) != Reason::kTrainerLost) continue;
    ++limits;
    EXPECT_GE(FieldsOf(answer.status()).slot, 0) << answer.status();
  }
  EXPECT_GT(limits, 100u);
}

TEST_F(RendezvousTest, TheEndOfTheJobEndsEveryWaiter) {
  const Ticket waits = Gather({3});
  Effects effects;
  fsm_.OnEnd(absl::UnavailableError("the server ends"), &effects);
  Take(effects);
  EXPECT_EQ(StatusOf(waits).message(), "the server ends");
  EXPECT_FALSE(fsm_.anybody_waits());
}

TEST_F(RendezvousTest, ManyMissingRanksAreCounted) {
  RendezvousFsm large("job", EpochOf(kEpoch, 64), {now_, kLease});
  Effects effects;
  large.OnCall(now_, 1, Of(Act::kExchange, 0, "id"), &effects);
  Call ready = Of(Act::kReady, 0, "id");
  large.OnCall(now_, 2, ready, &effects);
  effects = Effects();
  large.OnDue(now_ + seconds(60), &effects);
  ASSERT_EQ(effects.answers.size(), 1u);
  const absl::Status status = effects.answers.front().reply.status();
  EXPECT_THAT(status.message(), HasSubstr("rank 8 of epoch 12 did not arrive within 60 s (not "
                                          "heard since the home began to listen, 60 s ago); "
                                          "and 55 more"));
  EXPECT_THAT(status.message(), Not(HasSubstr("rank 9 ")));
}

TEST_F(RendezvousTest, TheNextTimeIsThatOfTheCallOrMeetingThatEndsFirst) {
  EXPECT_EQ(fsm_.next_due(), std::chrono::nanoseconds::max());
  Do(Of(Act::kExchange, 1));
  EXPECT_EQ(fsm_.next_due(), now_ + seconds(10));
  Pass(seconds(10));  // The call has its answer; the meeting stays.
  EXPECT_EQ(fsm_.next_due(), now_ + seconds(50));
  Gather();
  EXPECT_EQ(fsm_.next_due(), std::chrono::nanoseconds::max());
}

}  // namespace
}  // namespace ballast::rendezvous
