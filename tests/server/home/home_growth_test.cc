// HomeGrowth: groups are added when all slots ask for the same, everywhere or not at all; and the
// consequences for a process that waits for a seat.
#include "server/home/home_growth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/home/home_inputs.h"

namespace ballast::server {
namespace {

using namespace testing;  // NOLINT: the rig next to this file.
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const home::Rules kRules = TestRules();

class HomeGrowthTest : public ::testing::Test {
 protected:
  JobPlan plan_ = HomeRig::Running(&kRules).job().plan();
  HomeGrowth growth_{&kRules};
  home::Ticket ticket_ = 0;
  bool fatal_ = false;

  absl::Status Ask(const ExtendCall& call, home::Effects* effects) {
    return growth_.Ask({++ticket_, call}, plan_, /*changes=*/false, &fatal_, effects);
  }
  absl::Status Ask(const ExtendCall& call) {
    home::Effects effects;
    return Ask(call, &effects);
  }
  // Both slots ask; the effects of the second call.
  home::Effects AskBoth() {
    home::Effects effects;
    EXPECT_TRUE(Ask(GrowthCall(0, kFirst)).ok());
    EXPECT_TRUE(Ask(GrowthCall(1, kFirst + 1), &effects).ok());
    return effects;
  }
  // `server` answers what `asked` has ordered. Returns whether the growth is over.
  bool Grown(const home::Effects& asked, uint32_t server, home::Effects* effects,
             const absl::Status& status = absl::OkStatus()) {
    const uint64_t attempt = All<home::GrowAt>(asked).front().attempt;
    return growth_.OnGrown({attempt, server, status}, &plan_, effects);
  }
};

TEST_F(HomeGrowthTest, NeedsEverySlotAndEqualContent) {
  home::Effects first;
  ASSERT_TRUE(Ask(GrowthCall(0, kFirst), &first).ok());
  EXPECT_TRUE(One<home::SlotGrows>(first).grows);
  const auto refused = [&](auto spoil) {
    ExtendCall call = GrowthCall(1, kFirst + 1);
    spoil(&call);
    const Reason reason = ReasonOf(Ask(call));
    EXPECT_EQ(fatal_, reason != Reason::kWrongIncarnation);
    EXPECT_FALSE(growth_.busy());
    return reason;
  };
  EXPECT_EQ(refused([](ExtendCall* c) { c->tensors[0].shape = {9}; }), Reason::kLayoutMismatch);
  EXPECT_EQ(refused([](ExtendCall* c) { c->tensor_crc32c = {4}; }), Reason::kInitMismatch);
  EXPECT_EQ(refused([](ExtendCall* c) { c->base_layout_version = 2; }), Reason::kLayoutMismatch);
  EXPECT_EQ(refused([](ExtendCall* c) { c->round = 9; }), Reason::kLayoutMismatch);
  EXPECT_EQ(refused([](ExtendCall* c) { c->incarnation = 5; }), Reason::kWrongIncarnation);
  EXPECT_EQ(refused([](ExtendCall* c) { c->tensors.clear(); }), Reason::kBadSpec);
  EXPECT_EQ(refused([](ExtendCall* c) { c->tensors[0].name = "\u0085"; }), Reason::kBadSpec);
  ASSERT_TRUE(Ask(GrowthCall(1, kFirst + 1)).ok());
  EXPECT_TRUE(growth_.busy());
}

TEST_F(HomeGrowthTest, NewGroupsJoinTheScheduleGroupsThatAllSlotsName) {
  plan_.spec.policy.schedule = WarmupLR{};
  plan_.spec.policy.schedule_group.assign(plan_.spec.group_count, 0);
  const auto call = [](uint32_t slot, std::vector<uint32_t> groups) {
    ExtendCall made = GrowthCall(slot, kFirst + slot);
    made.schedule_group = std::move(groups);
    return made;
  };
  EXPECT_EQ(ReasonOf(Ask(call(0, {}))), Reason::kBadHyperparam);
  ASSERT_TRUE(Ask(call(0, {1})).ok());
  EXPECT_EQ(ReasonOf(Ask(call(1, {0}))), Reason::kLayoutMismatch);
  home::Effects effects;
  ASSERT_TRUE(Ask(call(1, {1}), &effects).ok());
  const JobPlan grown = All<home::GrowAt>(effects).front().plan;
  EXPECT_EQ(grown.spec.policy.schedule_group.back(), 1u);
  EXPECT_EQ(grown.spec.policy.schedule_group.size(), grown.spec.group_count);
}

TEST_F(HomeGrowthTest, AfterAChangeOfEpochTheNewMembersGrowTheJob) {
  ASSERT_TRUE(Ask(GrowthCall(1, kFirst + 1)).ok());
  plan_.epoch.members = {{0, kSecond}};
  EXPECT_EQ(ReasonOf(Ask(GrowthCall(0, kFirst))), Reason::kWrongIncarnation);
  EXPECT_FALSE(growth_.busy());
  // The process that has left is not waited for.
  ASSERT_TRUE(Ask(GrowthCall(0, kSecond)).ok());
  EXPECT_TRUE(growth_.busy());
}

TEST_F(HomeGrowthTest, ADurableJobMakesRoomThenRecordsThenTellsItsPeers) {
  const home::Effects room = AskBoth();
  EXPECT_THAT(Servers<home::GrowAt>(room), ElementsAre(0, 1));
  EXPECT_TRUE(All<home::GrowAt>(room)[0].plan.growing);
  home::Effects record;
  EXPECT_FALSE(Grown(room, 1, &record));
  EXPECT_THAT(record, IsEmpty());
  EXPECT_FALSE(Grown(room, 0, &record));
  EXPECT_EQ(One<home::GrowAt>(record).server, 0u);
  EXPECT_FALSE(One<home::GrowAt>(record).plan.growing);
  EXPECT_EQ(plan_.layout_version, 1u) << "not final yet";
  home::Effects peers;
  EXPECT_FALSE(Grown(record, 0, &peers));
  EXPECT_THAT(Servers<home::GrowAt>(peers), ElementsAre(1));
  EXPECT_EQ(plan_.layout_version, 2u);
  home::Effects done;
  EXPECT_TRUE(Grown(peers, 1, &done));
  ASSERT_EQ(All<home::AnswerExtend>(done).size(), 2u);
  EXPECT_EQ(All<home::AnswerExtend>(done)[0].plan->layout_version, 2u);
  EXPECT_FALSE(growth_.busy());
}

TEST_F(HomeGrowthTest, AServerWithoutRoomLeavesADurableJobAsItWas) {
  const home::Effects room = AskBoth();
  home::Effects done;
  EXPECT_FALSE(Grown(room, 1, &done, absl::ResourceExhaustedError("disk")));
  EXPECT_TRUE(Grown(room, 0, &done));
  EXPECT_EQ(All<home::SlotGrows>(done).size(), 2u);
  EXPECT_FALSE(Has<home::FailJob>(done));
  EXPECT_TRUE(absl::IsResourceExhausted(All<home::AnswerExtend>(done)[1].plan.status()));
  EXPECT_EQ(plan_.layout_version, 1u);
}

TEST_F(HomeGrowthTest, AServerThatCannotGrowEndsAJobWithoutDurability) {
  plan_.spec.durability = Durability::kNone;
  const home::Effects asked = AskBoth();
  EXPECT_FALSE(All<home::GrowAt>(asked)[0].plan.growing);
  home::Effects done;
  Grown(asked, 0, &done);
  EXPECT_TRUE(Grown(asked, 1, &done, absl::ResourceExhaustedError("memory")));
  EXPECT_TRUE(Has<home::FailJob>(done));
}

TEST_F(HomeGrowthTest, APeerThatIsAwayGrowsLaterAlsoAfterARestartOfTheHome) {
  plan_.layout_version = 2;
  home::Effects peers;
  EXPECT_FALSE(growth_.Resume(plan_, &peers));
  EXPECT_THAT(Servers<home::GrowAt>(peers), ElementsAre(1));
  home::Effects away;
  EXPECT_FALSE(Grown(peers, 1, &away, absl::UnavailableError("away")));
  const home::Arm again = One<home::Arm>(away);
  EXPECT_EQ(again.after, milliseconds(500));
  home::Effects asked;
  EXPECT_FALSE(growth_.OnDue(std::get<home::GrowDueInput>(again.due), &plan_, &asked));
  home::Effects done;
  EXPECT_FALSE(Grown(peers, 1, &done)) << "of the earlier attempt";
  EXPECT_TRUE(Grown(asked, 1, &done));
}

TEST_F(HomeGrowthTest, ACallWhoseAnswerWasLostIsAnsweredAgain) {
  const home::Effects room = AskBoth();
  home::Effects record, peers, done;
  for (const uint32_t server : {0u, 1u}) Grown(room, server, &record);
  Grown(record, 0, &peers);
  ASSERT_TRUE(Ask(GrowthCall(0, kFirst), &done).ok());
  EXPECT_TRUE(absl::IsCancelled(One<home::AnswerExtend>(done).plan.status()))
      << "the earlier call; this one waits for the peer";
  Grown(peers, 1, &done);
  home::Effects again;
  ASSERT_TRUE(Ask(GrowthCall(0, kFirst), &again).ok());
  EXPECT_EQ(One<home::AnswerExtend>(again).plan->layout_version, 2u);
}

TEST_F(HomeGrowthTest, IsRefusedWhileTheTrainersOrTheLayoutChange) {
  home::Effects effects;
  EXPECT_EQ(
      ReasonOf(growth_.Ask({1, GrowthCall(0, kFirst)}, plan_, /*changes=*/true, &fatal_, &effects)),
      Reason::kRecovering);
  ExtendCall early = GrowthCall(0, kFirst);
  early.round = 1;
  EXPECT_EQ(ReasonOf(Ask(early)), Reason::kUnsupported);
  ExtendCall stale = GrowthCall(0, kFirst);
  stale.epoch = 7;
  EXPECT_EQ(ReasonOf(Ask(stale)), Reason::kStaleEpoch);
  AskBoth();
  ExtendCall other = GrowthCall(0, kFirst);
  other.round = 3;
  EXPECT_EQ(ReasonOf(Ask(other)), Reason::kRecovering);
  EXPECT_FALSE(fatal_);
}

// --- With the job that grows --------------------------------------------------------------------

// Every server does what `asked` orders; the effects of the last answer.
home::Effects AllGrow(HomeRig* rig, const home::Effects& asked) {
  home::Effects last;
  for (const home::GrowAt& ask : All<home::GrowAt>(asked)) {
    last = rig->Feed(home::GrownInput{ask.attempt, ask.server, absl::OkStatus()});
  }
  return last;
}

// The servers make room for the grown job when the process asks for its seat.
TEST(GrowingHomeTest, AProcessThatAskedBeforeTheGrowthIsRefusedAsALateOneIs) {
  for (const bool seen : {false, true}) {
    HomeRig rig = HomeRig::Running(&kRules);
    rig.Feed(home::ExtendInput{91, GrowthCall(0, kFirst)});
    const home::Effects room = rig.Feed(home::ExtendInput{92, GrowthCall(1, kFirst + 1)});
    rig.Attach(HomeCall(1, kSecond));
    if (seen) {
      EXPECT_THAT(rig.Seen(1, /*open=*/false), IsEmpty()) << "no change while the job grows";
    }
    const home::Effects final = AllGrow(&rig, AllGrow(&rig, room));
    const home::RefuseAttach refused = One<home::RefuseAttach>(final);
    EXPECT_EQ(refused.ticket, rig.ticket());
    EXPECT_EQ(ReasonOf(refused.status), Reason::kSpecMismatch) << refused.status;
    EXPECT_THAT(std::string(refused.status.message()),
                HasSubstr("2 groups with 3 tensors; attach"));
    const home::Effects over = AllGrow(&rig, final);
    EXPECT_EQ(All<home::AnswerExtend>(over).size(), 2u);
    EXPECT_FALSE(Has<home::SealAt>(over));
    EXPECT_EQ(rig.phase(), HomeJob::Phase::kRunning);

    AttachCall late = HomeCall(1, kSecond);
    EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(rig.Attach(late)).status), Reason::kSpecMismatch);
    late.spec = rig.job().plan().spec;
    rig.Attach(late);
    EXPECT_TRUE(Has<home::SealAt>(rig.Seen(1, /*open=*/false)));
    EXPECT_EQ(One<home::GiveSeat>(rig.Change(2)).plan.layout_version, 2u);
  }
}

}  // namespace
}  // namespace ballast::server
