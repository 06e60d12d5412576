// DramTier: the tier in memory, whose pages are written to images where they stand. While an image
// of an extent is read from them, they may not change: Acquire waits. So a step comes to the
// extents under write last, and no copy is made for a checkpoint.
// Comes from: MemoryPlacement, tests. Goes to: common/io arenas. Thread safety: as Tier.
#pragma once

#include <functional>
#include <memory>

#include "server/tier/tier.h"

namespace ballast::server {

class DramTier : public Tier {
 public:
  // State of the extent is read until EndWrite, called as often as this: no Acquire of it is
  // answered. Extents that are acquired now must not be changed before they are released.
  virtual void BeginWrite(uint32_t extent) = 0;
  // Answers the calls of Acquire that waited, in their order, until one begins another write.
  virtual void EndWrite(uint32_t extent) = 0;
  // `quiet` runs when no extent is under write, perhaps within the call.
  virtual void WhenQuiet(std::function<void()> quiet) = 0;
  // The job has ended: calls of Acquire that wait are not answered any more.
  virtual void DropWaiting() = 0;
};

// State in huge-page memory, array by array in each tile (tile_layout.h), updated in place. Every
// extent counts as acquired at all times, apart from those under write.
std::unique_ptr<DramTier> MakeDramTier(const StateShape& shape);

}  // namespace ballast::server
