#include "server/extents/tier_walk.h"

#include <utility>

namespace ballast::server {

void TierWalk::Begin(Tier* tier, std::vector<uint32_t> extents) {
  tier_ = tier;
  extents_ = tier_->BeginSweep(std::move(extents));
  next_ = 0;
  under_way_ = 0;
  left_ = extents_.size();
  Pump();
}

void TierWalk::Release(uint32_t extent, uint64_t version) {
  --under_way_;
  --left_;
  tier_->Release(extent, version);
}

void TierWalk::Pump() {
  while (next_ < extents_.size() && under_way_ < tier_->sweep_depth()) {
    const uint32_t extent = extents_[next_++];
    ++under_way_;
    tier_->Acquire(extent, [this, extent](const absl::Status& status) {
      status.ok() ? ready_(extent) : failed_(status);
    });
  }
}

}  // namespace ballast::server
