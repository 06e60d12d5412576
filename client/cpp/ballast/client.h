// Ballast's C++ client: attach a trainer to a job, push gradients, receive stepped weights.
// Comes from: a training program (or the Python module). Goes to: every state server of the job.
// When a server goes away: with JobOptions::durability kPower or kProcess a lost state server is a
// pause, not the end. Calls wait, tell JobOptions::on_pause, open the stream to that server again,
// send again what it lacks from the caller's buffers, and go on; the result has the same bits.
// After JobOptions::reconnect_timeout they give up with SERVER_LOST. With kNone a lost server ends
// the job.
// When a trainer goes away: in a durable job a new process may take its slot with
// JobOptions::resume. It receives the weights and goes on where the job stands; the trainers that
// are still there go through a pause and lose nothing. A process whose slot was taken ends with
// WRONG_INCARNATION.
// C++17-clean: a torch extension may still be compiled as C++17. Thread safety: a Client is used by
// one thread at a time; Abort() may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/error.h"

namespace ballast::client {

// Element type of a parameter, its gradient and its weight on the wire.
enum class DType : uint8_t { kF32 = 1, kBF16 = 2, kF16 = 3 };

// A named parameter. Its gradient and weight are contiguous row-major arrays of `dtype`.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;
  uint32_t group = 0;
  std::vector<std::string> aliases;  // other names of the same storage (tied weights)
};

// Raw hyper-parameters of one group for one round (torch param_groups). All slots of a round must
// give equal bits.
struct AdamWHyper {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

enum class InitMode {
  kEqual,      // every slot holds equal initial weights; digests are compared, slot 0 uploads
  kBroadcast,  // slot 0 uploads, the others receive its weights at attach
};

// What a finished round survives. Numbers equal ballast.v1.Durability.
enum class Durability : uint8_t {
  kPower = 1,    // power loss of every host
  kProcess = 2,  // kill -9 of every server process
  kNone = 3,     // nothing: a lost server ends the job
};

// Where the servers should keep the optimizer state: a hint that changes no bit. ds_config
// offload_optimizer.device. Numbers equal ballast.v1.Device.
enum class Device : uint8_t {
  kAuto = 0,  // in memory if it fits, else on NVMe if the job is durable
  kCpu = 1,   // in memory, or the job is refused with OVER_BUDGET
  kNvme = 2,  // on NVMe, with as much of it in memory as fits; durable jobs only
};

// What is done about a round in which a gradient, or their sum, is NaN or Inf. Either way nothing
// of it is applied, on no server. Numbers equal ballast.v1.NonfinitePolicy.
enum class NonfinitePolicy : uint8_t {
  kSkip = 0,  // the job goes on: RoundReport::applied is false
  kHalt = 1,  // the step of every trainer ends with NONFINITE
};

// What a job's name means at Attach. Numbers equal ballast.v1.Resume.
enum class Resume : uint8_t {
  kNever = 1,  // a new job; NAME_IN_USE when there is one
  kAuto = 2,   // the job of that name if there is one, else a new one
  kMust = 3,   // the job of that name; UNKNOWN_JOB when there is none
};

// Most bytes of a user state (Client::SetUserState).
inline constexpr size_t kUserStateBytesMax = 65536;

// Pause::server while an attach has not learned which server is at Pause::address.
inline constexpr uint32_t kServerUnknown = UINT32_MAX;

// News of a server that is away, or of a trainer that is being replaced. Times are counted from the
// moment the client noticed.
struct Pause {
  enum class Kind {
    kLost,       // a server's stream broke, or it fell silent; the client tries to reach it again.
                 // While attaching: it has kept the attach waiting for 3 s
    kWaiting,    // it is still away; told every 5 s
    kBack,       // it was reached again; what it lacks is being sent
    kReplacing,  // `slots` are being replaced, in `epoch`. Every 5 s, and with epoch 0, while the
                 // job's home has not said yet who they are
    kReplaced,   // every server that is there has taken this trainer into the new epoch
    kTrainerLost,  // `slots`: a trainer is away, and rounds wait for it until its lease is over, or
                   // in a fixed world until its seat is taken. Told at once when it ended, and
                   // after the servers' report_after when it hangs or cannot be reached
    kTrainerBack,  // it is back, the same process
  };
  Kind kind = Kind::kLost;
  uint32_t server = 0;               // id of the server; in news of trainers: of the job's home
  std::string address;               // empty where an attach was not told
  uint64_t round = 0;                // the round that is running, or would be next; 0: attaching
  std::chrono::nanoseconds away{0};  // for how long so far; kBack, kReplaced: in all
  std::string error;                 // why it was lost, or why the last try to reach it failed
  uint32_t epoch = 0;                // kReplacing, kReplaced: the job's new one
  std::vector<uint32_t> slots;       // seats with a new process, ascending; or who is away or back
  std::vector<uint32_t> joined;      // kReplacing, kReplaced: those of `slots` that were empty
  std::vector<uint32_t> left;        // kReplacing, kReplaced: seats that are empty now, ascending
  uint32_t world = 0;                // likewise: trainers from now on
};

struct JobOptions {
  std::vector<std::string> endpoints;  // any subset of the servers, "host:port"
  std::string job;                     // name, [A-Za-z0-9][A-Za-z0-9._-]{0,127}
  uint32_t world = 1;                  // number of trainers
  uint32_t slot = 0;                   // this trainer's seat, 0..world-1
  double max_grad_norm = 0;            // global 2-norm clip; 0: off. ds_config gradient_clipping
  double loss_scale = 1;               // static; gradients arrive multiplied by it
  NonfinitePolicy nonfinite = NonfinitePolicy::kSkip;
  // Rounds in a row that may be skipped; the step of one more ends with NONFINITE. 0: no limit.
  uint32_t max_consecutive_skips = 100;
  uint32_t tile_elements = 65536;      // multiple of 64
  uint32_t extent_elements = 1048576;  // multiple of tile_elements
  InitMode init = InitMode::kEqual;
  std::chrono::milliseconds attach_timeout = std::chrono::minutes(10);
  double time_scale = 1;  // stretches failure-detection times (sanitizer runs)
  // Called about ten times a second on the attaching thread while Attach waits; true ends it with
  // CANCELLED. For callers that poll for signals. May be empty.
  std::function<bool()> should_stop;
  // Servers without a storage.data_dir refuse what is not kNone.
  Durability durability = Durability::kPower;
  // How long a server of a durable job may be away before the call that waits for it fails with
  // SERVER_LOST. Stretched by time_scale.
  std::chrono::milliseconds reconnect_timeout = std::chrono::minutes(10);
  // Whether this process may go on with a job that is there, in the place of one that ended or
  // died. Durable jobs only: with Durability::kNone kAuto is kNever, and kMust is an error.
  Resume resume = Resume::kNever;
  // Trainers may come and go while the job runs; `world` is then how many it starts with, and how
  // many seats the caller knows of: a process whose slot is beyond those of the job, or of one that
  // is empty, joins with `resume`. Between two rounds the world changes by one epoch; the mean of a
  // round is over those who take part in it. A trainer that leaves, or whose lease
  // (`timing.lease` of the servers) runs out, is gone on without. False: the world is fixed, and a
  // trainer that is lost is waited for. Needs a durable job. All trainers give the same.
  bool variable_world = false;
  // Of a variable world, at most `world`: a job that nobody is in begins again when `world`
  // trainers are there, or after `timing.lease` with those that are, if they are so many; and
  // after a loss the others go on without it only if they are. The value of the trainers that came
  // last counts, from when so many take part.
  uint32_t min_world = 1;
  // The first trainer's counts.
  Device device = Device::kAuto;
  // Called on the thread that is inside Attach, Step, Wait or a fetch, with no lock held: news
  // since the last call included, at most the newest 64. May call Abort. Empty: news are logged
  // instead.
  std::function<void(const Pause&)> on_pause;
};

// Memory of one tensor for one call. The caller owns it; it must stay valid and unchanged
// (gradients) or unread (weights) until the call returns.
struct TensorBuffers {
  const void* grad = nullptr;  // null: no gradient this round
  void* weight = nullptr;      // in: initial weights at Attach; out: stepped weights
};

struct RoundReport {
  uint64_t round = 0;
  bool applied = false;  // false: skipped because of non-finite gradients
  double grad_norm = 0;  // global 2-norm of the unscaled mean gradient
  double clip_coef = 1;
  double loss_scale = 1;
  uint64_t opt_step = 0;           // applied rounds so far
  uint64_t nonfinite = 0;          // elements of the gradients' sum that are NaN or Inf
  uint64_t consecutive_skips = 0;  // rounds in a row that were not applied, this one included
  // Of a round that was not applied: tensor, index and slot at which it first is not finite, in the
  // order of the job's tensors, as text; the same on every trainer.
  std::string nonfinite_place;
  uint64_t weight_overflows = 0;
  uint64_t bytes_up = 0;    // payload pushed this round, what was sent again included
  uint64_t bytes_down = 0;  // payload of the weights, each counted once
  // Wall time seen by this client: first byte out -> last ack in; -> all results in; -> last
  // weight in. Server phases are the maximum over servers.
  uint64_t push_ns = 0;
  uint64_t wait_ns = 0;
  uint64_t pull_ns = 0;
  uint64_t collect_ns = 0;
  uint64_t vote_ns = 0;
  uint64_t step_ns = 0;
  // Part of this round during which at least one server was away, or a trainer was replaced.
  uint64_t paused_ns = 0;
  uint32_t reconnects = 0;  // times a server came back since the end of the round before
  uint32_t world = 0;       // trainers whose gradients were averaged
};

// Counts since the client was created. Copies per byte are copied / payload bytes of a direction:
// up 0, as gRPC gets the caller's own memory; down 1, from gRPC's memory to the caller's.
struct TransferCounters {
  uint64_t payload_up_bytes = 0;
  uint64_t payload_down_bytes = 0;
  uint64_t copied_up_bytes = 0;
  uint64_t copied_down_bytes = 0;
  uint64_t frames_refused = 0;
};

// Bits of one state array, so much as a tensor's dtype holds per element: of fp32 tensors all 32,
// of bf16 and fp16 ones the high or the low half. Numbers equal ballast.v1.StatePlane.
enum class StatePlane : uint8_t {
  kMaster = 2,
  kMasterLow = 3,  // fp32 tensors have no low planes
  kExpAvg = 4,
  kExpAvgLow = 5,
  kExpAvgSq = 6,
  kExpAvgSqLow = 7,
};

// What one round of an import of optimizer state sets.
struct StateUpload {
  StatePlane plane = StatePlane::kMaster;
  // Steps taken, per tensor, and of the job, from this round on; at most 2^53. Empty: they stay.
  std::vector<uint64_t> tensor_step;
  uint64_t opt_step = 0;
};

// fp32 state of one tensor, for export. Each pointer is caller-owned, numel floats, or null to
// skip.
struct StateBuffers {
  float* master = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
};

class Client {
 public:
  virtual ~Client() = default;

  // Attaches to the job, creating it if this is the first slot; waits for the other slots; uploads
  // the initial weights (slot 0) or receives them (InitMode::kBroadcast). `buffers[i].weight`
  // belongs to `tensors[i]`.
  // With JobOptions::resume, and a job that is there: takes the place of the slot's last process.
  // Every weight is received from the servers, whatever `buffers` held before; only when that
  // process died before the servers had all initial weights does slot 0 first upload what they
  // lack. Then resumed() is true, and round() says where the job stands.
  // Errors: INVALID_ARGUMENT BAD_SPEC | BAD_ARGUMENT; FAILED_PRECONDITION SPEC_MISMATCH,
  // INIT_MISMATCH (first tensor named), PROTOCOL_MISMATCH; ALREADY_EXISTS NAME_IN_USE, SLOT_TAKEN
  // (resume: the slot's last process is alive); NOT_FOUND UNKNOWN_JOB (Resume::kMust);
  // DEADLINE_EXCEEDED ATTACH_TIMEOUT (missing slots named); RESOURCE_EXHAUSTED OVER_BUDGET;
  // UNAVAILABLE UNREACHABLE.
  static absl::StatusOr<std::unique_ptr<Client>> Attach(const JobOptions& options,
                                                        const std::vector<Tensor>& tensors,
                                                        const std::vector<TensorBuffers>& buffers);

  // Appends tensors in new groups, before the next Step. All slots call it with equal content.
  // `tensors[i].group` continues the existing group numbers. A durable job takes them after its
  // first round, once before a round, and is as it was after OVER_BUDGET.
  // Errors as Attach; LAYOUT_MISMATCH when the slots disagree; UNIMPLEMENTED UNSUPPORTED.
  virtual absl::Status Extend(const std::vector<Tensor>& tensors,
                              const std::vector<TensorBuffers>& buffers, InitMode init) = 0;

  // One round: pushes every gradient, waits for the decision of all servers, writes the stepped
  // weights into `buffers[i].weight`. `hyper` has one entry per group, `buffers` one per tensor in
  // manifest order. Equivalent to BeginStep followed by waiting until Wait returns true.
  // Errors: INVALID_ARGUMENT BAD_HYPERPARAM; ABORTED HYPERPARAM_MISMATCH; UNAVAILABLE TRAINER_LOST,
  // SERVER_LOST (who, in the message and detail; in a durable job only after reconnect_timeout);
  // FAILED_PRECONDITION JOB_FAILED, LAYOUT_MISMATCH, TRAINER_LEFT, WRONG_VERSION (a server came
  // back with another version), WRONG_INCARNATION (another process has taken this slot; this one
  // must end). After an error of a running round the weights may hold a mix of both versions.
  // Not so after ABORTED NONFINITE, which ends a halted round on every trainer, and names tensor,
  // index and slot: nothing was applied, weights are those of before, round() has grown by one, and
  // the next Step may follow.
  virtual absl::StatusOr<RoundReport> Step(const std::vector<AdamWHyper>& hyper,
                                           const std::vector<TensorBuffers>& buffers) = 0;

  // The two halves of Step, so that a caller can interleave other work or poll for signals.
  // `*report` is written also when Wait returns NONFINITE.
  // Wait returns false when `timeout` passed first; buffers stay lent to the client until it
  // returned true or an error. Both work while a server is away.
  virtual absl::Status BeginStep(const std::vector<AdamWHyper>& hyper,
                                 const std::vector<TensorBuffers>& buffers) = 0;
  virtual absl::StatusOr<bool> Wait(std::chrono::milliseconds timeout, RoundReport* report) = 0;

  // Makes `buffers[i].weight` (gradients are not looked at) the service's weights: the fp32 masters
  // become their exact values, moments and step counts stay. A round of its own, which counts in
  // round() but not in opt_step(): all trainers call it between the same two steps, and Wait ends
  // it. With InitMode::kEqual all trainers' weights must be equal; with kBroadcast, those of the
  // trainer with the lowest slot are given to the others. After a crash either all servers have the
  // new weights or none has; a call that was interrupted by one goes on by itself, as a step does.
  // Errors as BeginStep, and of Wait also FAILED_PRECONDITION INIT_MISMATCH, which ends the job for
  // all: the first tensor that differs, or a slot that steps in this round, is named.
  virtual absl::Status BeginUpload(const std::vector<TensorBuffers>& buffers) = 0;

  // Makes the bits at `buffers[i].grad` one plane of the service's state, as they are: numel
  // elements of the tensor's size, not looked at as numbers. All other planes stay. In a low plane
  // the `grad` of fp32 tensors is null, all others have one. A round of its own, as BeginUpload's,
  // which it is like in all else: equal bits and step counts on all trainers, or with kBroadcast
  // equal step counts. `buffers[i].weight` receives the weights that the round leaves behind.
  // A whole state is the planes of three arrays, the last of which brings the step counts: until
  // then opt_step() is what it was, so that whoever is started again knows that all of it, which
  // does no harm, must be sent again.
  // Errors as BeginUpload; INVALID_ARGUMENT BAD_ARGUMENT for another number of steps or buffers.
  virtual absl::Status BeginStateUpload(const StateUpload& upload,
                                        const std::vector<TensorBuffers>& buffers) = 0;

  // What this slot's program needs to go on after a round: where it is in its data, random state.
  // Opaque; travels with every BeginStep from now on, is committed with the round, and is what
  // user_state() of the seat's next process begins with. Between rounds only. Error:
  // INVALID_ARGUMENT BAD_ARGUMENT, with both sizes, beyond kUserStateBytesMax bytes.
  virtual absl::Status SetUserState(std::string state) = 0;
  // What SetUserState was given last; in a resumed job at first what the seat's last process gave
  // with the newest finished round, round() - 1. Empty when nothing was.
  virtual std::string user_state() const = 0;

  // Copies fp32 state of the current version into `buffers` (one per tensor) and the per-tensor
  // step counts into `tensor_step`. Between rounds only. What was written is valid only when the
  // call succeeded: bytes of a server that goes away meanwhile are fetched again.
  // Errors: SERVER_LOST as Step; FAILED_PRECONDITION NOT_BEGUN when a server has lost the initial
  // weights, which the next Step sends again.
  virtual absl::Status FetchState(const std::vector<StateBuffers>& buffers,
                                  std::vector<uint64_t>* tensor_step) = 0;

  // Receives the current weights again into `buffers[i].weight`. Between rounds only. Errors as
  // FetchState.
  virtual absl::Status FetchWeights(const std::vector<TensorBuffers>& buffers) = 0;

  // Keeps the state that the next round begins with, on every server, under a name of 1 to 64
  // letters, digits, '.', '_' and '-'. One trainer calls it, between rounds; the others may go on.
  // Returns that round once the snapshot is whole on disk. `keep`: so many snapshots of the job
  // stay, the oldest are removed; 0: all. Nothing is left after an error: ALREADY_EXISTS
  // NAME_IN_USE; INVALID_ARGUMENT BAD_ARGUMENT; RESOURCE_EXHAUSTED OVER_BUDGET, with the bytes it
  // takes and those that are free; FAILED_PRECONDITION UNSUPPORTED where the servers keep none, or
  // JOB_BUSY while another is taken; UNIMPLEMENTED UNSUPPORTED for durability none; UNAVAILABLE
  // when a server goes away meanwhile; ABORTED when rounds needed the room.
  virtual absl::StatusOr<uint64_t> Snapshot(const std::string& name, uint32_t keep) = 0;

  // Says that this slot takes no further round, and closes the streams. Idempotent. Waits for a
  // server that is away no longer than the servers' report_after.
  virtual absl::Status Leave() = 0;

  // Ends every wait with CANCELLED. Any thread.
  virtual void Abort() = 0;

  // Whether Attach took a seat in a job that was there before. Constant.
  virtual bool resumed() const = 0;
  // Next round to run; it grows by one with each round that has ended. A new job starts with 1, a
  // resumed one where it stands: "resumed at round N".
  virtual uint64_t round() const = 0;
  // Rounds applied so far, skipped ones not included; 0 before a new job's first round.
  virtual uint64_t opt_step() const = 0;
  // Trainers that take part in that round; of a fixed world JobOptions::world.
  virtual uint32_t world() const = 0;
  virtual uint64_t job_id() const = 0;
  virtual uint32_t server_count() const = 0;
  virtual TransferCounters counters() const = 0;
};

// For a program that owns its process: switches off, for all of it, the deadlock detection that
// Debian builds into Abseil's mutexes and that gRPC's locks pay for (3 % of a trainer's thread).
// The Python module does so when it is loaded.
void DisableLockOrderChecks();

}  // namespace ballast::client
