// InitialWeights: a job's initial weights, from their frames to the disk. A durable job votes on
// its first round only once they are durable.
//
// Frames of an extent are assembled in the buffer from which its weights go out, which is planned
// for every extent: the extent's state needs memory only once all frames are in.
// Comes from: RoundDriver (frames, InitialComplete). Goes to: ModelState.
// Thread safety: on the job's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "common/bytes/payload.h"
#include "common/io/arena.h"
#include "server/round/model_state.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

class InitialWeights {
 public:
  // All pointers outlive this. `written` runs when all complete weights have become durable.
  InitialWeights(const RoundFsm* fsm, ModelState* state, std::function<void()> written)
      : fsm_(fsm), state_(state), written_(std::move(written)) {}

  // Takes the bytes of an admitted, undamaged frame. RESOURCE_EXHAUSTED.
  absl::Status Put(const FrameHeader& frame, const Payload& payload);
  // All frames of the extent are in: its weights are written to the disk.
  void Complete(uint32_t extent);
  // All weights come again: drops those not in the state yet.
  void Drop();

  // Calls `call` once all complete weights are durable: now, or later in place of an earlier call
  // that still waits.
  void WhenDurable(std::function<void()> call);
  void DropWaiting() { when_durable_ = nullptr; }
  // Whether all complete weights are durable.
  bool durable() const { return state_->placement->initial_durable(); }
  // More images are durable: perhaps the last one for which WhenDurable's call waits.
  void Check();

 private:
  const RoundFsm* const fsm_;
  ModelState* const state_;
  const std::function<void()> written_;

  std::function<void()> when_durable_;
  std::map<uint32_t, BufferRef> staged_;  // received weights, by extent
};

}  // namespace ballast::server
