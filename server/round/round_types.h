// Types that cross the border of the round room: input from streams and peers, and the answers.
// Protobuf-free and byte-free apart from Payload.
// Comes from: server/rpc. Goes to: RoundFsm, RoundEngine. Thread safety: plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/reason.h"
#include "common/bytes/payload.h"
#include "common/job/contributors.h"
#include "common/job/decide.h"
#include "common/job/frame_header.h"
#include "common/job/job_spec.h"
#include "common/job/round_result.h"
#include "common/security/caller.h"
#include "server/round/round_history.h"

namespace ballast::server {

struct Member {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  // The identity that attached, as its URI; empty: no identity is needed to use the seat.
  std::string identity;

  // Whether the seat belongs to this caller, provided the incarnation matches.
  bool BelongsTo(const Caller& caller) const {
    return !caller.secured || identity.empty() || identity == caller.uri();
  }
};

// The immutable fencing record, and the only source of the number of participants: a job with a
// variable world has empty seats.
struct EpochRecord {
  uint32_t epoch = 1;
  uint64_t start_round = 1;
  std::vector<Member> members;               // ascending slot, at least one
  std::vector<ContributorSet> contributors;  // one per group
  // A new process uploads the initial weights, and some server lacks part of the old one's: all are
  // dropped, so that the weights of two processes are never mixed.
  bool init_again = false;
  // In a variable world: no later epoch has fewer members. The job waits for a lost trainer when
  // too few would remain.
  uint32_t min_world = 1;

  uint32_t world() const { return static_cast<uint32_t>(members.size()); }
  // Slots are below this; some of them may be empty.
  uint32_t seats() const { return members.empty() ? 0 : members.back().slot + 1; }
  // The lowest slot: its trainer uploads initial weights.
  uint32_t lead_trainer() const { return members.front().slot; }
  // The member that holds the slot, or null.
  const Member* Find(uint32_t slot) const {
    const auto it = std::lower_bound(members.begin(), members.end(), slot,
                                     [](const Member& m, uint32_t s) { return m.slot < s; });
    return it != members.end() && it->slot == slot ? &*it : nullptr;
  }
  bool Holds(uint32_t slot, uint64_t incarnation) const {
    const Member* const member = Find(slot);
    return member != nullptr && member->incarnation == incarnation;
  }
};

// Which attempt of its home to make a job a plan comes from.
struct MakingAttempt {
  uint64_t home = 0;    // incarnation of the home's process; 0: not known
  uint64_t number = 0;  // grows with every attempt of that process, for whatever job

  // Whether both are of one process and this one is the later. The order of two processes is not
  // known.
  bool IsAfter(const MakingAttempt& other) const {
    return home != 0 && home == other.home && number > other.number;
  }
};

// Everything a server needs to run its share of a job. Equal on all servers of the job.
struct JobPlan {
  uint64_t job = 0;
  JobSpec spec;
  EpochRecord epoch;
  std::vector<uint32_t> servers;  // ids, ascending; the first is the home and the lead server
  std::vector<uint32_t> owner;    // server id per extent
  uint32_t layout_version = 1;
  uint32_t sealed_epoch = 0;   // this server promised to prepare no further round of this epoch
  bool resting = false;        // on disk only: the job ended, and waits to be continued
  uint64_t resting_round = 0;  // while resting: the next round
  // On the home's disk: not every server has made the job yet. In a plan sent to a server: the
  // server makes the job if it has no files. Without it, missing files are lost files.
  bool making = false;
  // Of a grown durable job: the round before which it last grew, and its number of tensors then.
  uint64_t grown_round = 0;
  uint32_t tensors_before = 0;
  bool growing = false;  // on the wire only: make room for this plan; it comes again to take effect
  std::string tenant = kDefaultTenant;  // owner of the job
  MakingAttempt attempt;  // unset in a restored job, and in one that an older home has made

  QualifiedName name() const { return {tenant, spec.name}; }
};

inline bool IsDurable(const JobPlan& plan) { return IsDurable(plan.spec); }

// A server's answer to a peer's vote: its own vote on that round, if it still has one. STATE_LOST:
// see RoundFsm::AnswerVote.
using VoteAnswer = absl::StatusOr<std::optional<Vote>>;

// The home's request that a server leave an epoch.
struct SealCall {
  uint64_t job = 0;
  uint32_t epoch = 0;  // of which the server prepares no round any more
  // How many trainers the next epoch wants. The server keeps room for them, as far as it has that,
  // until it adopts the next epoch or the job ends; the newest call counts. 0: it keeps nothing.
  uint32_t world = 0;
};

// A server's position when it seals an epoch.
struct SealAnswer {
  uint64_t version = 0;             // the open round
  bool prepared = false;            // it has voted on that round
  bool init_missing = false;        // it lacks (part of the) initial weights
  uint32_t world_max = UINT32_MAX;  // the most trainers that the next epoch may have there
  // OVER_QUOTA when a quota makes world_max smaller than the home wants.
  absl::Status refusal;
};

struct RoundBegin {
  uint64_t round = 0;
  uint32_t layout_version = 0;
  std::vector<Hyper> hyper;  // one per group
  // One per tensor, followed by up to 7 times false; empty: every tensor has a gradient.
  std::vector<bool> presence;
  std::string user_state;  // to the home: lets the slot's script continue after the round
  // The round replaces weights, or a plane of the state: the epoch's lead trainer pushes all of its
  // own in place of gradients, without hyper-parameters. Presence is empty, or with a low plane
  // names the tensors with a low plane.
  UploadPlane upload = UploadPlane::kNone;
  // With `upload`: CRC32C of the slot's own copy of each tensor, which must equal the others';
  // empty: it accepts the lead trainer's data unchecked.
  std::vector<uint32_t> weight_crc32c;
  std::optional<StepCounts> steps;  // with a state plane: the job's counts from this round on
  // Factor of the loss from which the slot's gradients come; 0: not given.
  double loss_scale = 0;
  // With reduced gradients: CRC32C of the slot's gradient of each tensor, which must equal the
  // others'. Empty: not compared in this round.
  std::vector<uint32_t> gradient_crc32c;
};

// Report of a policy state of version 2 to a trainer: the state at the beginning of the next round.
struct PolicyReport {
  PolicyState state;
  Nonfinite why_skipped;  // of the newest decision, if that was not applied
};

// Initial information for a trainer that takes its seat.
struct SeatState {
  std::string user_state;  // from the slot's last process, with the newest finished round
  std::optional<PolicyReport> policy;
};

// News of another trainer of a durable job.
struct TrainerNews {
  uint32_t slot = 0;
  bool away = false;  // else it is back
  std::string why;
  uint64_t lease_left_ms = 0;  // when away
};

struct RoundDone {
  uint64_t round = 0;
  uint64_t step_ns = 0;
  uint64_t weight_overflows = 0;
};

struct Ack {
  uint64_t round = 0;  // open or next round
  uint32_t window_base = 0;
  uint64_t durable_round = 0;
  uint64_t applied_round = 0;
  bool flush = false;  // must reach the client now; else the stream may merge it
};

struct FrameRefused {
  Reason reason = Reason::kUnspecified;
  uint64_t round = 0;
  uint32_t extent = 0;
  uint32_t offset_bytes = 0;
  std::string message;
};

struct StateInfo {
  uint64_t round = 0;
  uint64_t bytes = 0;
  std::vector<uint64_t> tensor_step;
  uint64_t opt_step = 0;
  std::optional<PolicyReport> policy;
};

// Refcounted bytes on their way out; the memory stays valid as long as a copy of `owner` lives.
struct OutBytes {
  const char* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<const void> owner;
};

// Weights or state of `extent`, starting `offset_bytes` from the extent's start (in `dtype`).
struct OutPiece {
  FrameKind kind = FrameKind::kWeight;
  uint8_t array = 0;  // state array, for kState
  uint64_t round = 0;
  uint32_t extent = 0;
  DType dtype = DType::kF32;
  uint32_t offset_bytes = 0;
  OutBytes bytes;
};

// Where a slot's answers go: the stream of its trainer. Implemented in server/rpc.
// Every call is made on the job's strand; calls must not block and must not call back.
class SlotSink {
 public:
  virtual ~SlotSink() = default;
  // Progress. The stream adds `received_bytes` itself and may merge acks that lack `flush`.
  virtual void OnAck(const Ack& ack) = 0;
  virtual void OnResult(const RoundResult& result) = 0;
  // A piece of an extent's weights (version `round`) or of one of its state arrays; the stream
  // cuts it into frames of at most one chunk and fills in the slot's identity.
  virtual void OnExtent(const OutPiece& piece) = 0;
  virtual void OnDone(const RoundDone& done) = 0;
  virtual void OnRefused(const FrameRefused& refused) = 0;
  virtual void OnState(const StateInfo& info) = 0;
  // Another trainer is away, or back.
  virtual void OnTrainer(const TrainerNews&) {}
  // The slot's calls cannot succeed any more (the status payload has the reason, and the process it
  // concerns).
  virtual void OnError(const absl::Status& status) = 0;
};

// Where votes go: the peers. Implemented in server/rpc. Called on the job's strand; never blocks.
class VoteSink {
 public:
  virtual ~VoteSink() = default;
  // Offers the vote to the server until that has it, a newer vote of the job replaces it, or
  // DropVotes.
  virtual void SendVote(uint64_t job, uint32_t epoch, uint64_t round, uint32_t to_server,
                        const Vote& vote) = 0;
  // The job is over.
  virtual void DropVotes(uint64_t job) = 0;
};

// For /statusz and `ballastctl status`.
struct SlotStatus {
  uint32_t slot = 0;
  std::string state;  // absent | attached | pushing | done | left | lost
  uint64_t owed_extents = 0;
  uint32_t first_owed = 0;
};

struct JobStatus {
  std::string name;
  std::string tenant = kDefaultTenant;
  uint64_t job = 0;
  std::string state;  // attaching | running | failed | finished | damaged | unopened
  uint64_t round = 0;
  std::string phase;  // idle | collect | prepared | applying
  uint64_t opt_step = 0;
  uint32_t world = 0;
  uint32_t extents = 0;
  uint32_t owned_extents = 0;
  uint64_t state_bytes = 0;
  uint64_t parameters = 0;
  std::vector<SlotStatus> slots;
  std::vector<uint32_t> votes_missing;
  uint32_t open_streams = 0;
  std::string error;
  std::string tier;                   // dram | nvme: where this server's share of the state is
  std::vector<FinishedRound> rounds;  // oldest first
  uint64_t now_ns = 0;                // by the clock of FinishedRound::ended_ns
};

}  // namespace ballast::server
