// Checkpointer: which extent is written to its image next, and when. Every round a share of the
// extents is due, so that each of them is written once in `rounds` rounds; initial weights are due
// at once. An image is written from the state's own pages, which the tier keeps unchanged
// meanwhile; only where a short last tile has another form in images is it copied first. Comes
// from: MemoryPlacement. Goes to: ImageStore::WriteImage. Thread safety: thread-compatible; used on
// the job's strand.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/arena.h"
#include "server/durability/round_log.h"
#include "server/tier/dram_tier.h"
#include "server/tier/image_copy.h"

namespace ballast::server {

class Checkpointer {
 public:
  // `on_written` gets every write's outcome, on any thread; the caller brings it back to its strand
  // and calls OnWritten.
  using Written = std::function<void(absl::Status)>;
  // Brings a completion to the caller's strand, as PlacementLinks::wrap.
  using Wrap = std::function<ImageIo::Done(ImageIo::Done)>;
  // Of equally old extents the first of `extents` is written first. RESOURCE_EXHAUSTED.
  static absl::StatusOr<Checkpointer> Create(const StateShape& shape,
                                             std::vector<PlacedExtent> extents, uint32_t rounds);

  // The extent has all its initial weights: it must be on disk before the first vote.
  void AddInitial(uint32_t extent) { initial_.push_back(extent); }
  // Initial weights come again: queued writes of the old ones are dropped.
  void DropInitial() { initial_.clear(); }
  // Initial weights are not on disk yet.
  bool initial_pending() const { return !initial_.empty() || initial_writing_ != 0; }

  // A round ended: another share is due.
  void OnRound();

  // Starts writes of the present state, which is that of `version` and stays so until the next Pump
  // or step, of extents under write until they are written. `tier` lives until then, and `wrap`
  // brings the end of each to its strand. `short_of_room`: the log waits for newer images.
  void Pump(const std::shared_ptr<DramTier>& tier, ImageStore* images, uint64_t version,
            bool short_of_room, const Wrap& wrap, const Written& on_written);
  // A write is over.
  void OnWritten();

 private:
  // Writes under way: one is due when the other is over.
  static constexpr uint32_t kWritingMax = 2;

  // Index in extents_ of the extent whose image is oldest; SIZE_MAX when all have `version`.
  size_t Oldest(uint64_t version) const;
  size_t IndexOf(uint32_t extent) const;
  // The memory that the image of an extent is written from, and its checksums where they are known.
  // RESOURCE_EXHAUSTED: no buffer for a copy is free.
  absl::StatusOr<ExtentImage> Form(const std::shared_ptr<DramTier>& tier, const PlacedExtent& one,
                                   const Wrap& wrap);

  StateShape shape_;
  std::vector<PlacedExtent> extents_;  // stored: also while that version is being written
  uint32_t share_ = 1;
  std::vector<BufferPool> pool_;  // of copies; one, or none where none are made
  std::deque<uint32_t> initial_;
  std::deque<bool> writing_;  // in order of their start; true: initial weights
  uint32_t initial_writing_ = 0;
  uint64_t due_ = 0;
};

}  // namespace ballast::server
