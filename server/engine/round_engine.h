// RoundEngine drives one job's rounds at one server: it feeds the pure RoundFsm and carries out its
// effects on registers, kernels, log and sinks.
// Comes from: server/service (frames, begins, votes). Goes to: reduce, durability, optim, tier
// through the worker pool, and back to the sinks. docs/life-of-a-round.md follows a gradient
// through it. Thread safety: every public method may be called from any thread; it posts to the
// job's strand. Sinks are called on that strand.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/executor.h"
#include "common/base/executor_source.h"
#include "common/base/worker_pool.h"
#include "common/metrics/metrics.h"
#include "server/durability/job_storage.h"
#include "server/recovery/capture.h"
#include "server/round/job_plan.h"
#include "server/round/round_types.h"
#include "server/simd/isa.h"

namespace ballast::server {

struct EngineConfig {
  uint32_t self = 0;  // this server's id
  uint32_t chunk_bytes = 1 << 20;
  uint32_t window_extents = 64;  // registers per slot, in extents ahead of the slowest slot
  // A slot whose stream has not opened this long after the job began is lost.
  std::chrono::milliseconds open_timeout{10'000};
  // How long the process whose stream a new epoch closed keeps its seat to itself.
  std::chrono::milliseconds return_wait{2'500};
  // Silence after which a seat is free: for a newcomer, if its stream fell silent, and, in a
  // variable world, to be taken out of the job.
  std::chrono::milliseconds lease{10'000};
  // Durable jobs: an image of every extent is written once in this many rounds.
  uint32_t checkpoint_rounds = 4;
  // Durable jobs: how many extents are in memory at a time, the others being on disk only
  // (server/tier/nvme_tier.h). 0: all of them.
  uint32_t nvme_extents = 0;
  // For those: images that are read, and images that are written, at a time.
  int tier_threads = 2;
};

// Shared machinery of a server process; outlives every engine.
struct EngineDeps {
  Executor* executor = nullptr;
  WorkerPool* workers = nullptr;
  // Makes what the engine wants besides: for its disks, captures, recovery.
  ExecutorSource* executors = ThreadSource::Get();
  const Clock* clock = nullptr;
  simd::Isa isa = simd::Isa::kScalar;
  VoteSink* votes = nullptr;
  ServerMetrics* metrics = nullptr;  // may be null
  // A disk refused a write or a flush: the process must end (and start again). Empty: the job
  // fails.
  std::function<void(const absl::Status&)> storage_failed;
  // Counts the extents that recovery has brought back, as it goes. May be null.
  std::atomic<uint64_t>* recovered_extents = nullptr;
};

// How a durable job's files follow its growth. Called on the job's strand; may block on the disk.
struct GrowthFiles {
  // Files for the grown plan beside those in use.
  std::function<absl::StatusOr<std::unique_ptr<JobStorage>>(const JobPlan& plan)> make;
  // Makes the plan survive: from then on a restart uses the new files.
  std::function<absl::Status(const JobPlan& plan)> save;
  // The old ones are out of use.
  std::function<void(const JobPlan& plan)> drop_old;
};

// The process that opens a stream, and what it holds.
struct SlotHello {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  uint32_t epoch = 0;
  uint64_t round = 0;  // version of its weights; 0: it does not say
  Caller caller;
};

// Where it continues; docs/formats/wire.md, Welcome.
struct SlotWelcome {
  uint64_t round = 0;
  bool durable = false;  // a stream that ends may be resumed
  std::vector<uint32_t> complete;
  std::vector<uint32_t> init_missing;
};

// Whether a seat is in use, and whether anybody has a stream open, whatever their seat.
struct SeatUse {
  bool open = false;
  bool anybody = false;
};

class RoundEngine : public std::enable_shared_from_this<RoundEngine> {
 public:
  // Allocates the state. `plan` must be valid (ValidateJobSpec). A job whose durability is not
  // `none` needs `storage`, and continues where that ends; this then blocks for as long as the disk
  // takes. Errors: RESOURCE_EXHAUSTED; DATA_LOSS STATE_LOST.
  static absl::StatusOr<std::shared_ptr<RoundEngine>> Create(
      const JobPlan& plan, const EngineConfig& config, const EngineDeps& deps,
      std::unique_ptr<JobStorage> storage = nullptr);
  virtual ~RoundEngine() = default;

  // Begins. Peers that answer its votes must be able to find the engine by now.
  // `restarted`: the job was running when this server's last process ended; its trainers are on
  // their way back, and keep their seats for twice EngineConfig::return_wait: they may have to
  // notice its silence first.
  virtual void Start(bool restarted = false) = 0;
  // The trainers are told of their seats now: one that opens no stream within open_timeout is lost.
  // Implied by the first stream.
  virtual void ExpectSlots() = 0;

  // A slot's stream opened. `done` is called with where it continues, or with WRONG_INCARNATION,
  // STALE_EPOCH, WRONG_VERSION, JOB_FAILED ...; the sink is used until SlotLost or Leave. In a
  // durable job a new stream of the same process takes the old one's place.
  virtual void AttachSlot(const SlotHello& hello, std::shared_ptr<SlotSink> sink,
                          std::function<void(absl::StatusOr<SlotWelcome>)> done) = 0;
  // The stream behind `sink` ended without a Leave. `why` is for the error text. `silent_for`: it
  // did not end, but was silent for that time; the process may live, and holds its seat until
  // its lease runs out.
  virtual void SlotLost(uint32_t slot, const SlotSink* sink, std::string why,
                        std::chrono::nanoseconds silent_for = {}) = 0;
  virtual void Begin(uint32_t slot, RoundBegin begin) = 0;
  // One frame; `payload` has frame.length_bytes bytes and is let go once they count as received.
  // Refusals, of a damaged frame too, go to the slot's sink.
  virtual void Frame(const FrameHeader& frame, Payload payload) = 0;
  // The process takes no further round. Not heard of one that does not hold the slot.
  virtual void Leave(uint32_t slot, uint64_t incarnation) = 0;
  // Streams state of version `round` to the slot: StateInfo first, then extents.
  virtual void FetchState(uint32_t slot, uint64_t round, bool weights,
                          std::vector<uint32_t> arrays) = 0;
  // A peer's vote. `answer` gets this server's own vote on that round if it has given one: a peer
  // that was restarted asks so. STATE_LOST for a round that is too long ago.
  virtual void PeerVote(uint32_t epoch, uint64_t round, Vote vote,
                        std::function<void(const VoteAnswer&)> answer) = 0;
  // A peer has answered this server's vote on `round` with STATE_LOST. Fails the job if it waits in
  // that round; else the question was a late one.
  virtual void VoteRefused(uint64_t round, absl::Status why) = 0;
  virtual void PeerLost(uint32_t server, std::string why) = 0;
  // Epoch change (server/home/epoch_change.h). Seal: no round of `epoch` is prepared any more;
  // `done` gets where this server stands. Adopt: goes over to the next epoch as soon as the round
  // before it is over; then all streams are told STALE_EPOCH and `done` runs. `save` must make the
  // plan survive, and is called on the strand before anything is answered. `window_extents`: what
  // the new world leaves room for. Both may be repeated.
  virtual void Seal(uint32_t epoch, std::function<absl::Status(const JobPlan& sealed)> save,
                    std::function<void(absl::StatusOr<SealAnswer>)> done) = 0;
  virtual void Adopt(JobPlan plan, uint32_t window_extents, std::function<absl::Status()> save,
                     std::function<void(absl::Status)> done) = 0;
  // Whether a process holds the slot's stream open, was told of a new epoch just now and is
  // expected back (EngineConfig::return_wait), or fell silent and still has its lease.
  virtual void SlotOpen(uint32_t slot, std::function<void(SeatUse)> done) = 0;
  // `callback` is called (on the strand) when a member has left (`left`), or has been away for its
  // lease. If a member stays away, it is called again after each change of epoch. Set once, before
  // Start.
  using SeatFree = std::function<void(uint32_t slot, uint64_t incarnation, bool left)>;
  virtual void OnSeatFree(SeatFree callback) = 0;

  // At the home: what the slot's next process begins with.
  virtual void StateOfSeat(uint32_t slot, std::function<void(SeatState)> done) = 0;

  // The slot waits at the home to add groups before its next round; or does so no more.
  virtual void SlotGrows(uint32_t slot, bool grows) = 0;
  // A grown plan (same job, next layout version); between rounds only. A durable job grows in two
  // steps, each of which may be repeated: with JobPlan::growing room is made for it on disk,
  // without it the job is grown, and stays so. `window_extents`: what the grown job has room for.
  // `files` is for durable jobs. Errors: LAYOUT_MISMATCH; OVER_BUDGET, and then nothing has
  // changed.
  virtual void Extend(JobPlan plan, uint32_t window_extents, GrowthFiles files,
                      std::function<void(absl::Status)> done) = 0;
  // What the status page shows of the job at this server. `done` runs on the strand, once what was
  // asked of the engine before has run.
  virtual void Status(std::function<void(JobStatus)> done) = 0;
  // What a snapshot is made of, in three calls at every server of the job. HoldState keeps what is
  // on disk as it is, in no time, until ReleaseState or the end of CaptureState; `done` gets the
  // first round whose beginning this server can tell. CaptureState, with the largest of those
  // rounds, hands the state that this round begins with to `take`, on a thread of its own, once the
  // round has begun; beside it rounds continue. ReleaseState breaks it off. `done` runs on any
  // thread. Errors: UNIMPLEMENTED UNSUPPORTED: the job has durability none. FAILED_PRECONDITION
  // JOB_BUSY: first weights are missing; nothing is held. NOT_FOUND: an extent is not on disk yet.
  // ABORTED: rounds needed the room, the job has grown, or the state was held for an earlier
  // snapshot, which gives way; to be begun again. Those of `take` and of the disk.
  virtual void HoldState(std::function<void(absl::StatusOr<uint64_t> round)> done) = 0;
  virtual void CaptureState(uint64_t round, TakeExtent take,
                            std::function<void(absl::StatusOr<CapturedRound>)> done) = 0;
  virtual void ReleaseState() = 0;
  // Fails the job with `status` (server shutdown, directory decision).
  virtual void Fail(absl::Status status) = 0;
  // Likewise, unless a trainer has had a stream here since Start.
  virtual void FailUnopened(absl::Status status) = 0;
  // Called (on the strand) once when every slot has left (JOB_FINISHED) or the job has failed; with
  // the error that later calls get, and the next round.
  virtual void OnEnd(std::function<void(const absl::Status& why, uint64_t round)> callback) = 0;

  virtual uint64_t job() const = 0;
  virtual uint32_t window_extents() const = 0;
};

}  // namespace ballast::server
