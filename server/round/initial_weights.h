// InitialWeights: the weights that a job begins with, from their frames to the disk. A durable job
// votes on its first round only once they survive.
//
// In memory, frames go straight into the state, whose images are written then. With a tier on NVMe,
// frames of an extent are put together in the buffer that its weights go out from, which is planned
// for every extent: the extent's state needs memory only once they are all there.
// Comes from: RoundDriver (frames, InitialComplete). Goes to: ModelState, ImageKeeper, NvmeTier.
// Thread safety: on the job's strand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "common/base/payload.h"
#include "common/io/arena.h"
#include "server/round/image_keeper.h"
#include "server/round/model_state.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

class InitialWeights {
 public:
  // What is pointed to outlives this. `storage_failed` hears of the disk's errors; `written` runs
  // when all weights that are complete have come to survive.
  InitialWeights(const RoundFsm* fsm, ModelState* state, ImageKeeper* images,
                 std::function<void(const absl::Status&)> storage_failed,
                 std::function<void()> written)
      : fsm_(fsm),
        state_(state),
        images_(images),
        storage_failed_(std::move(storage_failed)),
        written_(std::move(written)) {}

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
  bool durable() const { return !images_->initial_pending() && !unflushed_; }
  // An image was written: perhaps the last that WhenDurable's call waits for.
  void OnImageWritten() { Check(); }

 private:
  void Save(uint32_t extent, const BufferRef& weights);
  void OnSaved(const absl::Status& status);
  void Flush();
  void OnFlushed(const absl::Status& status);
  void Check();

  const RoundFsm* const fsm_;
  ModelState* const state_;
  ImageKeeper* const images_;
  const std::function<void(const absl::Status&)> storage_failed_;
  const std::function<void()> written_;

  std::function<void()> when_durable_;
  // With a tier on NVMe: what has come, how much is being written, whether any of it may be lost.
  std::map<uint32_t, BufferRef> staged_;  // by extent
  size_t saving_ = 0;
  bool unflushed_ = false;
};

}  // namespace ballast::server
