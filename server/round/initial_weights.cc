#include "server/round/initial_weights.h"

#include <string>
#include <utility>

#include "common/base/mutant.h"

namespace ballast::server {

absl::Status InitialWeights::Put(const FrameHeader& frame, const Payload& payload) {
  if (state_->nvme == nullptr) {
    const auto width = static_cast<uint32_t>(DTypeBytes(frame.dtype));
    const std::string bytes = payload.ToString();
    state_->store.WriteMaster(fsm_->layout(), frame.extent, frame.offset_bytes / width,
                              bytes.data(), frame.length_bytes / width);
    state_->weights.Forget(frame.extent);
    return absl::OkStatus();
  }
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
  if (state_->nvme == nullptr) {
    if (fsm_->durable()) images_->AddInitial(extent);
    return;
  }
  const BufferRef weights = std::move(staged_.at(extent));
  staged_.erase(extent);
  Save(extent, weights);
}

void InitialWeights::Save(uint32_t extent, const BufferRef& weights) {
  ++saving_;
  unflushed_ = true;
  state_->weights.Forget(extent);
  state_->nvme->Acquire(extent, [this, extent, weights](const absl::Status& status) {
    if (!status.ok()) return OnSaved(status);
    const Layout& layout = fsm_->layout();
    state_->store.WriteMaster(layout, extent, 0, weights.data(), layout.extents()[extent].elements);
    state_->store.ReadWeights(layout, extent, weights.data());
    state_->weights.Keep(extent, weights);
    state_->nvme->Save(extent, /*initial=*/true,
                       [this](const absl::Status& saved) { OnSaved(saved); });
    state_->nvme->Release(extent, fsm_->round());
  });
}

void InitialWeights::OnSaved(const absl::Status& status) {
  --saving_;
  if (!status.ok()) return storage_failed_(status);
  if (saving_ == 0) Flush();
}

void InitialWeights::Flush() {
  state_->nvme->Flush([this](const absl::Status& flushed) { OnFlushed(flushed); });
}

void InitialWeights::OnFlushed(const absl::Status& status) {
  if (!status.ok()) return storage_failed_(status);
  if (saving_ != 0) return;  // More has come meanwhile.
  // What was saved while this flush was under way needs another one.
  if (state_->nvme->unflushed()) return Flush();
  unflushed_ = false;
  Check();
}

void InitialWeights::Drop() {
  images_->DropInitial();
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
