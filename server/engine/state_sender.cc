#include "server/engine/state_sender.h"

#include <utility>

namespace ballast::server {

void StateSender::Send(SendRequest request) {
  auto stream = std::make_shared<Stream>();
  stream->sink = sinks_->Sink(request.slot);
  stream->request = std::move(request);
  Continue(stream);
}

std::shared_ptr<SlotSink> StateSender::Reader(const Stream& stream) const {
  const Phase phase = fsm_->phase();
  const bool steady =
      phase != Phase::kApplying && phase != Phase::kFailed && phase != Phase::kFinished;
  if (!steady || fsm_->round() != stream.request.round) return nullptr;
  std::shared_ptr<SlotSink> sink = stream.sink.lock();
  return sinks_->Sink(stream.request.slot) == sink ? sink : nullptr;
}

void StateSender::Continue(const StreamRef& stream) {
  const SendRequest& request = stream->request;
  Tier* const tier = state_->store.tier();
  while (const std::shared_ptr<SlotSink> sink = Reader(*stream)) {
    if (stream->next == request.extents.size()) {
      if (stream->held == 0 && request.end) request.end();
      return;
    }
    const uint32_t extent = request.extents[stream->next];
    // No arrays are needed for formed weights, nor for a request that has only its end.
    if (request.arrays.empty() && (!request.weights || state_->weights.Find(extent))) {
      ++stream->next;
      if (request.weights) SendWeights(sink.get(), extent);
      continue;
    }
    if (stream->held >= tier->read_depth()) return;
    ++stream->next;
    ++stream->held;
    tier->Acquire(extent, [this, stream, extent](const absl::Status& status) {
      status.ok() ? SendExtent(stream, extent) : rounds_->StorageFailed(status);
    });
  }
}

void StateSender::SendExtent(const StreamRef& stream, uint32_t extent) {
  const auto next = strand_->Callback([this, stream, extent](const absl::Status&) {
    state_->store.tier()->Release(extent, 0);
    --stream->held;
    Continue(stream);
  });
  // Its deleter, on the thread that sends the last byte, gives the arrays back.
  const std::shared_ptr<const void> arrays(
      state_->store.State(extent),
      [next, engine = strand_->KeepAlive()](const void*) { next(absl::OkStatus()); });
  const std::shared_ptr<SlotSink> sink = Reader(*stream);
  if (sink == nullptr) return;
  if (stream->request.weights) SendWeights(sink.get(), extent);
  for (const uint32_t array : stream->request.arrays) SendArray(sink.get(), extent, array, arrays);
}

void StateSender::SendWeights(SlotSink* sink, uint32_t extent) {
  const Layout& layout = fsm_->layout();
  const DType dtype = layout.extents()[extent].dtype;
  BufferRef weights = state_->weights.Find(extent);
  if (!weights) {
    absl::StatusOr<BufferRef> buffer = state_->weights.Acquire(layout, extent);
    if (!buffer.ok()) {
      sink->OnError(buffer.status());
      return;
    }
    weights = *std::move(buffer);
    state_->store.ReadWeights(layout, extent, weights.data());
    state_->weights.Keep(extent, weights);
  }
  sink->OnExtent({.kind = FrameKind::kWeight,
                  .round = fsm_->round(),
                  .extent = extent,
                  .dtype = dtype,
                  .bytes = {weights.data(), layout.ExtentWireBytes(extent), weights.ToShared()}});
}

// State arrays go out in place: no round is applied before the requesting slot begins it.
void StateSender::SendArray(SlotSink* sink, uint32_t extent, uint32_t array,
                            const std::shared_ptr<const void>& owner) {
  const Layout& layout = fsm_->layout();
  for (uint32_t t = 0; t < TileCount(layout, extent); ++t) {
    const TileView tile = state_->store.Tile(extent, t);
    const float* const values = tile.array[array];
    sink->OnExtent(
        {.kind = FrameKind::kState,
         .array = static_cast<uint8_t>(array),
         .round = fsm_->round(),
         .extent = extent,
         .dtype = DType::kF32,
         .offset_bytes = t * layout.tile_elements() * 4,
         .bytes = {reinterpret_cast<const char*>(values), size_t{tile.elements} * 4, owner}});
  }
}

}  // namespace ballast::server
