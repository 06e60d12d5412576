// Engine: what is different for a job whose state does not fit into memory: extents are fetched and
// given back, initial weights go to their images as they come, and the images are kept young enough
// for the log to forget. See engine.h, server/tier/nvme_tier.h.
// Thread safety: on the job's strand.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/sync.h"
#include "server/round/engine.h"

namespace ballast::server {
namespace {

// Old extents brought to their images at a time.
constexpr size_t kSavingOldMax = 2;

}  // namespace

void Engine::ConnectTier() {
  if (nvme_ == nullptr) return;
  BALLAST_CHECK(log_->image_io() != nullptr);
  nvme_->Connect(
      log_->image_io(),
      [this](ImageIo::Done done) {
        return FromDisk([done = std::move(done)](Engine*, const absl::Status& s) { done(s); });
      },
      [this](const absl::Status& status) { StorageFailed(status); });
  nvme_->SetVersion(fsm_.round());
  nvme_->Prefetch(NextSweep());
}

std::vector<uint32_t> Engine::NextSweep() const {
  std::vector<uint32_t> order(fsm_.owned().rbegin(), fsm_.owned().rend());
  if (sweep_backward_) std::reverse(order.begin(), order.end());
  return order;
}

void Engine::DisconnectTier() { nvme_->Connect(nullptr, nullptr, nullptr); }

// --- Initial weights ----------------------------------------------------------------------------

// With a tier on NVMe, frames of an extent are put together in the buffer that its weights go out
// from, which is planned for every extent: its state needs memory only once they are all there.
absl::Status Engine::PutInitial(const FrameHeader& frame, const Payload& payload) {
  if (nvme_ == nullptr) {
    const auto width = static_cast<uint32_t>(DTypeBytes(frame.dtype));
    const std::string bytes = payload.ToString();
    store_.WriteMaster(fsm_.layout(), frame.extent, frame.offset_bytes / width, bytes.data(),
                       frame.length_bytes / width);
    if (frame.extent < weights_.size()) weights_[frame.extent].Reset();
    return absl::OkStatus();
  }
  BufferRef& staged = staged_[frame.extent];
  if (!staged) {
    absl::StatusOr<BufferRef> buffer = WeightBuffer(frame.dtype);
    if (!buffer.ok()) {
      staged_.erase(frame.extent);
      return buffer.status();
    }
    staged = *std::move(buffer);
  }
  payload.CopyTo(staged.data() + frame.offset_bytes);
  return absl::OkStatus();
}

void Engine::TakeInitial(uint32_t extent) {
  const BufferRef weights = std::move(staged_.at(extent));
  staged_.erase(extent);
  ++initial_saving_;
  initial_unflushed_ = true;
  if (extent < weights_.size()) weights_[extent].Reset();
  nvme_->Acquire(extent, [this, extent, weights](const absl::Status& status) {
    if (!status.ok()) return OnInitialSaved(status);
    const Layout& layout = fsm_.layout();
    store_.WriteMaster(layout, extent, 0, weights.data(), layout.extents()[extent].elements);
    store_.ReadWeights(layout, extent, weights.data());
    weights_.resize(layout.extents().size());
    weights_[extent] = weights;
    nvme_->Save(extent, /*initial=*/true,
                [this](const absl::Status& saved) { OnInitialSaved(saved); });
    nvme_->Release(extent, fsm_.round());
  });
}

void Engine::OnInitialSaved(const absl::Status& status) {
  --initial_saving_;
  if (!status.ok()) return StorageFailed(status);
  if (initial_saving_ != 0) return;
  nvme_->Flush([this](const absl::Status& flushed) { OnInitialFlushed(flushed); });
}

void Engine::OnInitialFlushed(const absl::Status& status) {
  if (!status.ok()) return StorageFailed(status);
  if (initial_saving_ != 0) return;  // More has come meanwhile.
  // What was saved while this flush was under way needs another one.
  if (nvme_->unflushed()) {
    return nvme_->Flush([this](const absl::Status& flushed) { OnInitialFlushed(flushed); });
  }
  initial_unflushed_ = false;
  if (prepare_waiting_.has_value()) PrepareNow(*std::exchange(prepare_waiting_, std::nullopt));
}

// --- Rounds -------------------------------------------------------------------------------------

// A round is over: what it wrote is flushed once, and what the next sweep begins with is loaded
// while gradients come in.
void Engine::EndSweep() {
  nvme_->SetVersion(fsm_.round());
  FlushTier();
  nvme_->BeginSweep({});
  nvme_->Prefetch(NextSweep());
}

void Engine::FlushTier() {
  nvme_->Flush([this](const absl::Status& status) {
    if (!status.ok()) return StorageFailed(status);
    PumpCheckpoints();
  });
}

// Extents that no round touches, or whose rounds were skipped, are written all the same before the
// log has to keep more rounds than it has room for.
void Engine::SaveOldExtents() {
  const uint64_t round = fsm_.round();
  const uint64_t rounds = config_.checkpoint_rounds;
  const uint64_t below = log_->short_of_room() ? round : round - std::min(round, rounds);
  while (saving_old_ < kSavingOldMax) {
    const int64_t extent = nvme_->OldestBelow(below);
    if (extent < 0) break;
    ++saving_old_;
    nvme_->Save(static_cast<uint32_t>(extent), /*initial=*/false,
                [this](const absl::Status& status) {
                  --saving_old_;
                  if (!status.ok()) return StorageFailed(status);
                  if (saving_old_ == 0) FlushTier();
                });
  }
  // What was written for other reasons may be all that is missing.
  if (log_->short_of_room() && saving_old_ == 0 && nvme_->unflushed()) FlushTier();
}

// --- State out of the server --------------------------------------------------------------------

void Engine::SendExtentState(const std::shared_ptr<StateStream>& stream, uint32_t extent) {
  const auto next = FromDisk([stream, extent](Engine* self, const absl::Status&) {
    self->nvme_->Release(extent, 0);
    self->SendState(stream);
  });
  // Its end, wherever the last byte is sent, gives the planes back.
  const std::shared_ptr<const void> planes(
      nvme_->State(extent),
      [next, self = shared_from_this()](const void*) { next(absl::OkStatus()); });
  if (!StillWanted(*stream)) return;
  if (stream->weights) SendWeightsOf(stream->sink.get(), extent);
  for (const uint32_t array : stream->arrays) {
    SendArrayOf(stream->sink.get(), extent, array, planes);
  }
}

// Waits for the disk; only while the job has nothing else to do.
absl::Status Engine::ReadImage(uint32_t extent, void* to) {
  Mutex mu;
  CondVar cv;
  bool done = false;
  absl::Status outcome;
  log_->image_io()->Read(extent, to, [&](const absl::Status& status) {
    MutexLock lock(&mu);
    outcome = status;
    done = true;
    cv.NotifyAll();
  });
  MutexLock lock(&mu);
  while (!done) cv.Wait(&mu);
  return outcome;
}

}  // namespace ballast::server
