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

// The bytes of a tile in the sum.
struct SumTile {
  size_t offset;
  size_t bytes;
};
SumTile SumOf(const ReduceWork& work, size_t tile) {
  const size_t begin = tile * work.input.tile_elements;
  const size_t elements = std::min(work.input.tile_elements, work.input.count - begin);
  return {begin * sizeof(float), elements * sizeof(float)};
}

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
  CheckedBuffer& reg = buffers.grads[frame.slot];
  if (!reg.buffer) {
    BALLAST_ASSIGN_OR_RETURN(reg.buffer,
                             Acquire(layout, frame.extent, layout.extents()[frame.extent].dtype));
  }
  BALLAST_CHECK(frame.offset_bytes + payload.bytes() <= reg.buffer.bytes());
  char* to = reg.buffer.data() + frame.offset_bytes;
  uint32_t crc = 0;
  for (const Payload::Piece& piece : payload.pieces()) {
    crc = Crc32cCopy(to, piece.data, piece.bytes, crc);
    to += piece.bytes;
  }
  // That of the bytes that are there now, also where it is not the one that the frame names.
  reg.checksums.Put(frame.offset_bytes, payload.bytes(), crc);
  return Crc32cJoin(IdentityCrc(frame), crc, payload.bytes());
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
  for (const uint32_t slot : slots) work->grads.push_back(buffers.grads[slot].buffer.data());
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
  work->norms.resize(reduce::TileCount(work->input));
  if (reduce::NeedsSum(work->input)) BALLAST_RETURN_IF_ERROR(MakeSum(fsm, work.get()));
  return work;
}

absl::Status Contributions::MakeSum(const RoundFsm& fsm, ReduceWork* work) {
  CheckedBuffer& sum = extents_[work->extent].sum;
  sum = CheckedBuffer();
  BALLAST_ASSIGN_OR_RETURN(sum.buffer, Acquire(fsm.layout(), work->extent, DType::kF32));
  work->input.sum = reinterpret_cast<float*>(sum.buffer.data());
  if (!fsm.durable()) return absl::OkStatus();
  work->input.sum_is_read = true;
  work->sum_crcs.resize(work->norms.size());
  return absl::OkStatus();
}

void Contributions::OnReduced(const ReduceWork& work) {
  if (work.input.sum == nullptr) return;
  ExtentBuffers& buffers = extents_[work.extent];
  for (size_t tile = 0; tile < work.sum_crcs.size(); ++tile) {
    const SumTile at = SumOf(work, tile);
    buffers.sum.checksums.Put(at.offset, at.bytes, work.sum_crcs[tile]);
  }
  for (CheckedBuffer& grad : buffers.grads) grad = CheckedBuffer();
}

const Contributions::CheckedBuffer& Contributions::Reduced(uint32_t extent) const {
  const ExtentBuffers& buffers = extents_[extent];
  return buffers.sum.buffer ? buffers.sum : buffers.grads[buffers.only_slot];
}

GradientView Contributions::Gradient(const Layout& layout, uint32_t extent_id) const {
  const Extent& extent = layout.extents()[extent_id];
  const DType dtype = extents_[extent_id].sum.buffer ? DType::kF32 : extent.dtype;
  const BufferRef& buffer = Reduced(extent_id).buffer;
  return {buffer.data(), dtype, extent.elements * DTypeBytes(dtype), buffer.ToShared()};
}

std::optional<uint32_t> Contributions::Checksum(const Layout& layout, uint32_t extent_id) const {
  return Reduced(extent_id).checksums.Whole(Gradient(layout, extent_id).bytes);
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
  CheckedBuffer& to = sum ? buffers.sum : buffers.grads[buffers.only_slot];
  to = CheckedBuffer();
  BALLAST_ASSIGN_OR_RETURN(to.buffer, Acquire(layout, logged.extent, logged.dtype));
  return to.buffer.data();
}

void Contributions::Release(uint32_t extent) {
  if (extent < extents_.size()) extents_[extent] = ExtentBuffers();
}

void Contributions::ReleaseAll() { extents_.clear(); }

void ReduceTile(const reduce::KernelTable& kernels, ReduceWork* work, size_t tile) {
  work->norms[tile] = reduce::ReduceTile(kernels, work->input, tile);
  if (work->sum_crcs.empty()) return;
  const SumTile at = SumOf(*work, tile);
  work->sum_crcs[tile] = Crc32c(reinterpret_cast<char*>(work->input.sum) + at.offset, at.bytes);
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
