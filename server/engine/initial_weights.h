// InitialWeights: the weights that a job begins with, from their frames to the disk. A durable job
// votes on its first round only once they survive.
//
// Frames of an extent are put together in the buffer that its weights go out from, which is planned
// for every extent: the extent's state needs memory only once they are all there.
// Comes from: RoundDriver (frames, InitialComplete). Goes to: ModelState.
// Thread safety: on the job's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "common/base/payload.h"
#include "common/io/arena.h"
#include "server/round/model_state.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

class InitialWeights {
 public:
  // What is pointed to outlives this. `written` runs when all weights that are complete have come
  // to survive.
  InitialWeights(const RoundFsm* fsm, ModelState* state, std::function<void()> written)
      : fsm_(fsm), state_(state), written_(std::move(written)) {}

  // Takes the bytes of an admitted frame that is not damaged. RESOURCE_EXHAUSTED.
  absl::Status Put(const FrameHeader& frame, const Payload& payload);
  // All frames of the extent are in: its weights are written to the disk.
  void Complete(uint32_t extent);
  // All weights are taken anew: lets go of those that are not in the state yet.
  void Drop();

  // Calls `call` once all weights that are complete survive: now, or later in place of an earlier
  // call that still waits.
  void WhenDurable(std::function<void()> call);
  void DropWaiting() { when_durable_ = nullptr; }
  // Whether all weights that are complete survive.
  bool durable() const { return state_->placement->initial_durable(); }
  // Images have come to survive: perhaps the last that WhenDurable's call waits for.
  void Check();

 private:
  const RoundFsm* const fsm_;
  ModelState* const state_;
  const std::function<void()> written_;

  std::function<void()> when_durable_;
  std::map<uint32_t, BufferRef> staged_;  // the weights that have come, by extent
};

}  // namespace ballast::server
