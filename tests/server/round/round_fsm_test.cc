// RoundFsm as a specification: every answer the protocol gives, without threads or bytes.
#include "server/round/round_fsm.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/round/job_plan.h"
#include "tests/server/round/fsm_fixture.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::Grown;
using testing::LayoutOf;
using testing::MakeBegin;
using testing::MakeFrame;
using testing::MakePlan;

using testing::Count;
using testing::Durable;
using testing::First;
using Fixture = testing::FsmFixture;
constexpr uint32_t kChunk = testing::kFsmChunk;

TEST(RoundFsmTest, OneSlotOneServerRunsARound) {
  Fixture f(MakePlan({200, 100}, 1, {0}));
  f.Init();
  EXPECT_EQ(f.fsm_.phase(), Phase::kIdle);
  f.Begin(0);
  EXPECT_EQ(f.fsm_.phase(), Phase::kCollect);
  const Effects pushed = f.Push(0);
  EXPECT_EQ(Count<ReduceExtent>(pushed), 3u);
  EXPECT_EQ(Count<PrepareRound>(pushed), 1u);
  EXPECT_EQ(f.fsm_.phase(), Phase::kPreparing);
  const Effects durable = f.Feed(DurableInput{});
  const auto* apply = First<ApplyRound>(durable);
  ASSERT_NE(apply, nullptr);
  EXPECT_EQ(apply->decision.scalars.size(), 1u);
  EXPECT_EQ(f.fsm_.phase(), Phase::kApplying);
  const Effects stepped = f.Feed(SteppedInput{});
  EXPECT_EQ(First<OpenRound>(stepped)->round, 1u);
  EXPECT_EQ(f.fsm_.round(), 2u);
  EXPECT_EQ(f.fsm_.tensor_steps(), (std::vector<uint64_t>{1, 1}));
}

TEST(RoundFsmTest, RoundIsPreparedOnlyWhenEverySlotIsIn) {
  Fixture f(MakePlan({128}, 2, {0}));
  f.Init();
  f.Begin(0);
  EXPECT_EQ(Count<ReduceExtent>(f.Push(0)), 0u);
  f.Begin(1);
  const Effects pushed = f.Push(1);
  EXPECT_EQ(Count<ReduceExtent>(pushed), 1u);
  EXPECT_EQ(Count<PrepareRound>(pushed), 1u);
}

TEST(RoundFsmTest, NoVoteBeforeDurableAndNoApplyBeforeAllVotes) {
  Fixture f(MakePlan({128, 128}, 1, {0, 4}));
  f.Init();
  f.Begin(0);
  EXPECT_EQ(Count<SendVote>(f.Push(0)), 0u);
  const Effects durable = f.Feed(DurableInput{});
  ASSERT_EQ(Count<SendVote>(durable), 1u);
  EXPECT_EQ(Count<ApplyRound>(durable), 0u);
  Vote vote = First<SendVote>(durable)->vote;
  EXPECT_EQ(vote.norms.size(), 1u);
  EXPECT_FALSE(vote.scalars.empty());
  Vote other = vote;
  other.server = 4;
  other.scalars.clear();
  other.norms[0].extent = 1 - vote.norms[0].extent;
  EXPECT_EQ(Count<ApplyRound>(f.Feed(VoteInput{9, 1, other})), 0u) << "other epoch";
  EXPECT_EQ(Count<ApplyRound>(f.Feed(VoteInput{1, 2, other})), 0u) << "other round";
  other.server = 5;
  EXPECT_EQ(Count<ApplyRound>(f.Feed(VoteInput{1, 1, other})), 0u) << "no member";
  other.server = 4;
  EXPECT_EQ(Count<ApplyRound>(f.Feed(VoteInput{1, 1, other})), 1u);
}

TEST(RoundFsmTest, VoteMayArriveBeforeTheOwnPush) {
  Fixture f(MakePlan({128, 128}, 1, {0, 4}), 4);
  Fixture lead(MakePlan({128, 128}, 1, {0, 4}), 0);
  for (Fixture* s : {&f, &lead}) {
    s->Init();
    s->Begin(0);
  }
  lead.Push(0);
  const Effects lead_durable = lead.Feed(DurableInput{});
  EXPECT_TRUE(f.Feed(VoteInput{1, 1, First<SendVote>(lead_durable)->vote}).empty());
  f.Push(0);
  const Effects durable = f.Feed(DurableInput{});
  const auto* apply = First<ApplyRound>(durable);
  ASSERT_NE(apply, nullptr);
  EXPECT_EQ(apply->decision.scalars, First<SendVote>(lead_durable)->vote.scalars);
}

TEST(RoundFsmTest, DuplicateConflictingAndForeignFramesGetTypedAnswers) {
  Fixture f(MakePlan({300}, 2, {0, 1}));
  f.Init();
  const uint32_t mine = f.fsm_.owned().front();
  const ChunkRange range = ChunkRanges(f.fsm_.layout(), mine, kChunk, {}).front();
  const FrameHeader good = MakeFrame(f.plan_, FrameKind::kGradient, 0, 1, mine, range);
  const auto answer = [&](auto spoil) {
    FrameHeader header = good;
    spoil(&header);
    return f.RefusalOf(header);
  };
  EXPECT_EQ(answer([](FrameHeader*) {}), Reason::kNotBegun);
  f.Begin(0);
  EXPECT_EQ(answer([](FrameHeader* i) { i->epoch = 0; }), Reason::kStaleEpoch);
  EXPECT_EQ(answer([](FrameHeader* i) { i->epoch = 2; }), Reason::kFutureEpoch);
  EXPECT_EQ(answer([](FrameHeader* i) { i->round = 0; }), Reason::kRoundClosed);
  EXPECT_EQ(answer([](FrameHeader* i) { i->round = 2; }), Reason::kFutureRound);
  EXPECT_EQ(answer([](FrameHeader* i) { i->incarnation = 1; }), Reason::kWrongIncarnation);
  EXPECT_EQ(answer([](FrameHeader* i) { i->job = 1; }), Reason::kBadFrame);
  EXPECT_EQ(answer([](FrameHeader* i) { i->slot = 9; }), Reason::kBadFrame);
  EXPECT_EQ(answer([](FrameHeader* i) { i->extent = 99; }), Reason::kBadFrame);
  EXPECT_EQ(answer([](FrameHeader* i) { i->dtype = DType::kBF16; }), Reason::kWrongDtype);
  EXPECT_EQ(answer([](FrameHeader* i) { i->offset_bytes += 4; }), Reason::kBadFrame);
  EXPECT_EQ(answer([](FrameHeader* i) { i->length_bytes -= 4; }), Reason::kBadFrame);
  EXPECT_EQ(answer([](FrameHeader* i) { i->kind = FrameKind::kState; }), Reason::kBadFrame);
  EXPECT_EQ(answer([](FrameHeader* i) { i->extent = 1; }), Reason::kWrongOwner);
  EXPECT_EQ(answer([](FrameHeader*) {}), Reason::kUnspecified);  // The first one counts.
  EXPECT_EQ(answer([](FrameHeader*) {}), Reason::kDuplicate);
  EXPECT_EQ(answer([](FrameHeader* i) { i->crc32c = 6; }), Reason::kConflict);
}

TEST(RoundFsmTest, NotAContributorIsRefused) {
  JobPlan plan = MakePlan({128}, 2, {0});
  plan.epoch.contributors[0].slots = {1};
  plan.epoch.contributors[0].divisor = 1;
  Fixture f(plan);
  f.Init();
  f.Begin(0);
  f.Push(0);
  EXPECT_EQ(f.FirstRefusal(), Reason::kNotContributor);
  f.Begin(1);
  EXPECT_EQ(Count<PrepareRound>(f.Push(1)), 1u);
}

TEST(RoundFsmTest, FramesBeyondTheWindowAreFlowControlled) {
  Fixture f(MakePlan({128 * 4}, 2, {0}), 0, 2);
  f.Init();
  f.Begin(0);
  f.Begin(1);
  const auto& owned = f.fsm_.owned();
  const auto frames_of = [&](uint32_t slot, uint32_t position) {
    Effects all;
    f.refusals_.clear();
    for (const ChunkRange& range : ChunkRanges(f.fsm_.layout(), owned[position], kChunk, {})) {
      Fixture::Append(&all, f.Deliver(MakeFrame(f.plan_, FrameKind::kGradient, slot, 1,
                                                owned[position], range)));
    }
    f.Reduce(&all);
    return all;
  };
  frames_of(0, 2);
  EXPECT_EQ(f.FirstRefusal(), Reason::kOutOfWindow);
  frames_of(0, 0);
  const Effects moved = frames_of(1, 0);
  ASSERT_NE(First<MoveWindow>(moved), nullptr);
  EXPECT_EQ(First<MoveWindow>(moved)->window_base, 1u);
  frames_of(0, 2);
  EXPECT_EQ(f.FirstRefusal(), Reason::kUnspecified);
}

TEST(RoundFsmTest, LateFramesAreRefusedOnceTheRoundIsPrepared) {
  Fixture f(MakePlan({128}, 1, {0}));
  f.Init();
  f.Begin(0);
  f.Push(0);
  const FrameHeader again = MakeFrame(f.plan_, FrameKind::kGradient, 0, 1, 0, {0, kChunk});
  EXPECT_EQ(f.RefusalOf(again), Reason::kRoundClosed);
}

TEST(RoundFsmTest, AbsentGradientsAreNotWaitedForAndDoNotAdvanceTheirStep) {
  Fixture f(MakePlan({128, 128, 64}, 2, {0}));
  f.Init();
  // Tensor 0: nobody; tensor 1: slot 1 only; tensor 2: both.
  f.Begin(0, {false, false, true});
  f.Begin(1, {false, true, true});
  f.Push(0, {false, false, true});
  const Effects pushed = f.Push(1, {false, true, true});
  EXPECT_EQ(Count<PrepareRound>(pushed), 1u);
  f.Feed(DurableInput{});
  f.Feed(SteppedInput{});
  EXPECT_EQ(f.fsm_.tensor_steps(), (std::vector<uint64_t>{0, 1, 1}));
  // Now all: two different step counts need two scalar sets.
  f.Begin(0);
  f.Begin(1);
  f.Push(0);
  f.Push(1);
  EXPECT_EQ(First<ApplyRound>(f.Feed(DurableInput{}))->decision.scalars.size(), 2u);
}

TEST(RoundFsmTest, NoGradientAtAllIsStillARound) {
  Fixture f(MakePlan({128}, 1, {0}));
  f.Init();
  EXPECT_EQ(Count<PrepareRound>(f.Begin(0, {false})), 1u);
}

TEST(RoundFsmTest, VoteOfASkippedRoundStillNamesThatRound) {
  // The last voter decides at once, and is a round further when its vote goes out.
  Fixture f(MakePlan({128, 128}, 1, {0, 4}), 4);
  f.Init();
  f.Begin(0);
  const Effects pushed = f.Push(0);
  const uint32_t other_extent = 1 - f.fsm_.owned().front();
  f.Feed(VoteInput{
      1,
      1,
      {.server = 0,
       .norms = {{other_extent, 1.0}},
       .nonfinite = 1,
       .contributor_digest = First<PrepareRound>(pushed)->record.vote.contributor_digest}});
  const Effects durable = f.Feed(DurableInput{});
  ASSERT_EQ(Count<SkipRound>(durable), 1u);
  EXPECT_EQ(f.fsm_.round(), 2u);
  EXPECT_EQ(First<SendVote>(durable)->round, 1u);
}

// Servers that saw different tensors would sum different gradients.
TEST(RoundFsmTest, TheDigestOfAVoteTellsOnePresenceFromAnother) {
  const auto digest = [](const std::vector<bool>& zero, const std::vector<bool>& one) {
    Fixture f(MakePlan({64, 64}, 2, {0}));
    f.Init();
    f.Begin(0, zero);
    f.Begin(1, one);
    f.Push(0, zero);
    return First<PrepareRound>(f.Push(1, one))->record.vote.contributor_digest;
  };
  const uint32_t all = digest({}, {});
  EXPECT_EQ(digest({true, true}, {}), all) << "the same said in another way";
  EXPECT_NE(digest({true, false}, {}), all);
  EXPECT_NE(digest({}, {true, false}), digest({true, false}, {})) << "it is another slot's";
}

TEST(RoundFsmTest, ServerThatOwnsNothingStillVotes) {
  Fixture f(MakePlan({64}, 1, {0, 1, 2}), 2);
  ASSERT_TRUE(f.fsm_.owned().empty());
  EXPECT_EQ(Count<PrepareRound>(f.Begin(0)), 1u);
  EXPECT_EQ(Count<SendVote>(f.Feed(DurableInput{})), 1u);
}

TEST(RoundFsmTest, NonFiniteGradientsSkipTheRoundAndLeaveStepsAlone) {
  Fixture f(MakePlan({128}, 1, {0}));
  f.Init();
  f.Begin(0);
  f.Push(0, {}, 1);
  const Effects durable = f.Feed(DurableInput{});
  EXPECT_EQ(Count<SkipRound>(durable), 1u);
  EXPECT_EQ(Count<OpenRound>(durable), 1u);
  EXPECT_EQ(f.fsm_.round(), 2u);
  EXPECT_EQ(f.fsm_.tensor_steps(), (std::vector<uint64_t>{0}));
}

TEST(RoundFsmTest, DifferentHyperParametersFailTheJobNamingGroupKeyAndSlots) {
  Fixture f(MakePlan({128}, 2, {0}));
  f.Init();
  f.Begin(0);
  RoundBegin begin = MakeBegin(1);
  begin.hyper[0][kWeightDecay] = 0.2;
  const Effects effects = f.Feed(BeginInput{1, begin});
  const auto* fail = First<FailJob>(effects);
  ASSERT_NE(fail, nullptr);
  EXPECT_EQ(ReasonOf(fail->status), Reason::kHyperparamMismatch);
  const std::string text(fail->status.message());
  for (const char* part : {"group 0", "weight_decay", "slot 1", "slot 0", "0.2"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(f.fsm_.tensor_steps()[0], 0u);
}

TEST(RoundFsmTest, BadBeginsAreRefusedAndTheOthersLearnOfTheLostSlot) {
  struct Case {
    Reason reason;
    RoundBegin begin;
  };
  RoundBegin nan = MakeBegin(1);
  nan.hyper[0][kLr] = std::numeric_limits<double>::quiet_NaN();
  RoundBegin wordy = MakeBegin(1);
  wordy.user_state.assign(kUserStateBytesMax + 1, 'x');
  RoundBegin checksums = MakeBegin(1);
  checksums.weight_crc32c.assign(1000, 7u);
  RoundBegin counts = MakeBegin(1);
  counts.steps = StepCounts{{1}, 1};
  const Case cases[] = {{Reason::kFutureRound, MakeBegin(2)},
                        {Reason::kBadArgument, wordy},
                        {Reason::kBadFrame, checksums},
                        {Reason::kBadFrame, counts},
                        {Reason::kRoundClosed, MakeBegin(0)},
                        {Reason::kBadHyperparam, nan},
                        {Reason::kBadFrame, MakeBegin(1, {true, true})}};
  for (const Case& c : cases) {
    Fixture f(MakePlan({128}, 2, {0}));
    f.Init();
    f.Begin(0);
    const Effects effects = f.Feed(BeginInput{1, c.begin});
    ASSERT_NE(First<FailSlot>(effects), nullptr);
    EXPECT_EQ(ReasonOf(First<FailSlot>(effects)->status), c.reason);
    ASSERT_NE(First<FailJob>(effects), nullptr);
    EXPECT_EQ(ReasonOf(First<FailJob>(effects)->status), Reason::kTrainerLost);
    EXPECT_EQ(f.fsm_.round(), 1u);
  }
}

TEST(RoundFsmTest, ABeginThatIsRepeatedWithFewerKeysIsNotTheSame) {
  Fixture f(Durable(MakePlan({128}, 2, {0})));
  f.Init();
  f.Begin(0);
  RoundBegin begin = MakeBegin(1);
  begin.hyper[0].resize(1);
  begin.hyper[0].shrink_to_fit();
  const Effects effects = f.Feed(BeginInput{0, begin});
  ASSERT_NE(First<FailSlot>(effects), nullptr);
  EXPECT_EQ(ReasonOf(First<FailSlot>(effects)->status), Reason::kConflict);
  EXPECT_EQ(First<FailJob>(effects), nullptr);
}

// A round of two slots, each of which says `state` and its number.
PreparedRecord RoundWithStates(Fixture* f, const std::string& state) {
  PreparedRecord prepared;
  for (const uint32_t slot : {0u, 1u}) {
    RoundBegin begin = MakeBegin(f->fsm_.round());
    if (!state.empty()) begin.user_state = absl::StrCat(state, slot);
    f->Feed(BeginInput{slot, begin});
    const Effects effects = f->Push(slot);
    if (const auto* prepare = First<PrepareRound>(effects)) prepared = prepare->record;
  }
  f->Feed(DurableInput{});
  f->Feed(SteppedInput{});
  return prepared;
}

TEST(RoundFsmTest, TheHomeKeepsEachSlotsUserStateWithTheRound) {
  Fixture f(MakePlan({128}, 2, {0}));
  f.Init();
  EXPECT_EQ(f.fsm_.UserState(0), "");
  const PreparedRecord first = RoundWithStates(&f, "a");
  EXPECT_EQ(first.user_state, (std::map<uint32_t, std::string>{{0, "a0"}, {1, "a1"}}));
  EXPECT_EQ(f.fsm_.UserState(1), "a1");

  // Those of an open round count only when it is over; a slot that has none says so.
  RoundBegin begin = MakeBegin(2);
  begin.user_state = "b0";
  f.Feed(BeginInput{0, begin});
  EXPECT_EQ(f.fsm_.UserState(0), "a0");
  f.Push(0);
  f.Feed(BeginInput{1, MakeBegin(2)});
  f.Push(1);
  f.Feed(DurableInput{});
  EXPECT_EQ(f.fsm_.UserState(0), "a0");
  f.Feed(SteppedInput{});
  EXPECT_EQ(f.fsm_.UserState(0), "b0");
  EXPECT_EQ(f.fsm_.UserState(1), "");

  // After a restart, as the log has it.
  Fixture restarted(MakePlan({128}, 2, {0}));
  Effects effects;
  restarted.fsm_.Restore({.round = 2, .tensor_step = {1}, .last_prepared = first}, &effects);
  EXPECT_EQ(restarted.fsm_.UserState(1), "a1");
}

TEST(RoundFsmTest, OtherServersKeepNoUserStates) {
  Fixture f(MakePlan({128, 128}, 2, {0, 1}), 1);
  f.Init();
  EXPECT_TRUE(RoundWithStates(&f, "a").user_state.empty());
}

TEST(RoundFsmTest, BeginWithAnotherLayoutVersionFailsTheJob) {
  Fixture f(MakePlan({128}, 1, {0}));
  f.Init();
  RoundBegin begin = MakeBegin(1);
  begin.layout_version = 2;
  const Effects effects = f.Feed(BeginInput{0, begin});
  EXPECT_EQ(ReasonOf(First<FailJob>(effects)->status), Reason::kLayoutMismatch);
}

TEST(RoundFsmTest, SlotZeroCannotBeginBeforeItsInitialWeightsAreIn) {
  Fixture f(MakePlan({128}, 1, {0}));
  EXPECT_EQ(ReasonOf(First<FailSlot>(f.Begin(0))->status), Reason::kNotBegun);
}

TEST(RoundFsmTest, LostTrainerFailsARoundItStillOwes) {
  Fixture f(MakePlan({128}, 2, {0}));
  f.Init();
  f.Begin(0);
  f.Push(0);
  const Effects effects = f.Feed(SlotLostInput{1, "stream closed"});
  ASSERT_NE(First<FailJob>(effects), nullptr);
  EXPECT_EQ(ReasonOf(First<FailJob>(effects)->status), Reason::kTrainerLost);
  EXPECT_EQ(FieldsOf(First<FailJob>(effects)->status).slot, 1);
}

TEST(RoundFsmTest, TrainerLostAfterItsLastPushDoesNotStopTheRound) {
  Fixture f(MakePlan({128}, 2, {0}));
  f.Init();
  f.Begin(0);
  f.Begin(1);
  f.Push(1);
  EXPECT_EQ(Count<FailJob>(f.Feed(SlotLostInput{1, "killed"})), 0u);
  EXPECT_EQ(Count<PrepareRound>(f.Push(0)), 1u);
  EXPECT_EQ(Count<ApplyRound>(f.Feed(DurableInput{})), 1u);
  const Effects stepped = f.Feed(SteppedInput{});
  EXPECT_EQ(Count<OpenRound>(stepped), 1u);
  EXPECT_EQ(Count<FailJob>(stepped), 1u) << "the next round cannot start without it";
}

TEST(RoundFsmTest, AllLeftFinishesTheJobAndLeavingEarlyFailsTheOthers) {
  Fixture f(MakePlan({128}, 2, {0}));
  f.Init();
  EXPECT_TRUE(f.Feed(SlotLeftInput{0}).empty());
  EXPECT_EQ(Count<FinishJob>(f.Feed(SlotLeftInput{1})), 1u);

  Fixture g(MakePlan({128}, 2, {0}));
  g.Init();
  g.Feed(SlotLeftInput{1});
  const Effects effects = g.Begin(0);
  EXPECT_EQ(ReasonOf(First<FailJob>(effects)->status), Reason::kTrainerLeft);
  EXPECT_EQ(FieldsOf(First<FailJob>(effects)->status).slot, 1);
}

TEST(RoundFsmTest, ExtendingAddsExtentsThatNeedInitialWeights) {
  Fixture f(MakePlan({128}, 1, {0}));
  f.Init();
  const JobPlan grown = Grown(f.plan_, 128, 1);
  ASSERT_TRUE(f.fsm_.Extend(grown, LayoutOf(grown), 8).ok());
  RoundBegin begin = MakeBegin(1);
  begin.layout_version = 2;
  begin.hyper.push_back(begin.hyper[0]);
  EXPECT_EQ(Count<FailSlot>(f.Feed(BeginInput{0, begin})), 1u);
  EXPECT_FALSE(f.fsm_.Extend(grown, LayoutOf(grown), 8).ok()) << "same version twice";
}

TEST(RoundFsmTest, AddingGroupsWhileAnotherSlotTakesTheRoundWithoutThemFailsTheJob) {
  for (const bool begin_first : {false, true}) {
    Fixture f(MakePlan({128}, 2, {0}));
    f.Init();
    Effects effects;
    if (begin_first) {
      EXPECT_EQ(Count<FailJob>(f.Begin(0)), 0u);
      effects = f.Feed(SlotGrowsInput{1});
    } else {
      EXPECT_TRUE(f.Feed(SlotGrowsInput{1}).empty());
      effects = f.Begin(0);
    }
    ASSERT_NE(First<FailJob>(effects), nullptr);
    EXPECT_EQ(ReasonOf(First<FailJob>(effects)->status), Reason::kLayoutMismatch);
  }
}

TEST(RoundFsmTest, AddingGroupsAfterAnotherSlotHasLeftFailsTheJob) {
  Fixture f(MakePlan({128}, 2, {0}));
  f.Init();
  f.Feed(SlotLeftInput{0});
  const Effects effects = f.Feed(SlotGrowsInput{1});
  ASSERT_NE(First<FailJob>(effects), nullptr);
  EXPECT_EQ(ReasonOf(First<FailJob>(effects)->status), Reason::kTrainerLeft);
}

TEST(RoundFsmTest, FailedJobAnswersFramesAndNothingElse) {
  Fixture f(MakePlan({128}, 1, {0}));
  f.Init();
  f.Feed(FailInput{absl::UnavailableError("gone")});
  EXPECT_EQ(f.fsm_.phase(), Phase::kFailed);
  EXPECT_TRUE(f.Begin(0).empty());
  EXPECT_EQ(f.RefusalOf(MakeFrame(f.plan_, FrameKind::kGradient, 0, 1, 0, {0, kChunk})),
            Reason::kRoundClosed);
}

// --- Durable jobs: restarts, returning slots, epochs
// ----------------------------------------------

// The PREPARE of round 1 of a job that is pushed by all slots.
PreparedRecord PrepareOf(Fixture* f, uint32_t world) {
  f->Init();
  for (uint32_t slot = 0; slot < world; ++slot) f->Begin(slot);
  Effects effects;
  for (uint32_t slot = 0; slot < world; ++slot) Fixture::Append(&effects, f->Push(slot));
  return First<PrepareRound>(effects)->record;
}

TEST(RoundFsmTest, AServerRestoredWhilePreparedGivesItsVoteAgain) {
  const JobPlan plan = Durable(MakePlan({300}, 1, {0, 1}));
  Fixture before(plan, 1);
  Restored restored;
  restored.prepared = PrepareOf(&before, 1);
  restored.tensor_step = {0};
  Fixture after(plan, 1);
  Effects effects;
  after.fsm_.Restore(restored, &effects);
  EXPECT_EQ(after.fsm_.phase(), Phase::kPrepared);
  ASSERT_EQ(Count<SendVote>(effects), 1u);
  EXPECT_EQ(First<SendVote>(effects)->vote.norms, restored.prepared->vote.norms);
}

// The peer may have asked for it when this server had not voted yet, and asks no more.
TEST(RoundFsmTest, AServerRestoredAfterADecisionRepeatsItsLastVote) {
  const JobPlan plan = Durable(MakePlan({300}, 1, {0, 1}));
  Fixture before(plan, 1);
  Restored restored;
  restored.round = 2;
  restored.last_prepared = PrepareOf(&before, 1);
  restored.tensor_step = {1};
  Fixture after(plan, 1);
  Effects effects;
  after.fsm_.Restore(restored, &effects);
  EXPECT_EQ(after.fsm_.phase(), Phase::kIdle);
  ASSERT_EQ(Count<SendVote>(effects), 1u);
  EXPECT_EQ(First<SendVote>(effects)->round, 1u);
  EXPECT_TRUE(after.fsm_.OwnVoteOn(1).has_value());
  EXPECT_FALSE(after.fsm_.OwnVoteOn(2).has_value());
}

TEST(RoundFsmTest, ALostTrainerOfADurableJobIsWaitedFor) {
  Fixture f(Durable(MakePlan({300}, 2, {0})));
  f.Init();
  f.Begin(0);
  EXPECT_EQ(Count<FailJob>(f.Feed(SlotLostInput{1, "gone"})), 0u);
  f.Feed(SlotBackInput{1});
  f.Begin(1);
  f.Push(0);
  EXPECT_EQ(Count<PrepareRound>(f.Push(1)), 1u);
}

TEST(RoundFsmTest, ASlotThatIsBackMayBeginItsRoundAgain) {
  Fixture f(Durable(MakePlan({300}, 2, {0})));
  f.Init();
  f.Begin(0);
  f.Push(0);
  EXPECT_EQ(f.fsm_.CompleteFor(0).size(), f.fsm_.owned().size());
  EXPECT_EQ(f.fsm_.CompleteFor(1).size(), 0u);
  const Effects again = f.Begin(0);
  EXPECT_EQ(Count<FailSlot>(again), 0u);
  EXPECT_EQ(Count<AckSlot>(again), 1u);
}

TEST(RoundFsmTest, ASealedServerPreparesNothing) {
  Fixture f(Durable(MakePlan({300}, 1, {0})));
  f.Init();
  f.Begin(0);
  f.Feed(SealInput{});
  EXPECT_EQ(Count<PrepareRound>(f.Push(0)), 0u);
  EXPECT_EQ(f.fsm_.Sealed()->version, 1u);
  EXPECT_FALSE(f.fsm_.Sealed()->prepared);
}

TEST(RoundFsmTest, TheNextEpochRunsAnUnpreparedRoundAgain) {
  Fixture f(Durable(MakePlan({300}, 1, {0})));
  f.Init();
  f.Begin(0);
  f.Push(0);
  JobPlan next = f.plan_;
  next.epoch.epoch = 2;
  next.epoch.start_round = 1;
  next.epoch.members[0].incarnation = 99;
  // While the PREPARE is on its way to the disk nobody knows how it will end.
  f.Feed(SealInput{});
  EXPECT_FALSE(f.fsm_.Sealed().has_value());
  Effects effects;
  EXPECT_FALSE(f.fsm_.Adopt(next, 64, &effects).ok());

  Fixture g(Durable(MakePlan({300}, 1, {0})));
  g.Init();
  g.Begin(0);
  g.Feed(SealInput{});
  g.Push(0);
  ASSERT_TRUE(g.fsm_.Adopt(next, 64, &effects).ok());
  EXPECT_EQ(g.fsm_.phase(), Phase::kIdle);
  EXPECT_EQ(g.fsm_.round(), 1u);
  const FrameHeader old = MakeFrame(g.plan_, FrameKind::kGradient, 0, 1, g.fsm_.owned()[0], {0, 4});
  EXPECT_EQ(g.RefusalOf(old), Reason::kStaleEpoch);
  g.Begin(0);
  EXPECT_TRUE(g.fsm_.CompleteFor(0).empty());
}

}  // namespace
}  // namespace ballast::server
