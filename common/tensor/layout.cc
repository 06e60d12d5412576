#include "common/tensor/layout.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr uint32_t kTileElementsMin = 64;
constexpr uint32_t kExtentElementsMax = 16u << 20;

absl::Status CheckGeometry(uint32_t tile_elements, uint32_t extent_elements) {
  if (tile_elements < kTileElementsMin || tile_elements % 64 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("tile_elements is ", tile_elements,
                                                   "; it must be a multiple of 64, at least 64"));
  }
  if (extent_elements < tile_elements || extent_elements % tile_elements != 0 ||
      extent_elements > kExtentElementsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "extent_elements is ", extent_elements, "; it must be a multiple of tile_elements (",
        tile_elements, "), at most ", kExtentElementsMax));
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const std::vector<LayoutTensor>& tensors, uint64_t elements_before,
                          uint32_t extent_elements) {
  // Extent ids and run offsets are 32-bit; 2^44 elements keep them far from their limits.
  constexpr uint64_t kElementsMax = uint64_t{1} << 44;
  uint64_t total = elements_before;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (DTypeBytes(tensors[i].dtype) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", i, " has no dtype"));
    }
    if (tensors[i].elements > kElementsMax - total) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", i, " brings the job to more than ", kElementsMax, " elements"));
    }
    total += tensors[i].elements;
  }
  // Each tensor can begin a flat space, and with it a short extent. Known before any is made.
  constexpr uint64_t kExtentsMax = uint64_t{1} << 21;
  const uint64_t extents = total / extent_elements + tensors.size();
  if (extents > kExtentsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(total, " elements in extents of ", extent_elements, " make up to ", extents,
                     " extents; at most ", kExtentsMax, " are allowed. Raise extent_elements"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Layout> Layout::Build(const std::vector<LayoutTensor>& tensors,
                                     uint32_t tile_elements, uint32_t extent_elements) {
  if (absl::Status st = CheckGeometry(tile_elements, extent_elements); !st.ok()) return st;
  if (absl::Status st = CheckTensors(tensors, 0, extent_elements); !st.ok()) return st;
  Layout layout;
  layout.tile_elements_ = tile_elements;
  layout.extent_elements_ = extent_elements;
  layout.tensors_ = tensors;
  layout.AppendSpaces(0);
  return layout;
}

absl::Status Layout::Append(const std::vector<LayoutTensor>& tensors) {
  if (absl::Status st = CheckTensors(tensors, total_elements_, extent_elements_); !st.ok())
    return st;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const LayoutTensor& old : tensors_) {
      if (old.group == tensors[i].group) {
        return absl::InvalidArgumentError(
            absl::StrCat("appended tensor ", i, " is in group ", tensors[i].group,
                         ", which exists; only new groups can grow a job"));
      }
    }
  }
  const size_t first = tensors_.size();
  tensors_.insert(tensors_.end(), tensors.begin(), tensors.end());
  AppendSpaces(first);
  return absl::OkStatus();
}

void Layout::AppendSpaces(size_t first_tensor) {
  // Flat spaces in the order in which their first tensor appears.
  std::map<std::pair<uint32_t, DType>, size_t> index;
  std::vector<std::vector<uint32_t>> spaces;
  for (size_t t = first_tensor; t < tensors_.size(); ++t) {
    total_elements_ += tensors_[t].elements;
    const auto key = std::make_pair(tensors_[t].group, tensors_[t].dtype);
    auto [it, fresh] = index.try_emplace(key, spaces.size());
    if (fresh) spaces.emplace_back();
    spaces[it->second].push_back(static_cast<uint32_t>(t));
  }
  for (const std::vector<uint32_t>& space : spaces) {
    Extent* extent = nullptr;
    for (uint32_t t : space) {
      uint64_t offset = 0;
      while (offset < tensors_[t].elements) {
        if (extent == nullptr || extent->elements == extent_elements_) {
          extents_.push_back(
              {tensors_[t].group, tensors_[t].dtype, 0, static_cast<uint32_t>(runs_.size()), 0});
          extent = &extents_.back();
        }
        const uint64_t room = extent_elements_ - extent->elements;
        const auto take = static_cast<uint32_t>(std::min(room, tensors_[t].elements - offset));
        runs_.push_back({t, offset, extent->elements, take});
        extent->elements += take;
        ++extent->run_count;
        offset += take;
      }
    }
  }
  OrderExtents();
}

void Layout::OrderExtents() {
  push_order_.resize(extents_.size());
  std::vector<uint32_t> last_tensor(extents_.size());
  for (uint32_t e = 0; e < extents_.size(); ++e) {
    push_order_[e] = e;
    last_tensor[e] = runs_[extents_[e].first_run + extents_[e].run_count - 1].tensor;
  }
  std::sort(push_order_.begin(), push_order_.end(), [&](uint32_t a, uint32_t b) {
    return std::make_pair(last_tensor[a], a) > std::make_pair(last_tensor[b], b);
  });
  turns_.resize(extents_.size());
  std::map<std::pair<uint32_t, DType>, uint32_t> next;
  for (const uint32_t extent : push_order_) {
    turns_[extent] = next[{extents_[extent].group, extents_[extent].dtype}]++;
  }
}

uint32_t Layout::ExtentWireBytes(uint32_t extent) const {
  return extents_[extent].elements * static_cast<uint32_t>(DTypeBytes(extents_[extent].dtype));
}

std::vector<uint32_t> PlanOwners(const Layout& layout, uint32_t server_count,
                                 const std::vector<uint32_t>& existing) {
  std::vector<uint32_t> owners = existing;
  std::vector<uint64_t> load(server_count, 0);
  const auto& extents = layout.extents();
  // State (p, m, v) dominates an extent's bytes and does not depend on its dtype.
  for (size_t e = 0; e < owners.size(); ++e) load[owners[e]] += extents[e].elements;
  for (size_t e = owners.size(); e < extents.size(); ++e) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += extents[e].elements;
    owners.push_back(static_cast<uint32_t>(least - load.begin()));
  }
  return owners;
}

std::vector<ChunkRange> ChunkRanges(const Layout& layout, uint32_t extent, uint32_t chunk_bytes,
                                    const std::vector<bool>& present) {
  const Extent& ext = layout.extents()[extent];
  const auto element_bytes = static_cast<uint32_t>(DTypeBytes(ext.dtype));
  std::vector<ChunkRange> ranges;
  uint32_t i = 0;
  while (i < ext.run_count) {
    const Run& first = layout.runs()[ext.first_run + i];
    uint32_t end = first.extent_offset;
    while (i < ext.run_count) {
      const Run& run = layout.runs()[ext.first_run + i];
      if (!present.empty() && !present[run.tensor]) break;
      end = run.extent_offset + run.elements;
      ++i;
    }
    uint32_t at = first.extent_offset * element_bytes;
    const uint32_t stop = end * element_bytes;
    while (at < stop) {
      const uint32_t cell_end = (at / chunk_bytes + 1) * chunk_bytes;
      const uint32_t next = std::min(stop, cell_end);
      ranges.push_back({at, next - at});
      at = next;
    }
    if (end == first.extent_offset) ++i;  // The run itself was absent.
  }
  return ranges;
}

}  // namespace ballast
