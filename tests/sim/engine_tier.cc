// SimEngine: what is different for a job whose state lives on NVMe. See engine.h; the mirror of
// InitialWeights, ImageKeeper and Sweep of server/round. Thread safety: one thread.
#include <algorithm>
#include <utility>

#include "tests/sim/engine.h"

namespace ballast::sim {

using namespace server;  // NOLINT: the room that this file mirrors.

namespace {

constexpr size_t kSavingOldMax = 2;

}  // namespace

void SimEngine::ConnectTier() {
  if (nvme_ == nullptr) return;
  nvme_->Connect(
      log_->image_io(),
      [this](ImageIo::Done done) -> ImageIo::Done {
        return [this, done = std::move(done)](const absl::Status& status) {
          After(0, EventKind::kStrand, [done, status] { done(status); });
        };
      },
      deps_.storage_failed);
  nvme_->SetVersion(fsm_.round());
  nvme_->Prefetch(NextSweep());
}

std::vector<uint32_t> SimEngine::NextSweep() const {
  std::vector<uint32_t> order(fsm_.owned().rbegin(), fsm_.owned().rend());
  if (sweep_backward_) std::reverse(order.begin(), order.end());
  return order;
}

// --- Initial weights ----------------------------------------------------------------------------

void SimEngine::PutInitial(const FrameHeader& frame, const Payload& payload) {
  if (nvme_ == nullptr) {
    const auto width = static_cast<uint32_t>(DTypeBytes(frame.dtype));
    const std::string bytes = payload.ToString();
    store_.WriteMaster(fsm_.layout(), frame.extent, frame.offset_bytes / width, bytes.data(),
                       frame.length_bytes / width);
    if (frame.extent < weights_.size()) weights_[frame.extent].reset();
    return;
  }
  std::shared_ptr<std::vector<char>>& staged = staged_[frame.extent];
  if (staged == nullptr) {
    staged = std::make_shared<std::vector<char>>(fsm_.layout().ExtentWireBytes(frame.extent));
  }
  payload.CopyTo(staged->data() + frame.offset_bytes);
}

void SimEngine::TakeInitial(uint32_t extent) {
  const std::shared_ptr<std::vector<char>> weights = std::move(staged_.at(extent));
  staged_.erase(extent);
  ++initial_saving_;
  initial_unflushed_ = true;
  if (extent < weights_.size()) weights_[extent].reset();
  nvme_->Acquire(extent, [this, extent, weights](const absl::Status& status) {
    if (!status.ok()) return OnInitialSaved(status);
    const Layout& layout = fsm_.layout();
    store_.WriteMaster(layout, extent, 0, weights->data(), layout.extents()[extent].elements);
    store_.ReadWeights(layout, extent, weights->data());
    weights_.resize(layout.extents().size());
    weights_[extent] = weights;
    nvme_->Save(extent, /*initial=*/true,
                [this](const absl::Status& saved) { OnInitialSaved(saved); });
    nvme_->Release(extent, fsm_.round());
  });
}

void SimEngine::OnInitialSaved(const absl::Status& status) {
  --initial_saving_;
  if (!status.ok()) return deps_.storage_failed(status);
  if (initial_saving_ != 0) return;
  nvme_->Flush([this](const absl::Status& flushed) { OnInitialFlushed(flushed); });
}

void SimEngine::OnInitialFlushed(const absl::Status& status) {
  if (!status.ok()) return deps_.storage_failed(status);
  if (initial_saving_ != 0) return;
  if (nvme_->unflushed()) {
    return nvme_->Flush([this](const absl::Status& flushed) { OnInitialFlushed(flushed); });
  }
  initial_unflushed_ = false;
  if (prepare_waiting_.has_value()) PrepareNow(*std::exchange(prepare_waiting_, std::nullopt));
}

// --- Rounds -------------------------------------------------------------------------------------

void SimEngine::PumpSweep(const std::shared_ptr<StepPlan>& plan) {
  while (Alive() && sweep_next_ < sweep_.size() &&
         sweep_under_way_ < store_.tier()->sweep_depth()) {
    const uint32_t extent = sweep_[sweep_next_++];
    ++sweep_under_way_;
    store_.tier()->Acquire(extent, [this, extent, plan](const absl::Status& status) {
      if (status.ok()) {
        StepExtent(extent, plan);
      } else {
        deps_.storage_failed(status);
      }
    });
  }
}

void SimEngine::EndSweep() {
  nvme_->SetVersion(fsm_.round());
  FlushTier();
  nvme_->BeginSweep({});
  nvme_->Prefetch(NextSweep());
}

void SimEngine::FlushTier() {
  nvme_->Flush([this](const absl::Status& status) {
    if (!status.ok()) return deps_.storage_failed(status);
    PumpCheckpoints();
  });
}

void SimEngine::SaveOldExtents() {
  const uint64_t round = fsm_.round();
  const uint64_t rounds = deps_.swarm->shape.checkpoint_rounds;
  const uint64_t below = log_->short_of_room() ? round : round - std::min(round, rounds);
  while (Alive() && saving_old_ < kSavingOldMax) {
    const int64_t extent = nvme_->OldestBelow(below);
    if (extent < 0) break;
    ++saving_old_;
    deps_.world->Met(Cover::kOldExtentSaved);
    nvme_->Save(static_cast<uint32_t>(extent), /*initial=*/false,
                [this](const absl::Status& status) {
                  --saving_old_;
                  if (!status.ok()) return deps_.storage_failed(status);
                  if (saving_old_ == 0) FlushTier();
                });
  }
  if (log_->short_of_room() && saving_old_ == 0 && nvme_->unflushed()) FlushTier();
}

// --- State out of the server --------------------------------------------------------------------

bool SimEngine::StillWanted(const StateStream& stream) const {
  return Alive() && !ended_ && fsm_.round() == stream.round && fsm_.phase() != Phase::kApplying &&
         stream.slot < sinks_.size() && sinks_[stream.slot] == stream.sink;
}

void SimEngine::SendState(const std::shared_ptr<StateStream>& stream) {
  while (StillWanted(*stream)) {
    if (stream->next == stream->extents.size()) {
      if (stream->end) stream->end();
      return;
    }
    const uint32_t extent = stream->extents[stream->next++];
    const bool formed = extent < weights_.size() && weights_[extent] != nullptr;
    if (nvme_ == nullptr || (stream->arrays.empty() && formed)) {
      SendExtentState(*stream, extent);
      continue;
    }
    nvme_->Acquire(extent, [this, stream, extent](const absl::Status& status) {
      if (!status.ok()) return deps_.storage_failed(status);
      if (StillWanted(*stream)) SendExtentState(*stream, extent);
      // The session has copied the planes; elsewhere the end of the last byte gives them back.
      After(deps_.swarm->pace.network, EventKind::kStrand, [this, stream, extent] {
        nvme_->Release(extent, 0);
        SendState(stream);
      });
    });
    return;
  }
}

void SimEngine::SendExtentState(const StateStream& stream, uint32_t extent) {
  if (stream.weights) SendWeightsOf(stream.sink.get(), extent);
  for (const uint32_t array : stream.arrays) SendArrayOf(stream.sink.get(), extent, array);
}

}  // namespace ballast::sim
