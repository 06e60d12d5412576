#include "server/engine/initial_weights.h"

#include <utility>

#include "common/faults/mutant.h"

namespace ballast::server {

absl::Status InitialWeights::Put(const FrameHeader& frame, const Payload& payload) {
  BufferRef& staged = staged_[frame.extent];
  if (!staged) {
    absl::StatusOr<BufferRef> buffer = state_->weights.Acquire(fsm_->layout(), frame.extent);
    if (!buffer.ok()) {
      staged_.erase(frame.extent);
      return buffer.status();
    }
    staged = *std::move(buffer);
  }
  payload.CopyTo(staged.data() + frame.offset_bytes);
  return absl::OkStatus();
}

void InitialWeights::Complete(uint32_t extent) {
  const BufferRef weights = std::move(staged_.at(extent));
  staged_.erase(extent);
  state_->weights.Forget(extent);
  state_->placement->PutInitial(extent, fsm_->round(), [this, extent, weights] {
    const Layout& layout = fsm_->layout();
    state_->store.WriteMaster(layout, extent, 0, weights.data(), layout.extents()[extent].elements);
    state_->store.ReadWeights(layout, extent, weights.data());
    state_->weights.Keep(extent, weights);
  });
}

void InitialWeights::Drop() {
  state_->placement->DropInitial();
  staged_.clear();
}

void InitialWeights::WhenDurable(std::function<void()> call) {
  when_durable_ = std::move(call);
  Check();
}

void InitialWeights::Check() {
  const bool may_run = durable() || BALLAST_MUTANT(kInitNotDurable);
  if (when_durable_ != nullptr && may_run) std::exchange(when_durable_, nullptr)();
  if (durable()) written_();
}

}  // namespace ballast::server
