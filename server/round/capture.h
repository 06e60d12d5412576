// Capture: the state that a round begins with, of every extent that a server owns, out of the
// images and rounds that its log holds, while later rounds go on. Comes from: Engine
// (engine_snapshot.cc), snapshots of resting jobs. Goes to: RoundReplay, and whoever takes the
// state. Thread safety: blocks; on a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tensor/layout.h"
#include "server/durability/records.h"
#include "server/durability/round_log.h"
#include "server/optim/dispatch.h"

namespace ballast::server {

struct Capture {
  Layout layout;
  std::shared_ptr<RoundLog> log;
  HeldState held;               // by log
  RoundLog::HeldRounds rounds;  // log->ReadRounds(round)
  uint64_t round = 0;           // whose beginning is captured; not before any version that is held
  const optim::KernelTable* kernels = nullptr;
  // Called behind every step of the work, which reads, writes or brings by one round one extent,
  // with the time that it took: whoever works beside rounds rests here. May be empty.
  std::function<void(std::chrono::nanoseconds took)> rest;
};

// What the state is worth nothing without: how the round before it ended.
struct CapturedRound {
  PreparedRecord prepared;
  DecisionRecord decision;
};

// Takes the state of one extent: ImageFile::BufferBytes, aligned to pages, zeros behind the
// payload. It may be read until the call returns.
using TakeExtent = std::function<absl::Status(uint32_t extent, const void* image)>;

// The end of the round before. ABORTED when the log does not have it: the job has grown meanwhile.
absl::StatusOr<CapturedRound> RoundBefore(const Capture& capture);

// Hands every extent to `take`, those with the oldest images first, and lets each go behind that.
// Errors: ABORTED: the log needed the room, the job has grown, or `cancelled` was set; those of
// `take`; DATA_LOSS, naming extent, version and file, where the disk holds something else than was
// written.
absl::Status CaptureExtents(const Capture& capture, const TakeExtent& take,
                            const std::atomic<bool>& cancelled);

}  // namespace ballast::server
