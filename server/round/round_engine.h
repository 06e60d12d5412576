// RoundEngine drives one job's rounds at one server: it feeds the pure RoundFsm and carries out its
// effects on registers, kernels, log and sinks.
// Comes from: server/rpc (frames, begins, votes). Goes to: reduce, durability, optim, tier through
// the worker pool, and back to the sinks. docs/life-of-a-round.md follows a gradient through it.
// Thread safety: every public method may be called from any thread; it posts to the job's strand.
// Sinks are called on that strand.
#pragma once

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
#include "common/base/worker_pool.h"
#include "common/metrics/metrics.h"
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
};

// Shared machinery of a server process; outlives every engine.
struct EngineDeps {
  Executor* executor = nullptr;
  WorkerPool* workers = nullptr;
  const Clock* clock = nullptr;
  simd::Isa isa = simd::Isa::kScalar;
  VoteSink* votes = nullptr;
  ServerMetrics* metrics = nullptr;  // may be null
};

class RoundEngine : public std::enable_shared_from_this<RoundEngine> {
 public:
  // Allocates the state. `plan` must be valid (ValidateJobSpec). Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::shared_ptr<RoundEngine>> Create(const JobPlan& plan,
                                                             const EngineConfig& config,
                                                             const EngineDeps& deps);
  virtual ~RoundEngine() = default;

  // A slot's stream opened. `done` is called with the next round, or with WRONG_INCARNATION,
  // STALE_EPOCH, JOB_FAILED ...; the sink is used until Detach.
  virtual void AttachSlot(uint32_t slot, uint64_t incarnation, uint32_t epoch,
                          std::shared_ptr<SlotSink> sink,
                          std::function<void(absl::StatusOr<uint64_t> round)> done) = 0;
  // The slot's stream ended or fell silent without a Leave. `why` is for the error text.
  virtual void SlotLost(uint32_t slot, uint64_t incarnation, std::string why) = 0;
  virtual void Begin(uint32_t slot, RoundBegin begin) = 0;
  // One frame; `payload` has info.length_bytes bytes. Refusals go to the slot's sink.
  virtual void Frame(const FrameInfo& info, Payload payload) = 0;
  virtual void Leave(uint32_t slot, uint64_t round) = 0;
  // Streams state of version `round` to the slot: StateInfo first, then extents.
  virtual void FetchState(uint32_t slot, uint64_t round, bool weights,
                          std::vector<uint32_t> arrays) = 0;
  virtual void PeerVote(uint32_t epoch, uint64_t round, Vote vote) = 0;
  virtual void PeerLost(uint32_t server, std::string why) = 0;
  // The slot waits at the home to add groups before its next round.
  virtual void SlotGrows(uint32_t slot) = 0;
  // A grown plan (same job, next layout version); between rounds only.
  virtual void Extend(JobPlan plan, std::function<void(absl::Status)> done) = 0;
  virtual void Snapshot(std::function<void(JobSnapshot)> done) = 0;
  // Fails the job with `status` (server shutdown, directory decision).
  virtual void Fail(absl::Status status) = 0;
  // Called (on the strand) once when every slot has left (JOB_FINISHED) or the job has failed; with
  // the error that later calls get.
  virtual void OnEnd(std::function<void(const absl::Status& why)> callback) = 0;

  virtual uint64_t job() const = 0;
  virtual uint32_t window_extents() const = 0;
};

}  // namespace ballast::server
