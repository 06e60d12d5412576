// RoundFsm: the protocol of one job's rounds at one server, as one transition table. Inputs in,
// effects out; no thread, clock, I/O, randomness or payload bytes, so the same object runs under
// gRPC, in a simulator and in replay.
//
//   IDLE(t) -Begin-> COLLECT(t) -all extents reduced-> PREPARING(t) -durable-> PREPARED(t)
//           -all votes-> APPLYING(t) -all stepped-> IDLE(t+1);   any -> FAILED | FINISHED
//
// With LAMB a round stays PREPARED longer: after all votes the server measures its extents, votes
// again with the squares, and has the ratios on disk before it applies. The round has no visible
// effect before that.
//
// An upload is an ordinary round in which the lead trainer pushes weights, or a plane of the state,
// in place of gradients: it is the only contributor, and the decision names the replaced plane.
//
// A job whose durability is not `none` outlives its processes: it waits for absent trainers and
// servers, a slot may open its stream and its round again, and Restore puts a restarted server back
// where its log ends.
//
// The class is larger than others on purpose. Each transition reads the seats, the registers, the
// initial weights and the votes together: absent slots decide whether a round may end, and the
// reduced extents decide how much a returning slot owes. Split, the one table would become several
// that call each other, and no place would define the order of effects.
//
// Comes from: RoundDriver (streams, kernels, peers). Goes to: RoundDriver, as effects.
// Thread safety: thread-compatible; owned by the engine's strand.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/job/decide.h"
#include "common/tensor/layout.h"
#include "server/durability/records/ratios_record.h"
#include "server/durability/records/records.h"
#include "server/round/contributor_table.h"
#include "server/round/registers.h"
#include "server/round/round_types.h"

namespace ballast::server {

enum class Phase : uint8_t {
  kIdle,
  kCollect,
  kPreparing,
  kPrepared,
  kApplying,
  kFailed,
  kFinished,
};
const char* PhaseName(Phase phase);

// --- Inputs -------------------------------------------------------------------------------------
struct BeginInput {
  uint32_t slot = 0;
  RoundBegin begin;
};
struct FrameInput {  // RefusalOf admitted the frame, and its bytes are in place
  FrameHeader frame;
};
struct ReducedInput {
  uint32_t extent = 0;
  double sumsq = 0;
  uint64_t nonfinite = 0;
  Nonfinite first_nonfinite;
};
struct DurableInput {
};  // everything prepared so far, or LAMB's ratios, is durable at the job's level
struct VoteInput {
  uint32_t epoch = 0;
  uint64_t round = 0;
  Vote vote;
};
struct SteppedInput {};  // every owned extent holds version round + 1
struct SlotLostInput {
  uint32_t slot = 0;
  std::string why;
};
struct SlotLeftInput {
  uint32_t slot = 0;
};
struct SlotGrowsInput {  // it waits to add groups, and takes no round before all slots have
  uint32_t slot = 0;
  bool grows = true;  // false: it was refused, and continues without
};
struct SlotBackInput {  // its stream is open again, the same process as before
  uint32_t slot = 0;
};
struct SealInput {};  // no round of this epoch is prepared any more
struct FailInput {
  absl::Status status;
};
struct MeasuredInput {  // LAMB's first pass over every owned extent
  std::vector<RunSquares> squares;
};
using Input = std::variant<BeginInput, FrameInput, ReducedInput, DurableInput, VoteInput,
                           SteppedInput, SlotLostInput, SlotLeftInput, SlotGrowsInput,
                           SlotBackInput, SealInput, FailInput, MeasuredInput>;

// --- Effects ------------------------------------------------------------------------------------
struct InitialComplete {  // all initial weights of the extent are in
  uint32_t extent = 0;
};
struct AckSlot {
  uint32_t slot = 0;
  bool flush = false;  // the slot's last frame of the round is in
};
struct MoveWindow {  // tell every slot
  uint32_t window_base = 0;
};
struct ReduceExtent {
  uint32_t extent = 0;
};
struct PrepareRound {  // log the PREPARE record and flush; answer with DurableInput
  PreparedRecord record;
};
struct SendVote {
  uint64_t round = 0;
  Vote vote;
  uint32_t epoch = 0;  // of the vote
};
struct MeasureRound {  // LAMB's first pass, which changes nothing; answer with MeasuredInput
  Decision decision;
};
struct LogRatios {  // and flush; answer with DurableInput
  RatiosRecord record;
};
struct ApplyRound {  // step every extent with present tensors; answer with SteppedInput
  Decision decision;
  std::vector<float> ratios;  // LAMB's, per tensor; else empty
};
struct SkipRound {
  uint64_t round = 0;
  Decision decision;
};
struct OpenRound {  // round `round` is over: the server holds version round + 1
  uint64_t round = 0;
};
struct FailSlot {
  uint32_t slot = 0;
  absl::Status status;
};
struct FailJob {
  absl::Status status;
};
struct FinishJob {};
using Effect = std::variant<InitialComplete, AckSlot, MoveWindow, ReduceExtent, PrepareRound,
                            SendVote, MeasureRound, LogRatios, ApplyRound, SkipRound, OpenRound,
                            FailSlot, FailJob, FinishJob>;
using Effects = std::vector<Effect>;

// The point where a restarted server continues, from its images and log.
struct Restored {
  uint64_t round = 1;  // of the state: every round below is applied
  PolicyState policy;
  std::vector<uint64_t> tensor_step;
  std::vector<uint32_t> init_missing;           // owned extents without initial weights
  std::map<uint32_t, ReducedInput> reduced;     // logged owned extents of `round`
  std::optional<PreparedRecord> prepared;       // `round` was prepared
  std::optional<PreparedRecord> last_prepared;  // of round - 1; a peer may still lack its vote
  std::vector<float> ratios;  // LAMB's logged ratios of `round`; both votes have the squares
};

// The end of the open round, as far as known.
struct Outcome {
  enum class Stage : uint8_t { kOpen, kMeasuring, kLogging };  // the last two with LAMB only
  Stage stage = Stage::kOpen;
  Decision decision;
  std::vector<float> ratios;  // LAMB's, per tensor; empty: not known
};

class RoundFsm {
 public:
  // `plan` is valid; `window_extents` >= 1 counts positions in this server's push order.
  RoundFsm(JobPlan plan, Layout layout, uint32_t self, uint32_t chunk_bytes,
           uint32_t window_extents);

  // Why a frame is refused now; nothing: the frame is admitted. The bytes of an admitted frame may
  // be put in place, where nothing reads them before Step(FrameInput) has reported them. No other
  // input comes between the two. A frame without its FrameInput counts as absent.
  std::optional<FrameRefused> RefusalOf(const FrameHeader& frame) const;

  // Appends the actions to take, in order, to `effects`. An input that the phase does not expect
  // has no effect.
  void Step(const Input& input, Effects* effects);

  // Puts a fresh FSM where a restarted server continues, and appends the immediate actions.
  void Restore(const Restored& restored, Effects* effects);

  // This server's position in the sealed epoch; nothing while a log flush is about to decide it, or
  // if the epoch is not sealed.
  std::optional<SealAnswer> Sealed() const;

  // Changes to the next epoch, which may have other members, more or fewer, with room for
  // `window_extents` (as the constructor's). Drops the data and the PREPARE of a round that the new
  // epoch runs again, and the initial weights of incomplete extents, or of all extents when the
  // record says so. The seat of a slot after its Leave stays empty. Errors: INTERNAL when the
  // record contradicts this server's position; a server still in the round before adopts it later.
  absl::Status Adopt(const JobPlan& plan, uint32_t window_extents, Effects* effects);

  // Grows the job between rounds. Errors: FAILED_PRECONDITION LAYOUT_MISMATCH when a round is open
  // or the version is not the next one; CheckGrowth has the same errors and changes nothing.
  // `window_extents`: as the constructor's.
  absl::Status Extend(JobPlan plan, Layout layout, uint32_t window_extents);
  absl::Status CheckGrowth(const JobPlan& plan) const;

  Phase phase() const { return phase_; }
  uint64_t round() const { return round_; }
  const JobPlan& plan() const { return plan_; }
  const Layout& layout() const { return layout_; }
  const PolicyState& policy() const { return policy_; }
  const std::vector<uint64_t>& tensor_steps() const { return tensor_step_; }
  const std::vector<uint32_t>& owned() const { return owned_; }  // in push order
  uint32_t window_base() const { return window_base_; }
  bool sealed() const { return sealed_; }
  // This server's PREPARE of the previous round, if known.
  const std::optional<PreparedRecord>& last_prepared() const { return last_prepared_; }
  // Owned extents that still lack (part of) their initial weights.
  uint32_t init_missing() const { return init_missing_; }
  // Whether `slot` has begun the present round, and whether it was lost or has left.
  bool Begun(uint32_t slot) const { return slots_[slot].begun; }
  bool Gone(uint32_t slot) const { return slots_[slot].lost || slots_[slot].left; }
  bool Left(uint32_t slot) const { return slots_[slot].left; }
  // Whether any contributor has a gradient for `tensor` in the open round.
  bool PresentAnywhere(uint32_t tensor) const;
  bool Present(uint32_t slot, uint32_t tensor) const;
  // Per tensor: PresentAnywhere.
  std::vector<bool> PresentTensors() const;
  // Whether a server may still lack initial weights, or lose them again: no round has changed them.
  bool InitIsFresh() const {
    return init_missing_ != 0 || round_ == 1 || round_ == plan_.grown_round;
  }
  // Whether all initial weights of an owned extent are in.
  bool InitComplete(uint32_t extent) const { return init_.Complete(extent, 0); }
  // Whether a lost slot may open its stream again.
  bool MayReturn(uint32_t slot) const { return durable() && !slots_[slot].left; }
  // At the home: the user state of `slot` from the newest finished round; may be empty.
  std::string UserState(uint32_t slot) const;
  // This server's vote on `round`, if it has voted and still has the vote.
  std::optional<Vote> OwnVoteOn(uint64_t round) const;
  // The answer to `peer`, which has voted on `round`: OwnVoteOn. DATA_LOSS STATE_LOST when this
  // server has passed that round, for which it needed a later vote of that peer: the peer's disk
  // has lost that vote.
  VoteAnswer AnswerVote(uint64_t round, uint32_t peer) const;
  // Owned extents that need no further gradient frame from `slot` in the open round.
  std::vector<uint32_t> CompleteFor(uint32_t slot) const;
  // Owned extents that still lack (part of) their initial weights.
  std::vector<uint32_t> InitMissing() const;
  bool durable() const { return IsDurable(plan_); }

  // Contributors of an extent, ascending.
  const std::vector<uint32_t>& Contributors(uint32_t extent) const {
    return contributors_.Of(extent);
  }
  // Fills in everything but `state`, `state_bytes` and `open_streams`.
  void FillStatus(JobStatus* status) const;

 private:
  struct SlotState {
    bool member = false;  // else the seat is empty, and no round waits for it
    bool begun = false;
    bool lost = false;
    bool left = false;
    bool rested = false;  // its holder was a member when the job came to rest, and is still away
    bool growing = false;
    uint32_t owed = 0;  // owned extents it still owes in the open round
    RoundBegin begin;
    std::string why_lost;
  };
  using Handler = void (RoundFsm::*)(const Input&, Effects*);
  struct Transition {
    Phase phase;
    size_t input;  // index in Input
    Handler handler;
  };
  static const std::vector<Transition>& Table();

  void OnBegin(const Input& input, Effects* effects);
  void OnLateBegin(const Input& input, Effects* effects);
  void OnFrame(const Input& input, Effects* effects);
  void OnReduced(const Input& input, Effects* effects);
  void OnDurable(const Input& input, Effects* effects);
  void OnVote(const Input& input, Effects* effects);
  void OnStepped(const Input& input, Effects* effects);
  void OnSlotLost(const Input& input, Effects* effects);
  void OnSlotLeft(const Input& input, Effects* effects);
  void OnSlotGrows(const Input& input, Effects* effects);
  void OnSlotBack(const Input& input, Effects* effects);
  void OnSeal(const Input& input, Effects* effects);
  void OnFail(const Input& input, Effects* effects);
  void OnMeasured(const Input& input, Effects* effects);

  static std::vector<SlotState> SlotsOf(const EpochRecord& epoch);
  void SetPlan(JobPlan plan, Layout layout, uint32_t first_new_extent);
  void OpenInit(uint32_t extent);
  void DropInit(bool all);
  void ResetRound();
  absl::Status CheckBegin(uint32_t slot, const RoundBegin& begin) const;
  absl::Status CheckUpload(uint32_t slot, const RoundBegin& begin) const;
  // Whether the slot begins the round like the others: layout, upload and hyper-parameters.
  absl::Status CheckSameRound(uint32_t slot, const RoundBegin& begin) const;
  // Why the frame is refused, in this order; kUnspecified: it is not.
  Reason CheckFrame(const FrameHeader& frame, std::string* message) const;
  Reason CheckIdentity(const FrameHeader& frame, std::string* message) const;
  Reason CheckRound(const FrameHeader& frame, std::string* message) const;
  Reason CheckInitial(const FrameHeader& frame, std::string* message) const;
  Reason CheckGradient(const FrameHeader& frame, std::string* message) const;
  void SlotComplete(uint32_t position, uint32_t slot, Effects* effects);
  void ExtentComplete(uint32_t position, Effects* effects);
  void MarkReduced(const ReducedInput& reduced, Effects* effects);
  void MaybePrepare(Effects* effects);
  PreparedRecord MakePrepared() const;
  bool SameBegin(uint32_t slot, const RoundBegin& begin) const;
  void OpenRegisters(uint32_t slot, Effects* effects);
  Vote OwnVote() const;
  // `hyper` has one entry per group.
  std::vector<ScalarSet> VotedScalars(const std::vector<Hyper>& hyper) const;
  uint32_t ContributorDigest() const;
  void MaybeDecide(Effects* effects);
  void MaybeSettle(Effects* effects);
  void Conclude(Effects* effects);
  void CloseRound(Effects* effects);
  bool AllHaveLeft() const;
  void CheckSeats(Effects* effects);
  bool TooFewStay() const;
  void CheckGrowing(Effects* effects);
  void Fail(absl::Status status, Effects* effects);
  absl::Status Error(absl::StatusCode code, Reason reason, const std::string& message,
                     int slot = -1, int server = -1) const;

  static constexpr uint32_t kNotOwned = UINT32_MAX;

  JobPlan plan_;
  Layout layout_;
  const uint32_t self_;
  const uint32_t chunk_bytes_;
  uint32_t window_extents_;

  Phase phase_ = Phase::kIdle;
  uint64_t round_ = 1;
  bool sealed_ = false;
  PolicyState policy_;
  std::vector<uint64_t> tensor_step_;
  std::vector<uint32_t> owned_;     // extents, push order
  std::vector<uint32_t> position_;  // extent -> index in owned_, or UINT32_MAX
  std::vector<SlotState> slots_;
  Registers registers_;  // gradients of the open round
  ContributorTable contributors_;
  Registers init_;                 // initial weights, one pseudo-slot
  uint32_t init_missing_ = 0;      // owned extents without initial weights
  std::vector<uint32_t> pending_;  // per position: contributors that still owe it
  std::vector<uint8_t> reduced_;   // per position
  std::vector<ExtentNorm> norms_;  // per position
  uint64_t nonfinite_ = 0;
  Nonfinite first_nonfinite_;
  uint32_t reduced_count_ = 0;
  uint32_t window_base_ = 0;
  // The open round's once it is prepared, and the previous round's.
  std::optional<PreparedRecord> prepared_;
  std::optional<PreparedRecord> last_prepared_;
  std::map<uint32_t, Vote> votes_;
  Outcome outcome_;
  absl::Status failure_;
};

}  // namespace ballast::server
