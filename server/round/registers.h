// Registers per (extent, slot) of one round: which frames are in, with their checksums. Dedup is a
// register per key, never a counter, so that a duplicate, late or conflicting frame is recognised.
// Comes from: RoundFsm. Goes to: RoundFsm. Thread safety: thread-compatible, owned by the FSM.
#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor/layout.h"

namespace ballast::server {

enum class FrameVerdict : uint8_t { kNew, kDuplicate, kConflict, kNoSuchRange };

class Registers {
 public:
  // `rows` extents times `columns` slots, all closed.
  void Reset(uint32_t rows, uint32_t columns) {
    columns_ = columns;
    cells_.assign(size_t{rows} * columns, Cell());
  }

  // Opens a register that expects exactly `ranges` (ascending).
  void Open(uint32_t row, uint32_t column, std::vector<ChunkRange> ranges) {
    Cell& cell = At(row, column);
    cell.missing = static_cast<uint32_t>(ranges.size());
    cell.entries.clear();
    cell.entries.reserve(ranges.size());
    for (const ChunkRange& range : ranges) cell.entries.push_back({range, 0, false});
  }

  // Records one frame; kNew sets its entry.
  FrameVerdict Put(uint32_t row, uint32_t column, ChunkRange range, uint32_t crc32c) {
    Cell& cell = At(row, column);
    for (Entry& entry : cell.entries) {
      if (entry.range.offset_bytes != range.offset_bytes) continue;
      if (entry.range.length_bytes != range.length_bytes) return FrameVerdict::kNoSuchRange;
      if (entry.present) {
        return entry.crc32c == crc32c ? FrameVerdict::kDuplicate : FrameVerdict::kConflict;
      }
      entry.present = true;
      entry.crc32c = crc32c;
      --cell.missing;
      return FrameVerdict::kNew;
    }
    return FrameVerdict::kNoSuchRange;
  }

  bool Complete(uint32_t row, uint32_t column) const {
    return cells_[size_t{row} * columns_ + column].missing == 0;
  }

 private:
  struct Entry {
    ChunkRange range;
    uint32_t crc32c = 0;
    bool present = false;
  };
  struct Cell {
    std::vector<Entry> entries;
    uint32_t missing = 0;
  };
  Cell& At(uint32_t row, uint32_t column) { return cells_[size_t{row} * columns_ + column]; }

  uint32_t columns_ = 0;
  std::vector<Cell> cells_;
};

}  // namespace ballast::server
