// Mutants: each breaks one rule that the protocol rests on; the oracles must notice every one of
// them, else they prove nothing. Those of shipped code stand there, as BALLAST_MUTANT.
// Comes from: the command line. Goes to: shipped code; the simulated disk and link. Thread
// safety: immutable table.
#pragma once

#include <array>
#include "common/faults/mutant.h"

namespace ballast::sim {

struct MutantInfo {
  Mutant mutant;
  const char* name;
  const char* what;
};

inline constexpr std::array<MutantInfo, 74> kMutants = {{
    {Mutant::kRatiosBeforeSync, "ratios_before_sync",
     "LAMB's step begins when its ratios are written"},
    {Mutant::kVoteBeforeSync, "vote_before_sync", "the vote is sent when PREPARE is written"},
    {Mutant::kCountPushes, "count_pushes", "a frame that comes again changes what is there"},
    {Mutant::kArrivalOrderSum, "arrival_order_sum", "slots are summed as they arrive"},
    {Mutant::kDecideEarly, "decide_early", "the lead decides without the other votes"},
    {Mutant::kNoFence, "no_fence", "epoch and incarnation of frames are not looked at"},
    {Mutant::kApplyTwice, "apply_twice", "extents whose image is ahead are stepped again"},
    {Mutant::kTrimBeforeImageSync, "trim_before_image_sync",
     "the log forgets before images are safe"},
    {Mutant::kImageInPlace, "image_in_place", "the newest image is overwritten"},
    {Mutant::kPrepareIncomplete, "prepare_incomplete", "PREPARE is logged without an extent"},
    {Mutant::kStaleWeights, "stale_weights", "a trainer that is back gets the version before"},
    {Mutant::kInitNotDurable, "init_not_durable", "the first vote does not wait for the images"},
    {Mutant::kForgetLastVote, "forget_last_vote", "no vote of the round before is given again"},
    {Mutant::kForgetPresence, "forget_presence", "a restart takes all gradients for present"},
    {Mutant::kForgetTensorStep, "forget_tensor_step", "a restart sets the step counts to 0"},
    {Mutant::kForgetPolicy, "forget_policy", "a restart sets the policy to its beginning"},
    {Mutant::kImageSyncLies, "image_sync_lies", "an unsynced slot counts as durable"},
    {Mutant::kLogSyncLies, "log_sync_lies", "the log is never synced"},
    {Mutant::kIgnoreSyncError, "ignore_sync_error", "a failed flush counts as done"},
    {Mutant::kImageWhileApplying, "image_while_applying", "slots are written during a step"},
    {Mutant::kNoDecisionLogged, "no_decision_logged", "decisions are not in the log"},
    {Mutant::kAttachWhileApplying, "attach_while_applying", "an attach does not wait for a step"},
    {Mutant::kForgetOpenExtents, "forget_open_extents", "logged gradients are not loaded again"},
    {Mutant::kKeepComplete, "keep_complete", "a client trusts what the server had before"},
    {Mutant::kFreeGradients, "free_gradients", "a client forgets gradients once they are sent"},
    {Mutant::kNoInitAgain, "no_init_again", "slot 0 uploads its weights once only"},
    {Mutant::kNoChecksum, "no_checksum", "damaged frames are taken"},
    {Mutant::kPrepareSealed, "prepare_sealed", "a sealed server prepares rounds"},
    {Mutant::kSealNotSaved, "seal_not_saved", "a restarted server has forgotten its seal"},
    {Mutant::kForgetPrepared, "forget_prepared", "a seal's answer never says prepared"},
    {Mutant::kAdoptUnflushed, "adopt_unflushed", "a record is adopted before decisions are safe"},
    {Mutant::kOldDivisor, "old_divisor", "sums are divided by the first world"},
    {Mutant::kNoIncarnation, "no_incarnation", "a stream needs no incarnation"},
    {Mutant::kRecordNotSaved, "record_not_saved", "peers hear of a record that is not on disk"},
    {Mutant::kStartFromHome, "start_from_home", "the start round follows from the home's answer"},
    {Mutant::kManifestAsRead, "manifest_as_read", "a restarted server takes a record for durable"},
    {Mutant::kUploadIgnored, "upload_ignored", "uploaded weights do not replace the masters"},
    {Mutant::kPlaneIgnored, "plane_ignored", "an uploaded plane of the state changes nothing"},
    {Mutant::kForgetSetSteps, "forget_set_steps", "a restart forgets step counts of an upload"},
    {Mutant::kKeepInitialImage, "keep_initial_image", "initial weights replace none on disk"},
    {Mutant::kDirectorySyncLies, "directory_sync_lies", "directories are never synced"},
    {Mutant::kIgnoreWriteError, "ignore_write_error", "a failed write counts as done"},
    {Mutant::kLeaseOnWallClock, "lease_on_wall_clock", "seats are held by the wall clock"},
    {Mutant::kEvictUnwritten, "evict_unwritten", "what the tier evicts is not written"},
    {Mutant::kReadOlderImage, "read_older_image", "the tier reads the older of two slots"},
    {Mutant::kShrinkTooFar, "shrink_too_far", "a world becomes smaller than its least"},
    {Mutant::kFlushCountsLaterWrites, "flush_counts_later_writes", "later writes count, too"},
    {Mutant::kHeldImageOverwritten, "held_image_overwritten",
     "slots are written over what is held"},
    {Mutant::kHeldRoundsTrimmed, "held_rounds_trimmed", "the log forgets rounds that are held"},
    {Mutant::kGaveWayUntold, "gave_way_untold", "a capture reads what has given way"},
    {Mutant::kSnapshotOfTwoRounds, "snapshot_of_two_rounds", "servers capture different rounds"},
    {Mutant::kPartNotFlushed, "part_not_flushed", "a snapshot is taken when its parts are written"},
    {Mutant::kForgetChange, "forget_change", "a restarted home leaves a sealed epoch as it is"},
    {Mutant::kWakeKeepsEnded, "wake_keeps_ended", "a server does not open a woken job again"},
    {Mutant::kForgetOptions, "forget_options", "a replay steps without the job's options"},
    {Mutant::kForgetInitialValue, "forget_initial_value", "all state arrays begin at 0"},
    {Mutant::kIgnoreSchedule, "ignore_schedule", "rounds step with the trainers' own rates"},
    {Mutant::kForgetRatios, "forget_ratios", "a restart forgets the ratios of the open round"},
    {Mutant::kForgetRuleAtEpoch, "forget_rule_at_epoch",
     "in a new epoch all slots push what is equal already"},
    {Mutant::kTakeReducedFromAll, "take_reduced_from_all",
     "in a new epoch sums of equal gradients are divided by one"},
    {Mutant::kDealtByTheOldWorld, "dealt_by_the_old_world",
     "in a new epoch a trainer pushes the extents that the old one dealt to it"},
    {Mutant::kDealtByExtentNumber, "dealt_by_extent_number",
     "servers deal extents by their number, trainers by their turn"},
    {Mutant::kSharesAreMeans, "shares_are_means",
     "in a new epoch the sums of scattered gradients are divided by one"},
    {Mutant::kOpenWithoutAll, "open_without_all", "a communicator opens without the last rank"},
    {Mutant::kIdWrittenTwice, "id_written_twice", "a second id replaces the first"},
    {Mutant::kWaitersOfOldEpoch, "waiters_of_old_epoch", "a new epoch keeps the old meetings"},
    {Mutant::kOlderGeneration, "older_generation", "an older generation meets in the newest"},
    {Mutant::kReadyUnchecked, "ready_unchecked", "a rank may be ready with another id"},
    {Mutant::kIdNotBroughtBack, "id_not_brought_back", "no rank tells a new home the id again"},
    {Mutant::kForgetLastArray, "forget_last_array", "a restart lays out three arrays at most"},
    {Mutant::kVoteOfferedOnce, "vote_offered_once", "a vote that was lost is not offered again"},
    {Mutant::kJoinBackwards, "join_backwards",
     "the checksums of an extent's parts are joined backwards"},
    {Mutant::kKeepFirstChecksum, "keep_first_checksum",
     "the checksum of a damaged frame outlives its bytes"},
    {Mutant::kStepUnderWrite, "step_under_write",
     "an extent is stepped while its image is written"},
}};

class World;

// While it lives, the marks in shipped code (common/faults/mutant.h) mean this mutant and this
// world.
class Trial {
 public:
  Trial(Mutant mutant, World* world);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
};

// Null for a name that is not in the table.
const MutantInfo* FindMutant(const char* name);

}  // namespace ballast::sim
