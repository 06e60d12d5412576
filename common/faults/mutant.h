// Marks in shipped code for the simulator (docs/simulator.md). BALLAST_MUTANT(kName) is the
// constant false; in the simulator's build it asks whether this mutant, a rule broken on purpose,
// is being tried. BALLAST_PROBE(kName) is nothing; in the simulator's build it counts that the
// situation was met. Only .cc files use them: tests/sim/CMakeLists.txt lists those, which the
// simulator compiles a second time. Thread safety: none in the simulator; elsewhere nothing.
#pragma once

#include <cstdint>

namespace ballast {

// Each breaks one rule; tests/sim/mutants.h says which.
enum class Mutant : uint8_t {
  kNone,
  kVoteBeforeSync,
  kRatiosBeforeSync,
  kCountPushes,
  kArrivalOrderSum,
  kDecideEarly,
  kNoFence,
  kApplyTwice,
  kTrimBeforeImageSync,
  kImageInPlace,
  kPrepareIncomplete,
  kStaleWeights,
  kInitNotDurable,
  kForgetLastVote,
  kForgetPresence,
  kForgetTensorStep,
  kForgetPolicy,
  kImageSyncLies,
  kLogSyncLies,
  kIgnoreSyncError,
  kImageWhileApplying,
  kNoDecisionLogged,
  kAttachWhileApplying,
  kForgetOpenExtents,
  kKeepComplete,
  kFreeGradients,
  kNoInitAgain,
  kNoChecksum,
  kPrepareSealed,
  kSealNotSaved,
  kForgetPrepared,
  kAdoptUnflushed,
  kOldDivisor,
  kNoIncarnation,
  kRecordNotSaved,
  kStartFromHome,
  kForgetChange,
  kWakeKeepsEnded,
  kManifestAsRead,
  kUploadIgnored,
  kPlaneIgnored,
  kForgetSetSteps,
  kKeepInitialImage,
  kLeaseOnWallClock,
  kDirectorySyncLies,
  kIgnoreWriteError,
  kEvictUnwritten,
  kReadOlderImage,
  kShrinkTooFar,
  kFlushCountsLaterWrites,
  kHeldImageOverwritten,
  kHeldRoundsTrimmed,
  kGaveWayUntold,
  kSnapshotOfTwoRounds,
  kPartNotFlushed,
  kForgetOptions,
  kForgetInitialValue,
  kForgetLastArray,
  kVoteOfferedOnce,
  kIgnoreSchedule,
  kForgetRatios,
  kForgetRuleAtEpoch,
  kTakeReducedFromAll,
  kDealtByTheOldWorld,
  kDealtByExtentNumber,
  kSharesAreMeans,
  kOpenWithoutAll,
  kIdWrittenTwice,
  kWaitersOfOldEpoch,
  kOlderGeneration,
  kReadyUnchecked,
  kIdNotBroughtBack,
  kJoinBackwards,
  kKeepFirstChecksum,
  kStepUnderWrite,
};

// Situations that a long enough run of the simulator must have met.
enum class Probe : uint8_t {
  kLogFull,
  kHoldGaveWay,
  kExtentLoaded,
  kExtentWrittenBack,
  kOldExtentSaved,
  kReplay,
  kExtentAhead,
  kRestoredPrepared,
  kRestoredGradient,
  kAttachWaits,
  kSealWaits,
  kAdoptWaits,
  kWoken,
  kChangeTakenUp,
  kBegunAgain,
  kBegunWithFewer,
  kInitAgain,
  kStepWaits,
  kMeetingOpened,
  kMeetingTimedOut,
  kMeetingStale,
  kMeetingGivenUp,
  kMeetingOlder,
  kMeetingConflict,
  // A capture lacks rounds that its hold should have kept.
  kHeldLogEnded,
  // Of every round: the oracle looks at the driver.
  kDecided,
  kRoundOver,
};

#ifdef BALLAST_SIM
bool MutantIs(Mutant mutant);
void Met(Probe probe);
#define BALLAST_MUTANT(name) (::ballast::MutantIs(::ballast::Mutant::name))
#define BALLAST_PROBE(name) (::ballast::Met(::ballast::Probe::name))
#else
#define BALLAST_MUTANT(name) false
#define BALLAST_PROBE(name) static_cast<void>(0)
#endif

}  // namespace ballast
