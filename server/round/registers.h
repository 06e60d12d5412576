// Registers per (extent, slot) of one round: the received frames, with their checksums. Dedup is a
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

  // The verdict of Put, without recording the frame.
  FrameVerdict Look(uint32_t row, uint32_t column, ChunkRange range, uint32_t crc32c) const {
    const Entry* entry = Find(row, column, range);
    if (entry == nullptr) return FrameVerdict::kNoSuchRange;
    if (!entry->present) return FrameVerdict::kNew;
    return entry->crc32c == crc32c ? FrameVerdict::kDuplicate : FrameVerdict::kConflict;
  }

  // Records one frame; kNew sets its entry.
  FrameVerdict Put(uint32_t row, uint32_t column, ChunkRange range, uint32_t crc32c) {
    const FrameVerdict verdict = Look(row, column, range, crc32c);
    if (verdict != FrameVerdict::kNew) return verdict;
    auto* entry = const_cast<Entry*>(Find(row, column, range));
    entry->present = true;
    entry->crc32c = crc32c;
    --At(row, column).missing;
    return verdict;
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
  // The entry of exactly `range`, or null.
  const Entry* Find(uint32_t row, uint32_t column, ChunkRange range) const {
    for (const Entry& entry : cells_[size_t{row} * columns_ + column].entries) {
      if (entry.range.offset_bytes != range.offset_bytes) continue;
      return entry.range.length_bytes == range.length_bytes ? &entry : nullptr;
    }
    return nullptr;
  }

  uint32_t columns_ = 0;
  std::vector<Cell> cells_;
};

}  // namespace ballast::server
