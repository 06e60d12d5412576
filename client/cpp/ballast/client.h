// Ballast's C++ client: attach a trainer to a job, push gradients, receive stepped weights.
// Comes from: a training program (or the Python module). Goes to: every state server of the job.
// A job is durable when JobOptions::durability is kPower or kProcess.
// When a server goes away: a durable job pauses. Calls wait, report to JobOptions::on_pause,
// reconnect, send the missing frames again from the caller's buffers, and continue; the result has
// the same bits. After JobOptions::reconnect_timeout they return SERVER_LOST. With kNone a lost
// server ends the job.
// When a trainer goes away: in a durable job a new process may take its slot with
// JobOptions::resume. It receives the weights and continues where the job stands; the other
// trainers pause and lose nothing. A process whose slot was taken ends with WRONG_INCARNATION.
// Words: a slot is the number of a trainer's seat; the lead trainer has the lowest slot that takes
// part. The home is the job's server with the lowest id.
// C++17-clean: a torch extension may still be compiled as C++17. Thread safety: one thread at a
// time uses a Client; any thread may call Abort().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/counters.h"
#include "ballast/dealt.h"
#include "ballast/error.h"
#include "ballast/gpu.h"
#include "ballast/hyper.h"
#include "ballast/job_settings.h"
#include "ballast/policy.h"
#include "ballast/rendezvous.h"
#include "ballast/security.h"
#include "ballast/types.h"

namespace ballast::client {

using ::ballast::Device;
using ::ballast::DType;
using ::ballast::Durability;
using ::ballast::InitMode;
using ::ballast::kUserStateBytesMax;
using ::ballast::NonfinitePolicy;
using ::ballast::Resume;

// A named parameter. Its gradient and weight are contiguous row-major arrays of `dtype`.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;
  uint32_t group = 0;
  std::vector<std::string> aliases;  // other names of the same storage (tied weights)
};

// Pause::server while an attach does not know the id of the server at Pause::address.
inline constexpr uint32_t kServerUnknown = UINT32_MAX;

// News of a server outage, or of a change of trainers. Times count from the moment the client
// noticed.
struct Pause {
  enum class Kind {
    // A server's stream broke, or the server fell silent; the client tries to reach it again.
    // During an attach: the attach has waited for the server for 3 s.
    kLost,
    // The server is still away; every 5 s.
    kWaiting,
    // The server is back; the client sends the frames it lacks.
    kBack,
    // `slots` get new processes, in `epoch`. Every 5 s with epoch 0 until the job's home names the
    // slots.
    kReplacing,
    // Every reachable server has taken this trainer into the new epoch.
    kReplaced,
    // The trainer in `slots` is away. Rounds wait for it until its lease is over, in a fixed world
    // until a process takes its seat. At once when the process ended; after the servers'
    // report_after when it hangs or is out of reach.
    kTrainerLost,
    // The same process is back.
    kTrainerBack,
  };
  Kind kind = Kind::kLost;
  uint32_t server = 0;               // id of the server; in news of trainers: of the job's home
  std::string address;               // empty while an attach does not know it
  uint64_t round = 0;                // the running round, or the next one; 0: attaching
  std::chrono::nanoseconds away{0};  // so far; kBack, kReplaced: in all
  std::string error;                 // why it was lost, or why the last try to reach it failed
  uint32_t epoch = 0;                // kReplacing, kReplaced: the job's new one
  std::vector<uint32_t> slots;       // with a new process, ascending; or the slot away or back
  std::vector<uint32_t> joined;      // kReplacing, kReplaced: those of `slots` empty before
  std::vector<uint32_t> left;        // kReplacing, kReplaced: now empty slots, ascending
  uint32_t world = 0;                // likewise: trainers from now on
};

// Everything about a job and this trainer's part in it. The base JobSettings has the options that
// the servers know, too (ballast/job_settings.h).
struct JobOptions : Servers, JobSettings {
  JobOptions() = default;
  JobOptions(Servers servers, std::string name)
      : Servers(std::move(servers)), job(std::move(name)) {}

  std::string job;    // name, [A-Za-z0-9][A-Za-z0-9._-]{0,127}
  uint32_t slot = 0;  // this trainer's seat, 0..world-1
  // The optimizer, as docs/optimizers.md lists them: "AdamW", "SGD", ...
  std::string optimizer = "AdamW";
  // Its options by name, fixed for the life of the job. Options left out have their defaults.
  std::map<std::string, double> optimizer_options;
  PolicyOptions policy;  // a dynamic loss scale in place of loss_scale; a schedule of rates
  InitMode init = InitMode::kEqual;
  std::chrono::milliseconds attach_timeout = std::chrono::minutes(10);
  double time_scale = 1;  // stretches failure-detection times (sanitizer runs)
  // While Attach waits, it calls this about ten times a second, on its thread; true ends the attach
  // with CANCELLED. For callers that poll for signals. May be empty.
  std::function<bool()> should_stop;
  // How long a server of a durable job may be away before the call that waits for it fails with
  // SERVER_LOST. time_scale stretches it.
  std::chrono::milliseconds reconnect_timeout = std::chrono::minutes(10);
  // Whether this process may continue an existing job, in place of a process that ended or died.
  // Durable jobs only: with Durability::kNone, kAuto acts as kNever, and kMust is an error.
  Resume resume = Resume::kNever;
  // Smallest world of a variable one, at most `world`. A job without trainers restarts when `world`
  // trainers have attached, or after `timing.lease` with those attached by then, if at least
  // `min_world`. After a loss the others continue only if at least `min_world` are left. The value
  // of the newest trainers counts, as soon as that many take part.
  uint32_t min_world = 1;
  // Receives the news. Attach, Step, Wait and fetches call it on their thread, without a lock; it
  // also gets the news that came between two calls, at most the newest 64. It may call Abort.
  // Empty: the news is logged.
  std::function<void(const Pause&)> on_pause;
};

// Memory of one tensor for one call, of the host or the GPU, contiguous and of the
// tensor's dtype and shape. The caller owns it. Until the call (or the Wait that ends it) has
// returned, gradients stay valid and unchanged, and the caller does not read weights.
struct TensorBuffers {
  const void* grad = nullptr;  // null: no gradient this round
  void* weight = nullptr;      // in: initial weights at Attach; out: stepped weights
};

struct RoundReport {
  uint64_t round = 0;
  bool applied = false;  // false: skipped because of non-finite gradients
  double grad_norm = 0;  // global 2-norm of the unscaled mean gradient
  double clip_coef = 1;
  double loss_scale = 1;           // for the next round
  Policy policy;                   // after the round
  uint64_t opt_step = 0;           // applied rounds so far
  uint64_t nonfinite = 0;          // NaN or Inf elements in the gradients' sum
  uint64_t consecutive_skips = 0;  // unapplied rounds in a row, including this one
  // When the round was not applied: tensor, index and slot of the first non-finite value, in the
  // order of the job's tensors, as text; the same on every trainer.
  std::string nonfinite_element;
  uint64_t weight_overflows = 0;  // finite masters that overflow to Inf as weights
  uint64_t bytes_up = 0;          // payload pushed this round, repeated frames included
  uint64_t bytes_down = 0;        // payload of the weights, each counted once
  // Wall time at this client: push, first byte out to last ack in; wait, from there to the last
  // result; pull, from there to the last weight. The other three are phases of a server, the
  // maximum over all servers.
  uint64_t push_ns = 0;
  uint64_t wait_ns = 0;
  uint64_t pull_ns = 0;
  uint64_t collect_ns = 0;
  uint64_t vote_ns = 0;
  uint64_t step_ns = 0;
  // Part of this round in which a server was away, or trainers changed.
  uint64_t paused_ns = 0;
  uint32_t reconnects = 0;  // times a server came back since the end of the round before
  uint32_t world = 0;       // trainers whose gradients were averaged
};

// The part of an optimizer state that one round imports: a plane of one state array, with as many
// bits per element as the tensor's dtype has: all 32 of an fp32 tensor, the high or the low half of
// a bf16 or fp16 tensor.
struct StateUpload {
  uint32_t array = 0;  // position in Client::state_arrays()
  bool low = false;    // the low half, which fp32 tensors do not have
  // Steps taken so far, per tensor, and by the job; at most 2^53. Empty: all step counts stay. With
  // them, where the job has a schedule, the position of its next round, from -1, the beginning.
  std::vector<uint64_t> tensor_step;
  uint64_t opt_step = 0;
  std::optional<int64_t> schedule_index;
};

// Memory for the fp32 state of one tensor, in the order of Client::state_arrays(): numel floats per
// array. The caller owns it. A null or missing entry skips its array.
struct StateBuffers {
  std::vector<float*> arrays;
};

class Client {
 public:
  virtual ~Client() = default;

  // Attaches to the job, and creates it if this is the first trainer; waits for the other trainers.
  // Then uploads the initial weights (lead trainer) or receives them (InitMode::kBroadcast).
  // `buffers[i].weight` belongs to `tensors[i]`, and is lent until the return. `gpu` is set when
  // some tensors are on a GPU.
  // With JobOptions::resume, when the job exists: takes the place of the slot's last process, and
  // receives every weight from the servers, overwriting `buffers`. If that process died early, the
  // lead trainer first uploads the initial weights that the servers lack. Then resumed() is true,
  // and round() is the job's next round. Errors: INVALID_ARGUMENT BAD_SPEC | BAD_ARGUMENT;
  // FAILED_PRECONDITION SPEC_MISMATCH, INIT_MISMATCH (names the first tensor), PROTOCOL_MISMATCH;
  // ALREADY_EXISTS NAME_IN_USE, SLOT_TAKEN (resume: the slot's last process is alive); NOT_FOUND
  // UNKNOWN_JOB (Resume::kMust); DEADLINE_EXCEEDED ATTACH_TIMEOUT (names the missing slots);
  // RESOURCE_EXHAUSTED OVER_BUDGET; UNAVAILABLE UNREACHABLE.
  static absl::StatusOr<std::unique_ptr<Client>> Attach(const JobOptions& options,
                                                        const std::vector<Tensor>& tensors,
                                                        const std::vector<TensorBuffers>& buffers,
                                                        const std::optional<Gpu>& gpu = {});

  // Adds tensors in new groups, before the next Step. All trainers call it with equal content.
  // `tensors[i].group` continues the existing group numbers; `buffers[i].weight` belongs to
  // `tensors[i]` and is lent until the return. A durable job can grow after its first round, once
  // before each round. After OVER_BUDGET the job is unchanged. `schedule_groups`: the schedule
  // group of each new group, if the job's groups were given theirs (ScheduleOptions::groups).
  // Errors: as Attach; LAYOUT_MISMATCH when the trainers disagree; UNIMPLEMENTED UNSUPPORTED.
  virtual absl::Status Extend(const std::vector<Tensor>& tensors,
                              const std::vector<TensorBuffers>& buffers, InitMode init,
                              const std::vector<uint32_t>& schedule_groups = {}) = 0;

  // One round: pushes every gradient, waits for the decision of all servers, writes the stepped
  // weights into `buffers[i].weight`. `hyper` has one entry per group, `buffers` one per tensor in
  // manifest order. `loss_scale`: the factor applied to the loss; 0: the job's static one. Equals
  // BeginStep and then Wait until Wait returns true.
  // Errors: INVALID_ARGUMENT BAD_HYPERPARAM; ABORTED HYPERPARAM_MISMATCH; UNAVAILABLE TRAINER_LOST
  // or SERVER_LOST, with the slot or server in message and detail (in a durable job only after
  // reconnect_timeout); FAILED_PRECONDITION JOB_FAILED, LAYOUT_MISMATCH, TRAINER_LEFT,
  // WRONG_VERSION (a server came back with another version), WRONG_INCARNATION (another process has
  // this slot; this one must end). After these errors of a running round the weights may be a mix
  // of both versions. ABORTED NONFINITE is different: it ends a halted round on every trainer, and
  // names tensor, index and slot. No server applied the round, the weights are unchanged, round()
  // has grown by one, and the next Step may follow. FAILED_PRECONDITION LOSS_SCALE_MISMATCH when
  // `loss_scale` is not policy().loss_scale: nothing was sent, and another Step may follow.
  virtual absl::StatusOr<RoundReport> Step(const std::vector<Hyper>& hyper,
                                           const std::vector<TensorBuffers>& buffers,
                                           double loss_scale = 0) = 0;

  // The two halves of Step, for a caller that does other work or polls for signals in between. Both
  // work while a server is away. Wait returns false when `timeout` passed first; the buffers stay
  // lent until it returns true or an error. It writes `*report`, which may be null, when it returns
  // true or NONFINITE.
  virtual absl::Status BeginStep(const std::vector<Hyper>& hyper,
                                 const std::vector<TensorBuffers>& buffers,
                                 double loss_scale = 0) = 0;
  virtual absl::StatusOr<bool> Wait(std::chrono::milliseconds timeout, RoundReport* report) = 0;

  // Begins a round that replaces the weights: `buffers[i].weight` becomes the service's weight of
  // tensor i, and the fp32 master gets exactly that value. Moments and step counts stay; gradients
  // are ignored. The round counts in round(), not in opt_step(). All trainers call it between the
  // same two steps, and Wait ends it.
  // With InitMode::kEqual all trainers hold equal weights. With kBroadcast the lead trainer's
  // weights go to the others. After a crash either all servers have the new weights or none has;
  // the round then continues by itself, as a step does. Errors: as BeginStep. Wait also returns
  // FAILED_PRECONDITION INIT_MISMATCH, which ends the job for all trainers; it names the first
  // tensor that differs, or a slot that steps in this round.
  virtual absl::Status BeginUpload(const std::vector<TensorBuffers>& buffers) = 0;

  // Begins a round that replaces one plane of the optimizer state by the bits at `buffers[i].grad`:
  // numel elements of the tensor's element size, copied as they are. All other planes stay. In a
  // low plane fp32 tensors have a null `grad`; otherwise every tensor has one. `buffers[i].weight`
  // receives the weights of the round. In everything else the round is like that of BeginUpload:
  // with InitMode::kEqual all trainers bring equal bits and equal step counts; with kBroadcast only
  // the step counts are equal.
  // A whole state is the planes of all state arrays. The last plane brings the step counts. Until
  // then opt_step() does not change, so that a process that starts again sees that it must send all
  // planes once more; a plane that arrives twice does no harm. Errors: as BeginUpload;
  // INVALID_ARGUMENT BAD_ARGUMENT for a wrong number of steps or buffers, or an array that the job
  // does not have.
  virtual absl::Status BeginStateUpload(const StateUpload& upload,
                                        const std::vector<TensorBuffers>& buffers) = 0;

  // Sets the state that this slot's program needs to continue after a round, for example its
  // position in the data and its random state. The service does not read these bytes. They travel
  // with every BeginStep from now on, and the service keeps them with the round. The next process
  // in this slot begins with them. Between rounds only. Error: INVALID_ARGUMENT BAD_ARGUMENT, with
  // both sizes, above kUserStateBytesMax bytes.
  virtual absl::Status SetUserState(std::string state) = 0;
  // The last value of SetUserState. In a resumed job at first the value that the slot's last
  // process gave with the newest finished round, round() - 1. Empty when there is none.
  virtual std::string user_state() const = 0;

  // Copies the fp32 state of the current version into `buffers`, one entry per tensor, and the step
  // count of each tensor into `tensor_step`, which may be null. Between rounds only. The memory is
  // lent until the return, and holds the state only when the call succeeds: when a server goes away
  // meanwhile, the client fetches its bytes again.
  // Errors: SERVER_LOST as Step; FAILED_PRECONDITION NOT_BEGUN when a server has lost the initial
  // weights, which the next Step sends again.
  virtual absl::Status FetchState(const std::vector<StateBuffers>& buffers,
                                  std::vector<uint64_t>* tensor_step) = 0;

  // Receives the current weights again, into `buffers[i].weight`. Between rounds only. Errors: as
  // FetchState.
  virtual absl::Status FetchWeights(const std::vector<TensorBuffers>& buffers) = 0;

  // Keeps the state that the next round begins with, on every server, as snapshot `name`: 1 to 64
  // letters, digits, '.', '_' and '-'. One trainer calls it, between rounds; the others may
  // continue. Returns that round as soon as the snapshot is whole on disk. Of the job's snapshots
  // the newest `keep` stay, and all with 0. After an error nothing of the snapshot is left:
  // ALREADY_EXISTS NAME_IN_USE; INVALID_ARGUMENT BAD_ARGUMENT; RESOURCE_EXHAUSTED OVER_BUDGET, with
  // the bytes needed and the bytes free; FAILED_PRECONDITION UNSUPPORTED when the servers keep no
  // snapshots, JOB_BUSY while the job takes another one; UNIMPLEMENTED UNSUPPORTED for durability
  // none; UNAVAILABLE when a server goes away meanwhile; ABORTED when rounds needed the space.
  virtual absl::StatusOr<uint64_t> Snapshot(const std::string& name, uint32_t keep) = 0;

  // Ends this slot's part in the job and closes the streams. A second call does nothing. Waits for
  // an unreachable server at most for the servers' report_after. When the program reacts to a
  // signal in the middle of a round or another call, it interrupts that call: its Wait ends with
  // FAILED_PRECONDITION CLOSED, and nothing touches the lent memory after this returns.
  virtual absl::Status Leave() = 0;

  // Ends every wait with CANCELLED. Any thread.
  virtual void Abort() = 0;

  // Names of the job's fp32 arrays per parameter: "master", then torch's names for the optimizer.
  // Constant.
  virtual std::vector<std::string> state_arrays() const = 0;
  // Whether Attach took a seat in an existing job. Constant.
  virtual bool resumed() const = 0;
  // The next round. It grows by one with each round that ends. A new job starts with 1, a resumed
  // job continues its count: "resumed at round N".
  virtual uint64_t round() const = 0;
  // Rounds applied so far, without skipped ones; 0 before a new job's first round.
  virtual uint64_t opt_step() const = 0;
  // Loss scale and schedule before the next round.
  virtual Policy policy() const = 0;
  // Trainers that take part in the next round; in a fixed world JobOptions::world.
  virtual uint32_t world() const = 0;
  // The job's epoch, from 1: it grows when processes take seats, or leave them.
  virtual uint32_t epoch() const = 0;
  // All extents in push order. With other gradients than kScattered, `slot` is the lowest that
  // pushes the extent.
  virtual std::vector<DealtExtent> dealt() const = 0;
  // From now on the gradients lent to BeginStep are sums over the members of `epoch`, formed by a
  // collective; 0, the default: this trainer's own gradients. Sums of another epoch are never
  // pushed: BeginStep or Wait ends with FAILED_PRECONDITION STALE_EPOCH. The session and the round
  // remain: the next BeginStep brings sums over the members of epoch().
  virtual void SetSumsOf(uint32_t epoch) = 0;
  virtual uint64_t job_id() const = 0;
  virtual uint32_t server_count() const = 0;
  virtual TransferCounters counters() const = 0;
  // Lets the trainers agree on communicators; lives as long as the client.
  virtual Rendezvous* rendezvous() = 0;
};

// Switches off the deadlock detection that Debian builds into Abseil's mutexes, for the whole
// process: it costs gRPC 3 % of a trainer's thread. For a program that owns its process. The Python
// module calls it on import.
void DisableLockOrderChecks();

}  // namespace ballast::client
