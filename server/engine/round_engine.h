// RoundEngine drives one job's rounds at one server. These are all calls to it, by the part that
// answers them:
//
//   RoundEngine    rounds, votes, views, the end: RoundDriver
//   TrainerCalls   streams and seats of trainers: TrainerSessions
//   ChangeCalls    changes of the job's plan, which are new epochs and growth: PlanChanges
//   CaptureCalls   the state for a snapshot: StateCaptures
//
// Comes from: server/service (frames, begins, votes), server/jobs, server/home, server/operator.
// Goes to: RoundFsm, and by its effects to reduce, durability, optim, tier through the worker pool,
// and back to the sinks. docs/life-of-a-round.md follows a gradient through it.
// Thread safety: every call may come from any thread. It is answered on the job's strand, in the
// order of the calls, and so are the sinks called. Callers keep the engine, whose parts these are.
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
#include "common/metrics/metrics.h"
#include "common/threads/executor.h"
#include "common/threads/executor_source.h"
#include "common/threads/worker_pool.h"
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
  // How long a process keeps its seat to itself after a new epoch closed its stream.
  std::chrono::milliseconds return_wait{2'500};
  // Silence after which a seat is free: for a newcomer, and in a variable world for removal from
  // the job.
  std::chrono::milliseconds lease{10'000};
  // Durable jobs: an image of every extent is written once in this many rounds.
  uint32_t checkpoint_rounds = 4;
  // Durable jobs: number of extents in memory at a time, while the others are only on disk
  // (server/tier/nvme_tier.h). 0: all of them.
  uint32_t nvme_extents = 0;
  // With nvme_extents: images read at a time, and images written at a time.
  int tier_threads = 2;
};

// Shared machinery of a server process; outlives every engine.
struct EngineDeps {
  Executor* executor = nullptr;
  WorkerPool* workers = nullptr;
  // Makes further executors, for the engine's disks, captures and recovery.
  ExecutorSource* executors = ThreadSource::Get();
  const Clock* clock = nullptr;
  simd::Isa isa = simd::Isa::kScalar;
  VoteSink* votes = nullptr;
  ServerMetrics* metrics = nullptr;  // may be null
  // A write or flush failed: the process must end (and start again). Empty: the job fails.
  std::function<void(const absl::Status&)> storage_failed;
  // Counts the extents recovered so far. May be null.
  std::atomic<uint64_t>* recovered_extents = nullptr;
};

// The process that opens a stream, and the version it has.
struct SlotHello {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  uint32_t epoch = 0;
  uint64_t round = 0;  // version of its weights; 0: not given
  Caller caller;
};

// Where it continues; docs/formats/wire.md, Welcome.
struct SlotWelcome {
  uint64_t round = 0;
  bool durable = false;  // a broken stream may be resumed
  std::vector<uint32_t> complete;
  std::vector<uint32_t> init_missing;
};

// A stream has ended without a Leave.
struct SlotLoss {
  uint32_t slot = 0;
  const SlotSink* sink = nullptr;  // the stream's; only compared
  std::string why;                 // for the error text
  // Not 0: the stream did not end, but was silent for this time. The process may live, and keeps
  // its seat until its lease runs out.
  std::chrono::nanoseconds silent_for{0};
};

// A trainer asks for the state of version `round`.
struct StateFetch {
  uint32_t slot = 0;
  uint64_t round = 0;
  bool weights = false;
  std::vector<uint32_t> arrays;  // of the state
};

// Whether a seat is in use, and whether any seat has an open stream.
struct SeatUse {
  bool open = false;
  bool anybody = false;
};

class TrainerCalls {
 public:
  // The trainers learn their seats now: a trainer that opens no stream within open_timeout is lost.
  // Implied by the first stream.
  virtual void ExpectSlots() = 0;
  // A slot's stream opened. `done` gets the point where it continues, or WRONG_INCARNATION,
  // STALE_EPOCH, WRONG_VERSION, JOB_FAILED ...; the sink is used until SlotLost or Leave. In a
  // durable job a new stream of the same process replaces the old one.
  virtual void AttachSlot(const SlotHello& hello, std::shared_ptr<SlotSink> sink,
                          std::function<void(absl::StatusOr<SlotWelcome>)> done) = 0;
  // Ignored unless `loss.sink` is the slot's present stream.
  virtual void SlotLost(SlotLoss loss) = 0;
  // The process takes no further round. Ignored unless it holds the slot.
  virtual void Leave(uint32_t slot, uint64_t incarnation) = 0;
  // Streams the state to the slot: StateInfo first, then extents.
  virtual void FetchState(StateFetch fetch) = 0;
  // Whether a process holds the slot's stream open, has just learned of a new epoch and should
  // return (EngineConfig::return_wait), or fell silent and still has its lease.
  virtual void SlotOpen(uint32_t slot, std::function<void(SeatUse)> done) = 0;
  // At the home: the initial information for the slot's next process.
  virtual void StateOfSeat(uint32_t slot, std::function<void(SeatState)> done) = 0;
  // `callback` is called (on the strand) when a member has left (`left`), or has been away for its
  // lease. If a member stays away, it is called again after each change of epoch. Set once, before
  // Start.
  using SeatFree = std::function<void(uint32_t slot, uint64_t incarnation, bool left)>;
  virtual void OnSeatFree(SeatFree callback) = 0;

 protected:
  ~TrainerCalls() = default;
};

// The next epoch of a job.
struct Adoption {
  JobPlan plan;
  uint32_t window_extents = 0;  // the window for which the new world leaves room
  // Makes the plan durable. Called on the strand before any answer.
  std::function<absl::Status()> save;
  std::function<void(absl::Status)> done;
};

// How a durable job's files follow its growth. Called on the job's strand; may block on the disk.
struct GrowthFiles {
  // Makes files for the grown plan, next to those in use.
  std::function<absl::StatusOr<std::unique_ptr<JobStorage>>(const JobPlan& plan)> make;
  // Makes the plan durable: from then on a restart uses the new files.
  std::function<absl::Status(const JobPlan& plan)> save;
  // The old ones are out of use.
  std::function<void(const JobPlan& plan)> drop_old;
};

// A grown plan: same job, next layout version.
struct Extension {
  JobPlan plan;
  uint32_t window_extents = 0;  // the window that fits the grown job
  GrowthFiles files;            // of durable jobs
  std::function<void(absl::Status)> done;
};

// Epoch change (server/home/epoch_change.h) and growth. All may be repeated.
class ChangeCalls {
 public:
  // No round of `epoch` is prepared any more; `done` gets this server's position. `save` must make
  // the plan durable, and is called on the strand before the answer.
  virtual void Seal(uint32_t epoch, std::function<absl::Status(const JobPlan& sealed)> save,
                    std::function<void(absl::StatusOr<SealAnswer>)> done) = 0;
  // Changes to the next epoch as soon as the round before it is over; then all streams get
  // STALE_EPOCH and `done` runs.
  virtual void Adopt(Adoption adoption) = 0;
  // Between rounds only. A durable job grows in two steps: with JobPlan::growing room is made for
  // it on disk, without it the job is grown for good. Errors: LAYOUT_MISMATCH; OVER_BUDGET, and
  // then nothing has changed.
  virtual void Extend(Extension extension) = 0;
  // At the home: the slot waits to add groups before its next round, or has stopped waiting.
  virtual void SlotGrows(uint32_t slot, bool grows) = 0;

 protected:
  ~ChangeCalls() = default;
};

// The state for a snapshot, in three calls at every server of the job. Errors: UNIMPLEMENTED
// UNSUPPORTED: the job has durability none. FAILED_PRECONDITION JOB_BUSY: initial weights are
// missing; nothing is held. NOT_FOUND: an extent is not on disk yet. ABORTED: rounds needed the
// room, the job has grown, or the state was held for an earlier snapshot, which gives way; begin
// again. Those of `take` and of the disk.
class CaptureCalls {
 public:
  using Held = std::function<void(absl::StatusOr<uint64_t> round)>;
  using Captured = std::function<void(absl::StatusOr<CapturedRound>)>;

  // Keeps the files' present content, which takes no time, until ReleaseState or the end of
  // CaptureState. `done` gets the first round whose beginning this server can give.
  virtual void HoldState(Held done) = 0;
  // With the largest of those rounds: hands the state at the beginning of that round to `take`, on
  // a separate thread, once the round has begun; rounds continue meanwhile. `done` runs on any
  // thread.
  virtual void CaptureState(uint64_t round, TakeExtent take, Captured done) = 0;
  // Breaks it off.
  virtual void ReleaseState() = 0;

 protected:
  ~CaptureCalls() = default;
};

class RoundEngine : public std::enable_shared_from_this<RoundEngine> {
 public:
  // Allocates the state. `plan` must be valid (ValidateJobSpec). A job whose durability is not
  // `none` needs `storage`, and continues where that ends; the call then blocks on the disk.
  // Errors: RESOURCE_EXHAUSTED; DATA_LOSS STATE_LOST.
  static absl::StatusOr<std::shared_ptr<RoundEngine>> Create(
      const JobPlan& plan, const EngineConfig& config, const EngineDeps& deps,
      std::unique_ptr<JobStorage> storage = nullptr);
  virtual ~RoundEngine() = default;

  // The other parts of the engine, which live as long as it does.
  virtual TrainerCalls& trainers() = 0;
  virtual ChangeCalls& changes() = 0;
  virtual CaptureCalls& captures() = 0;

  // Begins. Peers that answer its votes must be able to find the engine by now.
  // `restarted`: the job was running when this server's last process ended. Its trainers return,
  // and keep their seats for twice EngineConfig::return_wait: they may have to notice the silence
  // first.
  virtual void Start(bool restarted = false) = 0;

  virtual void Begin(uint32_t slot, RoundBegin begin) = 0;
  // One frame; `payload` has frame.length_bytes bytes and is released once they count as received.
  // Refusals, also of damaged frames, go to the slot's sink.
  virtual void Frame(const FrameHeader& frame, Payload payload) = 0;
  // A peer's vote. `answer` gets this server's own vote on that round if there is one: a restarted
  // peer asks in this way. STATE_LOST for a round too long ago.
  virtual void PeerVote(uint32_t epoch, uint64_t round, Vote vote,
                        std::function<void(const VoteAnswer&)> answer) = 0;
  // A peer has answered this server's vote on `round` with STATE_LOST. Fails the job if it waits in
  // that round; else the vote was late, and nothing happens.
  virtual void VoteRefused(uint64_t round, absl::Status why) = 0;
  virtual void PeerLost(uint32_t server, std::string why) = 0;

  // The job's part of this server's status page. `done` runs on the strand, after all earlier calls
  // of the engine.
  virtual void Status(std::function<void(JobStatus)> done) = 0;

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
