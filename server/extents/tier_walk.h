// TierWalk: a sweep over extents of a tier in the tier's own order, a few at a time: as many as it
// holds in memory.
//
//   Begin -> acquire -> ready ... Release -> Pump -> the next ... -> over
//
// Comes from: Sweep, FirstPass. Goes to: Tier. Thread safety: on the job's strand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/tier/tier.h"

namespace ballast::server {

class TierWalk {
 public:
  // `ready`: the extent is in memory until its Release. `failed`: the tier's storage failed.
  TierWalk(std::function<void(uint32_t)> ready, std::function<void(const absl::Status&)> failed)
      : ready_(std::move(ready)), failed_(std::move(failed)) {}

  // Starts work on the first of `extents`, at least one, ordered first layers first as
  // Tier::BeginSweep wants them. `tier` is borrowed until the walk is over. One walk at a time.
  void Begin(Tier* tier, std::vector<uint32_t> extents);
  // Gives back an extent that was ready; `version` as in Tier::Release.
  void Release(uint32_t extent, uint64_t version);
  // Whether every extent has been given back.
  bool over() const { return left_ == 0; }
  // Starts work on the next extents, as far as memory allows.
  void Pump();

 private:
  const std::function<void(uint32_t)> ready_;
  const std::function<void(const absl::Status&)> failed_;
  Tier* tier_ = nullptr;
  std::vector<uint32_t> extents_;  // in the tier's order
  size_t next_ = 0;                // index in extents_
  size_t under_way_ = 0;
  size_t left_ = 0;  // not given back yet
};

}  // namespace ballast::server
