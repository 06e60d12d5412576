// A world at its home: the number of its job, and a variable one that grows: the requests to
// servers for grants, and the trainers that get no seat or have their turn later.
#include <gmock/gmock.h>

#include "server/home/seating.h"
#include "tests/server/home/home_inputs.h"

namespace ballast::server::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const home::Rules kRules = TestRules();

// Asks for a seat that the job of two trainers does not have yet.
home::Effects AskForSlot(HomeRig* rig, uint32_t slot) {
  AttachCall call = HomeCall(slot, kSecond + slot, true);
  call.spec.world = 4;
  rig->Attach(call);
  return rig->Seen(slot, /*open=*/false);
}

TEST(HomeWorldTest, EveryAttemptHasANumberOfItsOwnAndThoseOfOneHomeHaveAnOrder) {
  const auto plan_of = [](uint64_t other, home::Ticket ticket, uint64_t incarnation) {
    home::Rules rules = kRules;
    rules.incarnation = incarnation;
    HomeRig rig(HomeJob::New(&rules, HomeCall(0, kFirst)));
    rig.Attach(HomeCall(0, kFirst));
    return One<home::MakeAt>(rig.Feed(home::AttachInput{ticket, HomeCall(1, other)})).plan;
  };
  const JobPlan first = plan_of(kFirst + 1, 2, 5);
  EXPECT_EQ(first.job, plan_of(kFirst + 1, 2, 5).job);
  const JobPlan again = plan_of(kFirst + 1, 4, 5);
  EXPECT_NE(first.job, again.job) << "an order to drop the first may come late";
  EXPECT_TRUE(again.attempt.IsAfter(first.attempt)) << "as may one to make it";
  EXPECT_FALSE(first.attempt.IsAfter(again.attempt));
  const JobPlan restarted = plan_of(kFirst + 1, 4, 6);
  EXPECT_NE(again.job, restarted.job) << "the home's last process may have sent one";
  EXPECT_FALSE(restarted.attempt.IsAfter(first.attempt)) << "not known";
  EXPECT_FALSE(first.attempt.IsAfter({})) << "not known";
  EXPECT_FALSE(again.attempt.IsAfter({0, 2}));
  EXPECT_NE(first.job, plan_of(kSecond, 2, 5).job) << "a server may still have the first attempt";
}

TEST(VariableHomeTest, ServersAreAskedForRoomForThoseThatCome) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  EXPECT_EQ(One<home::SealAt>(AskForSlot(&rig, 2)).call.world, 3u);
  EXPECT_EQ(One<home::SealAt>(rig.Sealed(0)).call.world, 3u);
  HomeRig tight = HomeRig::Running(&kRules, true);
  AskForSlot(&tight, 2);
  const home::Effects asked = tight.Sealed(0, SealAnswer{.version = 5, .world_max = 2});
  EXPECT_EQ(One<home::SealAt>(asked).call.world, 2u) << "the home has no room for more";
}

TEST(VariableHomeTest, TheQuotaThatGrantsTheLeastIsToldWithSlotAndServer) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  AskForSlot(&rig, 3);
  const absl::Status quota = ReasonedError(absl::StatusCode::kResourceExhausted, Reason::kOverQuota,
                                           "uses 2 of 2 seats", {.server = 1});
  rig.Sealed(0);
  const home::Effects sealed =
      rig.Sealed(1, SealAnswer{.version = 5, .world_max = 2, .refusal = quota});
  const absl::Status refused = One<home::RefuseAttach>(sealed).status;
  EXPECT_EQ(ReasonOf(refused), Reason::kOverQuota);
  EXPECT_EQ(refused.message(), "uses 2 of 2 seats");
  EXPECT_EQ(FieldsOf(refused).slot, 3);
  EXPECT_EQ(FieldsOf(refused).server, 1);
  EXPECT_EQ(FieldsOf(refused).job, "job");
}

TEST(VariableHomeTest, ATrainerForWhichNoServerWasAskedWaitsForTheNextChange) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  AskForSlot(&rig, 3);
  EXPECT_THAT(AskForSlot(&rig, 2), IsEmpty()) << "servers are asked for three";
  EXPECT_EQ(One<home::GiveSeat>(rig.Change(2)).slot, 2u);
  EXPECT_THAT(rig.Slots(), ElementsAre(0, 1, 2));
  EXPECT_EQ(rig.phase(), HomeJob::Phase::kSealing);
  EXPECT_EQ(One<home::GiveSeat>(rig.Change(3)).slot, 3u);
}

// As when another server ends a change while this one has not answered yet.
TEST(VariableHomeTest, ALateAnswerToAChangeThatWasGivenUpCountsForNoOther) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  AskForSlot(&rig, 2);
  const uint32_t given_up = One<home::SealAt>(rig.Sealed(0)).change;
  const absl::Status away = absl::UnavailableError("away");
  EXPECT_TRUE(Has<home::RefuseAttach>(rig.Sealed(1, away)));
  AskForSlot(&rig, 2);
  EXPECT_NE(One<home::SealAt>(rig.Sealed(0)).change, given_up);
  EXPECT_THAT(rig.Feed(home::SealedInput{given_up, 1, away}), IsEmpty());
  const SealAnswer for_two{.version = 5, .world_max = 2};
  EXPECT_THAT(rig.Feed(home::SealedInput{given_up, 1, for_two}), IsEmpty());
  EXPECT_EQ(One<home::GiveSeat>(rig.Change(2)).slot, 2u);
}

TEST(VariableHomeTest, AChangeThatCannotEndGivesBackTheRoomOfItsNewcomers) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  AskForSlot(&rig, 2);
  rig.Sealed(0);
  const home::Effects lost = rig.Sealed(1, SealAnswer{.version = 9});
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(lost).status), Reason::kStateLost);
  EXPECT_THAT(Servers<home::SealAt>(lost), ElementsAre(0, 1));
  for (const home::SealAt& asked : All<home::SealAt>(lost)) EXPECT_EQ(asked.call.world, 2u);
  for (const uint32_t server : {0u, 1u}) EXPECT_THAT(rig.Sealed(server), IsEmpty());
  EXPECT_EQ(rig.phase(), HomeJob::Phase::kRunning);
}

// A newcomer waits for the others before any is seen, then a member arrives, and then all leave
// before the newcomer has a seat: it waits for a whole lease from then on, and not for the rest of
// the first one.
TEST(SeatingTest, AWorldThatEmptiesAnewGathersForAWholeLease) {
  Seating seating(&kRules, Seating::Occupancy::kUnseen);
  JobPlan plan;
  plan.spec = HomeCall(0, kFirst, true).spec;
  for (const uint32_t slot : {0u, 1u}) plan.epoch.members.push_back({slot, kFirst + slot});
  AttachCall call = HomeCall(2, kSecond, true);
  call.spec.world = 4;
  home::Effects effects;
  seating.Ask({1, call}, plan, /*made=*/true, seconds(0), &effects);
  const home::SeatSeenInput free{.slot = 2, .ticket = 1};
  seating.OnSeen(free, plan, seconds(0), &effects);
  seating.OnMember(0, kFirst);
  ASSERT_FALSE(seating.gathers());
  for (const Member& member : plan.epoch.members) {
    seating.OnFree({member.slot, member.incarnation, /*left=*/true}, plan, plan.epoch,
                   kRules.lease / 2, &effects);
  }
  ASSERT_TRUE(seating.gathers());
  seating.OnSeen(free, plan, kRules.lease, &effects);
  EXPECT_TRUE(seating.gathers()) << "the first lease is over, the second one is not";
  seating.OnSeen(free, plan, 2 * kRules.lease, &effects);
  EXPECT_FALSE(seating.gathers());
}

}  // namespace
}  // namespace ballast::server::testing
