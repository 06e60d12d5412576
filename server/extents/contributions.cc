#include "server/extents/contributions.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "common/faults/mutant.h"
#include "server/round/job_plan.h"

namespace ballast::server {
namespace {

// The payload of a NaN depends on the instruction set.
constexpr uint32_t kCanonicalNanBits = 0x7FC00000;

}  // namespace

Contributions::Contributions(const Layout& layout, const std::vector<uint32_t>& owned,
                             const EpochRecord& epoch, uint32_t window_extents)
    : seats_(epoch.seats()),
      contributors_(std::max<uint32_t>(1, MostContributors(epoch.contributors))),
      window_extents_(window_extents) {
  // The FSM's window bounds the registers; the pools' limits only have to be out of its way.
  for (const uint32_t extent : owned) {
    const DType dtype = layout.extents()[extent].dtype;
    pools_.Allow(GradientBufferBytes(layout, extent, dtype), contributors_ + 2);
    pools_.Allow(GradientBufferBytes(layout, extent, DType::kF32), 2);
  }
}

void Contributions::Prepare(const Layout& layout, const std::vector<uint32_t>& owned) {
  std::map<uint64_t, size_t> registers;  // by their size
  for (size_t i = 0; i < std::min<size_t>(owned.size(), window_extents_); ++i) {
    const DType dtype = layout.extents()[owned[i]].dtype;
    registers[GradientBufferBytes(layout, owned[i], dtype)] += contributors_;
  }
  for (const auto& [bytes, count] : registers) pools_.Prepare(bytes, count);
}

absl::StatusOr<BufferRef> Contributions::Acquire(const Layout& layout, uint32_t extent,
                                                 DType dtype) {
  return pools_.Acquire(GradientBufferBytes(layout, extent, dtype));
}

absl::StatusOr<uint32_t> Contributions::Store(const Layout& layout, const FrameHeader& frame,
                                              const Payload& payload) {
  extents_.resize(layout.extents().size());
  ExtentBuffers& buffers = extents_[frame.extent];
  buffers.grads.resize(seats_);
  BufferRef& reg = buffers.grads[frame.slot];
  if (!reg) {
    BALLAST_ASSIGN_OR_RETURN(reg,
                             Acquire(layout, frame.extent, layout.extents()[frame.extent].dtype));
  }
  BALLAST_CHECK(frame.offset_bytes + payload.bytes() <= reg.bytes());
  char* to = reg.data() + frame.offset_bytes;
  uint32_t crc = IdentityCrc(frame);
  for (const Payload::Piece& piece : payload.pieces()) {
    crc = Crc32cCopy(to, piece.data, piece.bytes, crc);
    to += piece.bytes;
  }
  return crc;
}

absl::StatusOr<std::shared_ptr<ReduceWork>> Contributions::MakeWork(const RoundFsm& fsm,
                                                                    uint32_t extent_id) {
  const Layout& layout = fsm.layout();
  const Extent& extent = layout.extents()[extent_id];
  const std::vector<uint32_t>& slots = fsm.Contributors(extent_id);
  extents_.resize(layout.extents().size());
  ExtentBuffers& buffers = extents_[extent_id];
  buffers.grads.resize(seats_);

  auto work = std::make_shared<ReduceWork>();
  work->extent = extent_id;
  for (const uint32_t slot : slots) work->grads.push_back(buffers.grads[slot].data());
  if (BALLAST_MUTANT(kArrivalOrderSum)) std::sort(work->grads.begin(), work->grads.end());
  work->slots = slots;
  bool all_present = true;
  for (uint32_t i = 0; i < extent.run_count; ++i) {
    const Run& run = layout.runs()[extent.first_run + i];
    std::vector<uint8_t> present;
    for (const uint32_t slot : slots) present.push_back(fsm.Present(slot, run.tensor) ? 1 : 0);
    all_present = all_present && std::all_of(present.begin(), present.end(),
                                             [](uint8_t flag) { return flag != 0; });
    work->present.push_back(std::move(present));
    work->runs.push_back({run.extent_offset, run.elements, work->present.back().data()});
  }
  work->input = {.dtype = extent.dtype,
                 .grads = work->grads.data(),
                 .slots = slots.size(),
                 .runs = all_present ? nullptr : work->runs.data(),
                 .run_count = all_present ? 0 : work->runs.size(),
                 .count = extent.elements,
                 .tile_elements = layout.tile_elements(),
                 .sum = nullptr};
  buffers.only_slot = slots.front();
  if (reduce::NeedsSum(work->input)) {
    BALLAST_ASSIGN_OR_RETURN(buffers.sum, Acquire(layout, extent_id, DType::kF32));
    work->input.sum = reinterpret_cast<float*>(buffers.sum.data());
  }
  work->norms.resize(reduce::TileCount(work->input));
  return work;
}

void Contributions::OnReduced(const ReduceWork& work) {
  if (work.input.sum == nullptr) return;
  for (BufferRef& grad : extents_[work.extent].grads) grad.Reset();
}

GradientView Contributions::Gradient(const Layout& layout, uint32_t extent_id) const {
  const ExtentBuffers& buffers = extents_[extent_id];
  const Extent& extent = layout.extents()[extent_id];
  if (buffers.sum) {
    return {buffers.sum.data(), DType::kF32, size_t{extent.elements} * 4, buffers.sum.ToShared()};
  }
  const BufferRef& only = buffers.grads[buffers.only_slot];
  return {only.data(), extent.dtype, layout.ExtentWireBytes(extent_id), only.ToShared()};
}

absl::StatusOr<char*> Contributions::Restore(const Layout& layout,
                                             const std::vector<uint32_t>& contributors,
                                             const LoggedExtent& logged) {
  extents_.resize(layout.extents().size());
  ExtentBuffers& buffers = extents_[logged.extent];
  buffers.grads.resize(seats_);
  buffers.only_slot = contributors.front();
  const bool sum = logged.dtype != layout.extents()[logged.extent].dtype ||
                   (logged.dtype == DType::kF32 && contributors.size() > 1);
  BufferRef& to = sum ? buffers.sum : buffers.grads[buffers.only_slot];
  BALLAST_ASSIGN_OR_RETURN(to, Acquire(layout, logged.extent, logged.dtype));
  return to.data();
}

void Contributions::Release(uint32_t extent) {
  if (extent < extents_.size()) extents_[extent] = ExtentBuffers();
}

void Contributions::ReleaseAll() { extents_.clear(); }

void ReduceTile(const reduce::KernelTable& kernels, ReduceWork* work, size_t tile) {
  work->norms[tile] = reduce::ReduceTile(kernels, work->input, tile);
}

ReducedNorm FinishReduce(const reduce::KernelTable& kernels, const ReduceWork& work) {
  ReducedNorm out;
  for (const reduce::TileNorm& tile : work.norms) out.norm.Add(tile);
  if (std::isfinite(out.norm.sumsq)) return out;
  const auto tile =
      std::find_if(work.norms.begin(), work.norms.end(), [&](const reduce::TileNorm& norm) {
        return out.norm.nonfinite != 0 ? norm.nonfinite != 0 : !std::isfinite(norm.sumsq);
      });
  const reduce::NonfiniteElement found =
      reduce::FindNonfinite(kernels, work.input, static_cast<size_t>(tile - work.norms.begin()));
  out.first_nonfinite = {.kind = !std::isfinite(found.value) ? NonfiniteKind::kGradient
                                 : !std::isfinite(found.sum) ? NonfiniteKind::kSum
                                                             : NonfiniteKind::kNorm,
                         .extent = work.extent,
                         .element = static_cast<uint32_t>(found.element),
                         .slot = work.slots[found.slot],
                         .value_bits = std::isnan(found.value)
                                           ? kCanonicalNanBits
                                           : std::bit_cast<uint32_t>(found.value)};
  return out;
}

}  // namespace ballast::server
