// Capture: builds the state at the beginning of a round, for every extent that a server owns, from
// held images and logged rounds, while later rounds continue. CaptureSteps does the work, step by
// step; CaptureRun puts the steps on an executor. Comes from: StateCaptures, snapshots of resting
// jobs. Goes to: RoundReplay, and to a TakeExtent. Thread safety: a step blocks on the disk; see
// each class.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/tensor/layout.h"
#include "common/threads/executor.h"
#include "server/durability/records/records.h"
#include "server/durability/round_log.h"
#include "server/optim/dispatch.h"
#include "server/recovery/replay.h"
#include "server/state/extent_store.h"

namespace ballast::server {

struct Capture {
  Layout layout;
  std::shared_ptr<StateHolds> log;
  HeldState held;                 // by log
  StateHolds::HeldRounds rounds;  // from log->ReadRounds(round); CaptureRun asks for them itself
  uint64_t round = 0;             // its beginning is captured; no held version is newer
  const optim::KernelTable* kernels = nullptr;
  Optimizer optimizer = {};  // of the job
};

// How the round before the state ended. Without this record the state cannot be used.
struct CapturedRound {
  PreparedRecord prepared;
  DecisionRecord decision;
};

// Takes the state of one extent: ImageFile::BufferBytes, aligned to pages, zeros after the
// payload. It may be read until the call returns.
using TakeExtent = std::function<absl::Status(uint32_t extent, const void* image)>;

// The end of the previous round. ABORTED when the log lacks it because the job has grown.
absl::StatusOr<CapturedRound> RoundBefore(const Capture& capture);

// The work of a capture. Each step reads one extent, brings it on by one round, or hands it to
// `take`. Thread safety: thread-compatible.
class CaptureSteps {
 public:
  // `capture` outlives it. Errors: ABORTED: rounds are missing because the job has grown;
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<CaptureSteps>> Create(const Capture& capture,
                                                              TakeExtent take);

  // Does the next step: extents with the oldest images first, each let go once `take` has it.
  // False when none is left. Errors: ABORTED: the log needed the room; those of `take`; DATA_LOSS,
  // naming extent, version and file, when the disk returns other bytes than were written.
  absl::StatusOr<bool> Step();

 private:
  CaptureSteps(const Capture& capture, TakeExtent take, RoundReplay::Lane lane,
               std::unique_ptr<ExtentStore> store);
  absl::Status Read();
  absl::Status HandOn();

  const Capture& capture_;
  const TakeExtent take_;
  const RoundReplay replay_;
  RoundReplay::Lane lane_;
  const std::unique_ptr<ExtentStore> store_;
  std::vector<std::pair<uint64_t, uint32_t>> left_;  // version and extent, the next one last
  bool read_ = false;                                // the next one
};

// Hands every extent to `take`, in steps without a pause between them. Errors: ABORTED when
// `cancelled` was set; those of CaptureSteps.
absl::Status CaptureExtents(const Capture& capture, const TakeExtent& take,
                            const std::atomic<bool>& cancelled);

// A capture while rounds continue: one task per step. Thread safety: thread-safe.
class CaptureRun : public std::enable_shared_from_this<CaptureRun> {
 public:
  // `done` runs once, on the executor or in Cancel, after everything was let go.
  using Done = std::function<void(const absl::StatusOr<CapturedRound>&)>;

  // `pace`, which outlives the run, makes it rest between steps, so that rounds get two thirds of
  // the time by this clock; null: no rests.
  static std::shared_ptr<CaptureRun> Start(Capture capture, TakeExtent take,
                                           std::shared_ptr<Executor> executor, const Clock* pace,
                                           Done done);
  // The capture ends before its next step.
  void Cancel() { cancelled_ = true; }
  // After the executor has shut down: ends the capture in place of its tasks.
  void Abandon();

  CaptureRun(Capture capture, TakeExtent take, std::shared_ptr<Executor> executor,
             const Clock* pace, Done done);

 private:
  void Begin(const absl::StatusOr<StateHolds::HeldRounds>& rounds);
  void Next(std::chrono::nanoseconds rest);
  void Step();
  void End(const absl::Status& status);

  // A task owns the run. The log's callback does not: the run owns the log.
  const std::shared_ptr<Executor> executor_;
  const Clock* const pace_;  // null: no rests
  TakeExtent take_;
  std::atomic<bool> cancelled_{false};
  // In tasks of the executor only, then in Abandon.
  Capture capture_;
  std::optional<CapturedRound> before_;
  std::unique_ptr<CaptureSteps> steps_;
  Done done_;  // empty once it has run
};

}  // namespace ballast::server
