// HomeJob: each transition of a job at its home, and that inputs which a phase does not expect
// change nothing.
#include "server/home/home_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/home/home_inputs.h"

namespace ballast::server {
namespace {

using namespace testing;  // NOLINT: the rig next to this file.
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Phase = HomeJob::Phase;

const home::Rules kRules = TestRules();

const absl::Status kFinished = ReasonedError(absl::StatusCode::kFailedPrecondition,
                                             Reason::kJobFinished, "all slots have left", {});

HomeRig New() { return HomeRig(HomeJob::New(&kRules, HomeCall(0, kFirst))); }

// --- Attaching ----------------------------------------------------------------------------------

TEST(HomeJobTest, TheHomeMakesAJobFirstThenItsPeersThenItsRecord) {
  HomeRig rig = New();
  const home::Effects first = rig.Attach(HomeCall(0, kFirst));
  EXPECT_EQ(One<home::Arm>(first).after, seconds(600));
  EXPECT_THAT(rig.job().attaching()->missing, ElementsAre(1));
  const home::MakeAt here = One<home::MakeAt>(rig.Attach(HomeCall(1, kFirst + 1)));
  EXPECT_EQ(here.server, 0u);
  EXPECT_TRUE(here.plan.making);
  EXPECT_EQ(rig.phase(), Phase::kMaking);
  const home::MakeAt there = One<home::MakeAt>(rig.Feed(home::MadeInput{0, absl::OkStatus()}));
  EXPECT_EQ(there.server, 1u);
  EXPECT_TRUE(there.plan.making);
  EXPECT_TRUE(Has<home::SaveRecord>(rig.Feed(home::MadeInput{1, absl::OkStatus()})));
  const home::Effects made = rig.Feed(home::SavedInput{absl::OkStatus()});
  EXPECT_TRUE(Has<home::ExpectSlots>(made));
  ASSERT_EQ(All<home::GiveSeat>(made).size(), 2u);
  EXPECT_EQ(All<home::GiveSeat>(made)[1].slot, 1u);
  EXPECT_EQ(rig.phase(), Phase::kRunning);
  EXPECT_EQ(rig.job().attaching(), std::nullopt);
}

TEST(HomeJobTest, AnAttachThatIsRefusedTakesNoSeat) {
  HomeRig rig = New();
  rig.Attach(HomeCall(0, kFirst));
  const home::Effects refused = rig.Attach(HomeCall(0, kSecond));
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(refused).status), Reason::kSlotTaken);
  EXPECT_EQ(rig.phase(), Phase::kAttaching);
  EXPECT_THAT(rig.job().attaching()->missing, ElementsAre(1));
}

TEST(HomeJobTest, AJobWhoseFirstAttachIsRefusedIsOver) {
  HomeRig rig = New();
  AttachCall call = HomeCall(0, kFirst);
  call.tensor_crc32c = {1};
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(rig.Attach(call)).status), Reason::kBadSpec);
  EXPECT_EQ(rig.phase(), Phase::kOver);
}

TEST(HomeJobTest, ALaterCallOfAProcessTakesThePlaceOfItsEarlierOne) {
  HomeRig rig = New();
  rig.Attach(HomeCall(0, kFirst));
  const home::RefuseAttach old = One<home::RefuseAttach>(rig.Attach(HomeCall(0, kFirst)));
  EXPECT_EQ(old.ticket, 1u);
  EXPECT_TRUE(absl::IsCancelled(old.status));
}

TEST(HomeJobTest, SlotsThatDisagreeAreEachToldOnce) {
  AttachCall first = HomeCall(0, kFirst);
  first.spec.world = 3;
  HomeRig rig(HomeJob::New(&kRules, first));
  rig.Attach(first);
  AttachCall other = first;
  other.slot = 1;
  other.tensor_crc32c = {1, 9};
  const home::Effects refused = rig.Attach(other);
  EXPECT_EQ(All<home::RefuseAttach>(refused).size(), 2u);
  EXPECT_EQ(rig.phase(), Phase::kRefused);
  EXPECT_TRUE(rig.job().StartsAnew(first)) << "slot 0 has heard it";
  AttachCall late = first;
  late.slot = 2;
  EXPECT_FALSE(rig.job().StartsAnew(late));
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(rig.Attach(late)).status), Reason::kInitMismatch);
  EXPECT_EQ(rig.phase(), Phase::kOver) << "every slot knows";
}

TEST(HomeJobTest, AWorldThatDoesNotComeTogetherInTimeIsOver) {
  HomeRig rig = New();
  rig.Attach(HomeCall(0, kFirst));
  const home::Effects due = rig.Feed(home::AttachDueInput{});
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(due).status), Reason::kAttachTimeout);
  EXPECT_EQ(rig.phase(), Phase::kOver);
}

TEST(HomeJobTest, AHungUpCallFreesItsSeat) {
  HomeRig rig = New();
  for (const uint32_t slot : {0u, 1u}) {
    AttachCall call = HomeCall(slot, kFirst + slot);
    call.call = 7 + slot;
    if (slot == 0) rig.Attach(call);
  }
  EXPECT_THAT(rig.Feed(home::HangUpInput{0, 99}), IsEmpty()) << "another call";
  EXPECT_EQ(One<home::DropCall>(rig.Feed(home::HangUpInput{0, 7})).ticket, 1u);
  EXPECT_EQ(rig.phase(), Phase::kOver) << "no trainer is left";
}

// --- Making -------------------------------------------------------------------------------------

TEST(HomeJobTest, AFailureAtTheHomeAsksNoPeer) {
  HomeRig rig = New();
  for (const uint32_t slot : {0u, 1u}) rig.Attach(HomeCall(slot, kFirst + slot));
  const home::Effects failed = rig.Feed(home::MadeInput{0, absl::ResourceExhaustedError("")});
  EXPECT_FALSE(Has<home::MakeAt>(failed));
  EXPECT_EQ(All<home::RefuseAttach>(failed).size(), 2u);
  EXPECT_TRUE(Has<home::Forget>(failed));
  EXPECT_EQ(rig.phase(), Phase::kOver);
}

TEST(HomeJobTest, AFailureAtOneServerDropsTheJobEverywhere) {
  HomeRig rig = New();
  for (const uint32_t slot : {0u, 1u}) rig.Attach(HomeCall(slot, kFirst + slot));
  rig.Feed(home::MadeInput{0, absl::OkStatus()});
  const home::Effects failed = rig.Feed(home::MadeInput{1, absl::UnavailableError("away")});
  EXPECT_THAT(Servers<home::DropAt>(failed), ElementsAre(1));
  EXPECT_TRUE(Has<home::Forget>(failed));
  EXPECT_EQ(All<home::RefuseAttach>(failed).size(), 2u);
  EXPECT_EQ(rig.phase(), Phase::kOver);
}

TEST(HomeJobTest, AJobWithoutARecordIsDropped) {
  HomeRig rig = New();
  for (const uint32_t slot : {0u, 1u}) rig.Attach(HomeCall(slot, kFirst + slot));
  for (const uint32_t server : {0u, 1u}) rig.Feed(home::MadeInput{server, absl::OkStatus()});
  EXPECT_TRUE(Has<home::Forget>(rig.Feed(home::SavedInput{absl::InternalError("disk")})));
  EXPECT_EQ(rig.phase(), Phase::kOver);
}

TEST(HomeJobTest, ALostPeerEndsOnlyTheUnfinishedPartsOfADurableJob) {
  HomeRig making = New();
  for (const uint32_t slot : {0u, 1u}) making.Attach(HomeCall(slot, kFirst + slot));
  const home::Effects lost = making.Feed(home::PeerLostInput{1, "killed"});
  EXPECT_EQ(ReasonOf(All<home::RefuseAttach>(lost).front().status), Reason::kServerLost);
  EXPECT_EQ(making.phase(), Phase::kOver);
  EXPECT_NE(One<home::Forget>(lost).job, 0u) << "the next attempt needs the room";
  EXPECT_THAT(Servers<home::DropAt>(lost), ElementsAre(1)) << "it may have made the job";
  HomeRig running = HomeRig::Running(&kRules);
  EXPECT_THAT(running.Feed(home::PeerLostInput{1, "killed"}), IsEmpty());
  EXPECT_EQ(running.phase(), Phase::kRunning);
}

TEST(HomeJobTest, AJobThatTheHomesEndLeftHalfMadeIsMadeAndItsNewcomersFollow) {
  JobPlan plan = HomeRig::Running(&kRules).job().plan();
  HomeRig rig(HomeJob::Recovered(&kRules, plan, /*making=*/true));
  EXPECT_EQ(One<home::MakeAt>(rig.Feed(home::StartInput{})).server, 0u);
  rig.Attach(HomeCall(0, kFirst));
  rig.Attach(HomeCall(1, kSecond));
  for (const uint32_t server : {0u, 1u}) rig.Feed(home::MadeInput{server, absl::OkStatus()});
  const home::Effects made = rig.Feed(home::SavedInput{absl::OkStatus()});
  EXPECT_EQ(One<home::GiveSeat>(made).slot, 0u);
  EXPECT_THAT(Servers<home::SealAt>(made), ElementsAre(0)) << "slot 1 has a new process";
  EXPECT_EQ(rig.phase(), Phase::kSealing);
}

// --- Seats --------------------------------------------------------------------------------------

TEST(HomeJobTest, AMemberIsAnsweredAtOnceAndAStrangerOnlyIfTheJobMayBeResumed) {
  HomeRig rig = HomeRig::Running(&kRules);
  EXPECT_EQ(One<home::GiveSeat>(rig.Attach(HomeCall(1, kFirst + 1))).slot, 1u);
  AttachCall stranger = HomeCall(1, kSecond);
  stranger.resume = Resume::kNever;
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(rig.Attach(stranger)).status), Reason::kNameInUse);
  EXPECT_EQ(One<home::LookAtSeat>(rig.Attach(HomeCall(1, kSecond))).slot, 1u);
  AttachCall other = HomeCall(1, kSecond + 1);
  other.spec.max_grad_norm = 7;
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(rig.Attach(other)).status), Reason::kSpecMismatch);
}

TEST(HomeJobTest, ASeatThatIsHeldIsLookedAtAgainUntilTheNewcomerGivesUp) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  const home::Arm again = One<home::Arm>(rig.Seen(1, /*open=*/true));
  EXPECT_EQ(again.after, milliseconds(100));
  EXPECT_EQ(One<home::LookAtSeat>(rig.FeedDue(again.due)).ticket, rig.ticket());
  rig.Pass(seconds(5));
  const home::RefuseAttach refused = One<home::RefuseAttach>(rig.Seen(1, /*open=*/true));
  EXPECT_EQ(ReasonOf(refused.status), Reason::kSlotTaken);
  EXPECT_THAT(rig.FeedDue(again.due), IsEmpty());
  EXPECT_EQ(rig.phase(), Phase::kRunning);
}

TEST(HomeJobTest, AProcessThatCallsAgainDoesNotWaitLonger) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  rig.Pass(seconds(4));
  rig.Attach(HomeCall(1, kSecond));
  rig.Pass(seconds(1));
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(rig.Seen(1, /*open=*/true)).status),
            Reason::kSlotTaken);
}

// --- Epochs -------------------------------------------------------------------------------------

TEST(HomeJobTest, AnEpochIsSealedAndAdoptedAtTheHomeFirst) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  EXPECT_THAT(Servers<home::SealAt>(rig.Seen(1, /*open=*/false)), ElementsAre(0));
  EXPECT_EQ(rig.phase(), Phase::kSealing);
  EXPECT_THAT(Servers<home::SealAt>(rig.Sealed(0)), ElementsAre(1));
  EXPECT_THAT(Servers<home::AdoptAt>(rig.Sealed(1)), ElementsAre(0));
  EXPECT_EQ(rig.phase(), Phase::kAdopting);
  EXPECT_EQ(rig.job().plan().epoch.epoch, 1u) << "not before the home has the record";
  EXPECT_THAT(Servers<home::AdoptAt>(rig.Adopted(2, 0)), ElementsAre(1));
  EXPECT_EQ(rig.job().plan().epoch.epoch, 2u);
  const home::GiveSeat seat = One<home::GiveSeat>(rig.Adopted(2, 1));
  EXPECT_TRUE(seat.plan.epoch.Holds(1, kSecond));
  EXPECT_EQ(seat.ticket, rig.ticket());
  EXPECT_EQ(rig.phase(), Phase::kRunning);
}

TEST(HomeJobTest, AMemberThatCallsDuringAChangeLearnsOfTheNewEpoch) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  rig.Seen(1, /*open=*/false);
  EXPECT_THAT(rig.Attach(HomeCall(0, kFirst)), IsEmpty());
  EXPECT_THAT(rig.Attach(HomeCall(1, kFirst + 1)), IsEmpty());
  const home::Effects done = rig.Change(2);
  ASSERT_EQ(All<home::GiveSeat>(done).size(), 2u);
  EXPECT_EQ(All<home::GiveSeat>(done)[0].slot, 0u);
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(done).status), Reason::kWrongIncarnation);
}

TEST(HomeJobTest, ANewcomerThatComesDuringAChangeHasTheNextOne) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  rig.Seen(1, /*open=*/false);
  for (const uint32_t server : {0u, 1u}) rig.Sealed(server);
  rig.Attach(HomeCall(0, kSecond));
  rig.Seen(0, /*open=*/false);
  rig.Adopted(2, 0);
  const home::Effects done = rig.Adopted(2, 1);
  EXPECT_EQ(One<home::GiveSeat>(done).slot, 1u);
  EXPECT_EQ(One<home::SealAt>(done).call.epoch, 2u);
  EXPECT_EQ(One<home::GiveSeat>(rig.Change(3)).slot, 0u);
}

TEST(HomeJobTest, ASealThatAPeerRefusesIsTriedAgainEvenIfNobodyAsksForItAnyMore) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  rig.Seen(1, /*open=*/false);
  rig.Sealed(0);
  const home::Effects failed = rig.Sealed(1, absl::UnavailableError("away"));
  EXPECT_TRUE(absl::IsUnavailable(One<home::RefuseAttach>(failed).status));
  const home::Arm again = One<home::Arm>(failed);
  EXPECT_EQ(again.after, milliseconds(500));
  EXPECT_EQ(rig.phase(), Phase::kRunning);
  EXPECT_THAT(Servers<home::SealAt>(rig.FeedDue(again.due)), ElementsAre(0));
  rig.Change(2);
  EXPECT_EQ(rig.job().plan().epoch.epoch, 2u);
  EXPECT_THAT(rig.FeedDue(again.due), IsEmpty()) << "of an epoch that is over";
}

TEST(HomeJobTest, APeerWhereTheJobHasEndedEndsItAtTheHome) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  rig.Seen(1, /*open=*/false);
  rig.Sealed(0);
  const home::Effects sealed = rig.Sealed(1, kFinished);
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(sealed).status), Reason::kRecovering);
  EXPECT_TRUE(Has<home::FailJob>(sealed));
}

TEST(HomeJobTest, AServerInALaterEpochMeansThatTheHomesDiskIsAnOldOne) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  rig.Seen(1, /*open=*/false);
  rig.Sealed(0);
  const home::Effects failed =
      rig.Sealed(1, ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
                                  "it is in epoch 4", {}));
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(failed).status), Reason::kStateLost);
}

TEST(HomeJobTest, AnAnswerOfAnotherChangeIsNoAnswer) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  rig.Seen(1, /*open=*/false);
  EXPECT_THAT(rig.Feed(home::SealedInput{7, 0, SealAnswer{.version = 5}}), IsEmpty());
  for (const uint32_t server : {0u, 1u}) rig.Sealed(server);
  EXPECT_THAT(rig.Adopted(1, 0), IsEmpty());
  EXPECT_THAT(rig.Adopted(2, 1), IsEmpty()) << "the home is not there yet";
  EXPECT_EQ(rig.phase(), Phase::kAdopting);
}

TEST(HomeJobTest, APeerThatDoesNotRunTheJobOpensItAndAdoptsThen) {
  HomeRig rig(HomeJob::Recovered(&kRules, HomeRig::Running(&kRules).job().plan(), false));
  EXPECT_TRUE(rig.job().unconfirmed());
  EXPECT_THAT(Servers<home::AdoptAt>(rig.Feed(home::StartInput{})), ElementsAre(1));
  EXPECT_THAT(Servers<home::OpenAt>(rig.Adopted(1, 1, absl::NotFoundError(""))), ElementsAre(1));
  EXPECT_THAT(Servers<home::AdoptAt>(rig.Feed(home::OpenedInput{1, 1, absl::OkStatus()})),
              ElementsAre(1));
  rig.Attach(HomeCall(1, kFirst + 1));
  const home::Effects again = rig.Adopted(1, 1, absl::NotFoundError(""));
  EXPECT_FALSE(Has<home::RefuseAttach>(again)) << "it has started again, with all its files";
  rig.FeedDue(One<home::Arm>(again).due);
  EXPECT_THAT(Servers<home::OpenAt>(rig.Adopted(1, 1, absl::NotFoundError(""))), ElementsAre(1));
  rig.Feed(home::OpenedInput{1, 1, absl::OkStatus()});
  rig.Adopted(1, 1);
  EXPECT_EQ(rig.phase(), Phase::kRunning);
  EXPECT_FALSE(rig.job().unconfirmed());
}

TEST(HomeJobTest, APeerThatIsAwayAdoptsLater) {
  HomeRig rig(HomeJob::Recovered(&kRules, HomeRig::Running(&kRules).job().plan(), false));
  rig.Feed(home::StartInput{});
  const home::Effects away = rig.Adopted(1, 1, absl::UnavailableError("away"));
  EXPECT_TRUE(One<home::Note>(away).warning);
  EXPECT_TRUE(rig.job().unconfirmed());
  EXPECT_THAT(Servers<home::AdoptAt>(rig.FeedDue(One<home::Arm>(away).due)), ElementsAre(1));
  EXPECT_EQ(rig.phase(), Phase::kAdopting);
  rig.Attach(HomeCall(0, kFirst));
  const home::Effects lost = rig.Adopted(1, 1, absl::DataLossError("no files"));
  EXPECT_TRUE(absl::IsDataLoss(One<home::RefuseAttach>(lost).status))
      << "a server that needs help is not waited for";
  EXPECT_FALSE(rig.job().unconfirmed());
}

TEST(HomeJobTest, AChangeThatTheHomesEndBrokeOffIsTakenUpAgain) {
  JobPlan plan = HomeRig::Running(&kRules).job().plan();
  plan.sealed_epoch = 1;
  HomeRig rig(HomeJob::Recovered(&kRules, plan, false));
  rig.Feed(home::StartInput{});
  EXPECT_THAT(Servers<home::SealAt>(rig.Adopted(1, 1)), ElementsAre(0));
}

TEST(HomeJobTest, ARecordThatTheHomeCannotAdoptIsNone) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  rig.Seen(1, /*open=*/false);
  for (const uint32_t server : {0u, 1u}) rig.Sealed(server);
  const home::Effects failed = rig.Adopted(2, 0, absl::InternalError("disk"));
  EXPECT_TRUE(Has<home::RefuseAttach>(failed));
  EXPECT_FALSE(Has<home::AdoptAt>(failed));
  EXPECT_EQ(rig.job().plan().epoch.epoch, 1u);
}

// --- Ends, and waking ---------------------------------------------------------------------------

TEST(HomeJobTest, AJobThatEndsAsksThoseWhoWaitToCallAgain) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  const home::Effects ended = rig.Feed(home::EndedInput{kFinished, true});
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(ended).status), Reason::kRecovering);
  EXPECT_EQ(rig.phase(), Phase::kEnded);
  EXPECT_TRUE(Has<home::GiveSeat>(rig.Attach(HomeCall(0, kFirst)))) << "its engine says the rest";
  EXPECT_EQ(
      One<home::AnswerExtend>(rig.Feed(home::ExtendInput{9, GrowthCall(0, kFirst)})).plan.status(),
      kFinished);
}

TEST(HomeJobTest, AJobThatEndsDuringAChangeEndsTheChange) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  rig.Seen(1, /*open=*/false);
  rig.Feed(home::EndedInput{kFinished, true});
  EXPECT_THAT(rig.Sealed(0), IsEmpty());
  EXPECT_THAT(rig.Feed(home::EpochDueInput{1}), IsEmpty());
  EXPECT_EQ(rig.phase(), Phase::kEnded);
}

TEST(HomeJobTest, AJobIsWokenAtTheHomeFirstAndItsNewcomerFollows) {
  HomeRig rig(HomeJob::Woken(&kRules, HomeRig::Running(&kRules).job().plan()));
  EXPECT_THAT(rig.Attach(HomeCall(1, kSecond)), IsEmpty());
  const home::MakeAt here = One<home::MakeAt>(rig.Feed(home::StartInput{}));
  EXPECT_FALSE(here.plan.making) << "files must be there";
  rig.Feed(home::MadeInput{0, absl::OkStatus()});
  const home::Effects awake = rig.Feed(home::MadeInput{1, absl::OkStatus()});
  EXPECT_TRUE(Has<home::WakeRecord>(awake));
  EXPECT_THAT(Servers<home::AdoptAt>(awake), ElementsAre(1));
  EXPECT_THAT(Servers<home::SealAt>(rig.Adopted(1, 1)), ElementsAre(0));
}

TEST(HomeJobTest, AJobThatAServerCannotOpenStaysAtRest) {
  HomeRig rig(HomeJob::Woken(&kRules, HomeRig::Running(&kRules).job().plan()));
  rig.Attach(HomeCall(1, kSecond));
  rig.Feed(home::StartInput{});
  rig.Feed(home::MadeInput{0, absl::OkStatus()});
  const home::Effects failed = rig.Feed(home::MadeInput{1, absl::DataLossError("")});
  EXPECT_TRUE(Has<home::Release>(failed));
  EXPECT_FALSE(Has<home::Forget>(failed) || Has<home::DropAt>(failed) ||
               Has<home::WakeRecord>(failed));
  EXPECT_EQ(rig.phase(), Phase::kOver);
}

TEST(HomeJobTest, AJobThatEndsWhileItIsWokenStaysAtRest) {
  HomeRig rig(HomeJob::Woken(&kRules, HomeRig::Running(&kRules).job().plan()));
  rig.Attach(HomeCall(1, kSecond));
  rig.Feed(home::StartInput{});
  rig.Feed(home::MadeInput{0, absl::OkStatus()});
  rig.Feed(home::EndedInput{absl::InternalError("disk"), true});
  EXPECT_FALSE(Has<home::WakeRecord>(rig.Feed(home::MadeInput{1, absl::OkStatus()})));
  EXPECT_EQ(rig.phase(), Phase::kEnded);
}

TEST(HomeJobTest, AShutdownAnswersEveryCall) {
  HomeRig rig = HomeRig::Running(&kRules);
  rig.Attach(HomeCall(1, kSecond));
  rig.Feed(home::ExtendInput{99, GrowthCall(0, kFirst)});
  const home::Effects failed = rig.Feed(home::FailInput{absl::UnavailableError("bye")});
  EXPECT_TRUE(Has<home::RefuseAttach>(failed));
  EXPECT_TRUE(Has<home::AnswerExtend>(failed));
}

// --- Inputs out of place ------------------------------------------------------------------------

std::vector<home::Input> InputsOfChanges() {
  return {home::SealedInput{1, 0, SealAnswer{.version = 5}},
          home::AdoptedInput{1, 1, absl::OkStatus()},
          home::OpenedInput{1, 1, absl::OkStatus()},
          home::MadeInput{1, absl::OkStatus()},
          home::SavedInput{absl::OkStatus()},
          home::GrownInput{0, 0, absl::OkStatus()},
          home::GrowDueInput{0},
          home::EpochDueInput{1},
          home::AttachDueInput{},
          home::SeatDueInput{0, 1},
          home::SeatSeenInput{0, 77, false, false},
          home::HangUpInput{0, 77}};
}

TEST(HomeJobTest, AnInputThatAStageDoesNotExpectHasNoEffect) {
  HomeRig running = HomeRig::Running(&kRules);
  HomeRig ended = HomeRig::Running(&kRules);
  ended.Feed(home::EndedInput{kFinished, true});
  for (HomeRig* const rig : {&running, &ended}) {
    const Phase phase = rig->phase();
    for (const home::Input& input : InputsOfChanges()) {
      EXPECT_THAT(rig->Feed(input), IsEmpty()) << "input " << input.index();
      EXPECT_EQ(rig->phase(), phase) << "input " << input.index();
    }
  }
  HomeRig attaching = New();
  attaching.Attach(HomeCall(0, kFirst));
  EXPECT_THAT(attaching.Feed(home::SealedInput{1, 0, SealAnswer{}}), IsEmpty());
  EXPECT_THAT(attaching.Feed(home::MadeInput{0, absl::OkStatus()}), IsEmpty());
  EXPECT_THAT(attaching.Feed(home::SeatFreeInput{0, kFirst, true}), IsEmpty());
  EXPECT_EQ(attaching.phase(), Phase::kAttaching);
}

// --- Worlds that change -------------------------------------------------------------------------

TEST(VariableHomeTest, AMemberThatLeavesIsNotInTheNextEpoch) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  EXPECT_THAT(Servers<home::SealAt>(rig.Left(1, kFirst + 1)), ElementsAre(0));
  rig.Change(2);
  EXPECT_THAT(rig.Slots(), ElementsAre(0));
  EXPECT_THAT(rig.Left(0, kFirst), IsEmpty()) << "the last one ends the job, not the epoch";
}

TEST(VariableHomeTest, InAFixedWorldTheSeatIsKept) {
  HomeRig rig = HomeRig::Running(&kRules, false);
  EXPECT_THAT(rig.Left(1, kFirst + 1), IsEmpty());
}

TEST(VariableHomeTest, ANewcomerThatSomeServerHasNoRoomForIsTurnedAway) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  AttachCall call = HomeCall(2, kSecond, true);
  call.spec.world = 3;
  rig.Attach(call);
  rig.Seen(2, /*open=*/false);
  rig.Sealed(0);
  const home::Effects sealed = rig.Sealed(1, SealAnswer{.version = 5, .world_max = 2});
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(sealed).status), Reason::kOverBudget);
  EXPECT_TRUE(Has<home::AdoptAt>(sealed)) << "the old epoch is sealed";
}

// A job that rested with one member, and is woken by the process in slot 1.
HomeRig WokenWithOneMember() {
  JobPlan plan = HomeRig::Running(&kRules, true).job().plan();
  plan.epoch.members = {{1, kFirst + 1}};
  HomeRig rig(HomeJob::Woken(&kRules, plan));
  rig.Attach(HomeCall(1, kSecond, true));
  rig.Feed(home::StartInput{});
  for (const uint32_t server : {0u, 1u}) rig.Feed(home::MadeInput{server, absl::OkStatus()});
  EXPECT_FALSE(Has<home::SealAt>(rig.Adopted(1, 1)));
  return rig;
}

TEST(VariableHomeTest, AWorldThatBeginsAgainWaitsForAllOfItsSlots) {
  HomeRig rig = WokenWithOneMember();
  EXPECT_TRUE(Has<home::Arm>(rig.Seen(1, false, /*anybody=*/false)));
  EXPECT_THAT(rig.job().attaching()->missing, ElementsAre(0));
  rig.Attach(HomeCall(0, kSecond, true));
  EXPECT_THAT(Servers<home::SealAt>(rig.Seen(0, false, /*anybody=*/false)), ElementsAre(0));
  EXPECT_EQ(All<home::GiveSeat>(rig.Change(2)).size(), 2u);
  EXPECT_THAT(rig.Slots(), ElementsAre(0, 1));
}

TEST(VariableHomeTest, AfterALeaseAWorldBeginsWithTheSlotsThatAreThere) {
  HomeRig rig = WokenWithOneMember();
  rig.Seen(1, false, /*anybody=*/false);
  rig.Pass(seconds(10));
  EXPECT_TRUE(Has<home::SealAt>(rig.Seen(1, false, /*anybody=*/false)));
}

TEST(VariableHomeTest, AWorldThatGathersInVainSaysForWhom) {
  HomeRig rig = WokenWithOneMember();
  AttachCall call = HomeCall(1, kSecond + 1, true);
  call.min_world = 2;
  call.wait = seconds(20);
  rig.Attach(call);
  rig.Seen(1, false, /*anybody=*/false);
  rig.Pass(seconds(20));
  const home::RefuseAttach refused = One<home::RefuseAttach>(rig.Seen(1, false, /*anybody=*/false));
  EXPECT_EQ(ReasonOf(refused.status), Reason::kAttachTimeout);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("slots 0 of a world of 2"));
}

TEST(VariableHomeTest, ATrainerThatIsThereIsJoinedAtOnce) {
  HomeRig rig = WokenWithOneMember();
  EXPECT_TRUE(Has<home::SealAt>(rig.Seen(1, false, /*anybody=*/true)));
}

// --- Between the last Leave and the job's rest --------------------------------------------------

// Slots 0 and 1 leave while the home still applies a round, so that it cannot finish the job yet.
// The process that asks first must not get the job for itself.
TEST(VariableHomeTest, WhenAllHaveLeftNoNewcomerIsLetInBeforeTheJobRests) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  rig.Left(0, kFirst);
  EXPECT_EQ(rig.phase(), Phase::kSealing);
  rig.Left(1, kFirst + 1);
  rig.Attach(HomeCall(1, kSecond, true));
  rig.Seen(1, /*open=*/false, /*anybody=*/false);
  for (const uint32_t server : {0u, 1u}) rig.Sealed(server);
  rig.Adopted(2, 0);
  const home::Effects adopted = rig.Adopted(2, 1);
  EXPECT_FALSE(Has<home::GiveSeat>(adopted));
  EXPECT_FALSE(Has<home::SealAt>(adopted));
  EXPECT_FALSE(rig.job().plan().epoch.Holds(1, kSecond));
  const home::Effects ended = rig.Feed(home::EndedInput{kFinished, true});
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(ended).status), Reason::kRecovering);
}

TEST(VariableHomeTest, ANewcomerOfARunningChangeIsHeldBackWhenTheLastMemberLeaves) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  rig.Left(0, kFirst);
  rig.Attach(HomeCall(0, kSecond, true));
  rig.Seen(0, /*open=*/false);
  const home::Effects last = rig.Left(1, kFirst + 1);
  EXPECT_EQ(One<home::LookAtSeat>(last).slot, 0u) << "it waits for the others from now on";
  EXPECT_FALSE(Has<home::GiveSeat>(rig.Change(2)));
  EXPECT_THAT(rig.job().attaching()->missing, ElementsAre(1));
}

// Should the job not come to rest, its world begins again as a whole all the same.
TEST(VariableHomeTest, AWorldThatAllHaveLeftBeginsAgainAsAWhole) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  rig.Left(0, kFirst);
  rig.Left(1, kFirst + 1);
  rig.Change(2);
  for (const uint32_t slot : {1u, 0u}) {
    rig.Attach(HomeCall(slot, kSecond + slot, true));
    const home::Effects seen = rig.Seen(slot, /*open=*/false, /*anybody=*/false);
    EXPECT_EQ(Has<home::SealAt>(seen), slot == 0) << slot;
  }
  EXPECT_EQ(All<home::GiveSeat>(rig.Change(3)).size(), 2u);
  EXPECT_TRUE(rig.job().plan().epoch.Holds(0, kSecond));
  EXPECT_TRUE(rig.job().plan().epoch.Holds(1, kSecond + 1));
}

// A trainer that has said its Leave may still be on its way into the epoch that came meanwhile.
TEST(VariableHomeTest, ACallOfAMemberThatHasLeftIsNoSignOfLife) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  rig.Left(0, kFirst);
  rig.Left(1, kFirst + 1);
  rig.Attach(HomeCall(1, kFirst + 1, true));
  EXPECT_EQ(One<home::GiveSeat>(rig.Change(2)).slot, 1u);
  rig.Attach(HomeCall(0, kSecond, true));
  EXPECT_FALSE(Has<home::SealAt>(rig.Seen(0, /*open=*/false, /*anybody=*/false)));
}

TEST(VariableHomeTest, TheHomesEngineThatEndedBeforeItAdoptsAsksNewcomersToCallAgain) {
  HomeRig rig = HomeRig::Running(&kRules, true);
  rig.Left(0, kFirst);
  rig.Attach(HomeCall(0, kSecond, true));
  rig.Seen(0, /*open=*/false);
  for (const uint32_t server : {0u, 1u}) rig.Sealed(server);
  const home::Effects adopted = rig.Adopted(2, 0, kFinished);
  EXPECT_EQ(ReasonOf(One<home::RefuseAttach>(adopted).status), Reason::kRecovering);
}

}  // namespace
}  // namespace ballast::server
