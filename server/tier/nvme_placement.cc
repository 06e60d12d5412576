// NvmePlacement: the state in its images, a bounded number of extents in memory. The tier writes
// images when it makes room; this class flushes them once a round, and has extents written that no
// round touches.
// Comes from: MakePlacement. Goes to: NvmeTier, ImageIo. Thread safety: as StatePlacement.
#include <algorithm>
#include <deque>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "common/faults/mutant.h"
#include "server/tier/image_copy.h"
#include "server/tier/nvme_tier.h"
#include "server/tier/scratch_tier.h"
#include "server/tier/state_placement.h"
#include "server/tier/tile_layout.h"

namespace ballast::server {
namespace {

// Old extents brought to their images at a time.
constexpr size_t kSavingOldMax = 2;

// Waits for the disk.
absl::Status ReadImage(ImageIo* io, uint32_t extent, void* to) {
  Mutex mu;
  CondVar cv;
  bool done = false;
  absl::Status outcome;
  io->Read(extent, to, [&](const absl::Status& status) {
    MutexLock lock(&mu);
    outcome = status;
    done = true;
    cv.NotifyAll();
  });
  MutexLock lock(&mu);
  while (!done) cv.Wait(&mu);
  return outcome;
}

class NvmePlacement final : public StatePlacement {
 public:
  explicit NvmePlacement(const PlacementOptions& options) : options_(options) {}

  const char* name() const override { return "nvme"; }
  Tier* tier() override { return tier_.get(); }
  int image_threads() const override { return options_.image_threads; }

  absl::Status Place(const Layout& layout, const std::vector<uint32_t>& owned,
                     uint64_t version) override;
  void Connect(PlacementLinks links, uint64_t version) override;
  void Disconnect() override;

  void PutInitial(uint32_t extent, uint64_t version, std::function<void()> fill) override;
  void DropInitial() override {}  // Written as soon as they are in memory.
  bool initial_durable() const override { return initial_durable_; }

  void OnRound(uint64_t version) override;
  void KeepImages(uint64_t version, bool short_of_room) override;

  void Quiesce(std::function<void()> quiet) override { tier_->WhenQuiet(std::move(quiet)); }
  absl::Status CopyTo(ImageFile* images, uint64_t version) override;

  size_t recovery_lanes() const override { return options_.buffers; }
  Tier* RecoveryTier(size_t lane) override { return &lanes_[lane]; }
  absl::StatusOr<uint64_t> Keep(const RebuiltExtent& rebuilt, ImageFile* images) override;
  absl::Status EndRecovery(const std::vector<uint64_t>& stored, ImageFile* images) override;

 private:
  void OnInitialSaved(const absl::Status& status);
  void FlushInitial();
  void Flush();
  // The extents as a sweep takes them, first layers first.
  std::vector<uint32_t> SweepOrder() const;

  const PlacementOptions options_;
  std::unique_ptr<NvmeTier> tier_;  // from Place on
  std::vector<PlacedExtent> extents_;
  std::deque<ScratchTier> lanes_;  // until Connect; each works in a buffer of the tier
  PlacementLinks links_;
  size_t saving_initial_ = 0;  // extents on their way to their images
  bool initial_durable_ = true;
  size_t saving_old_ = 0;  // writes that KeepImages waits for
};

absl::Status NvmePlacement::Place(const Layout& layout, const std::vector<uint32_t>& owned,
                                  uint64_t version) {
  std::vector<PlacedExtent> placed = PlacedOf(layout, owned, extents_, version);
  if (tier_ == nullptr) {
    BALLAST_ASSIGN_OR_RETURN(tier_, NvmeTier::Create({.shape = options_.shape,
                                                      .extent_elements = LargestExtent(layout),
                                                      .buffers = options_.buffers}));
    for (uint32_t b = 0; b < options_.buffers; ++b) {
      lanes_.emplace_back(layout, options_.shape, tier_->Buffer(b));
    }
  }
  for (const PlacedExtent& one : placed) {
    if (one.fresh) {
      BALLAST_RETURN_IF_ERROR(tier_->AddExtent(one.extent, one.elements));
    } else {
      tier_->SetStored(one.extent, version);
    }
  }
  extents_ = std::move(placed);
  return absl::OkStatus();
}

void NvmePlacement::Connect(PlacementLinks links, uint64_t version) {
  lanes_.clear();
  links_ = std::move(links);
  ImageIo* const io = links_.images->image_io();
  BALLAST_CHECK(io != nullptr);
  tier_->Connect(io, links_.wrap, [this](const absl::Status& status) { links_.Fail(status); });
  tier_->SetVersion(version);
  tier_->Prefetch(SweepOrder());
}

void NvmePlacement::Disconnect() {
  links_ = {};
  tier_->Connect(nullptr, nullptr, nullptr);
}

std::vector<uint32_t> NvmePlacement::SweepOrder() const {
  std::vector<uint32_t> order;
  for (auto it = extents_.rbegin(); it != extents_.rend(); ++it) order.push_back(it->extent);
  return order;
}

// --- Initial weights ----------------------------------------------------------------------------

void NvmePlacement::PutInitial(uint32_t extent, uint64_t version, std::function<void()> fill) {
  ++saving_initial_;
  initial_durable_ = false;
  tier_->Acquire(extent, [this, extent, version, fill](const absl::Status& status) {
    if (!status.ok()) return OnInitialSaved(status);
    fill();
    tier_->Save(extent, /*initial=*/true,
                [this](const absl::Status& saved) { OnInitialSaved(saved); });
    tier_->Release(extent, version);
  });
}

void NvmePlacement::OnInitialSaved(const absl::Status& status) {
  --saving_initial_;
  if (!status.ok()) return links_.Fail(status);
  if (saving_initial_ == 0) FlushInitial();
}

void NvmePlacement::FlushInitial() {
  tier_->Flush([this](const absl::Status& flushed) {
    if (!flushed.ok()) return links_.Fail(flushed);
    if (saving_initial_ != 0) return;  // The last of the new ones flushes again.
    // Weights saved during this flush need another one.
    if (tier_->unflushed()) return FlushInitial();
    initial_durable_ = true;
    links_.Progress();
  });
}

// --- Images -------------------------------------------------------------------------------------

// One flush covers all images written in the round. The first extents of the next sweep are loaded
// while gradients come in.
void NvmePlacement::OnRound(uint64_t version) {
  tier_->SetVersion(version);
  Flush();
  tier_->BeginSweep({});
  tier_->Prefetch(SweepOrder());
}

void NvmePlacement::Flush() {
  tier_->Flush([this](const absl::Status& status) {
    status.ok() ? links_.Progress() : links_.Fail(status);
  });
}

// Extents that no round touches, or whose rounds were skipped, are written too, before the log
// runs out of room for the rounds since their images.
void NvmePlacement::KeepImages(uint64_t version, bool short_of_room) {
  const uint64_t rounds = options_.checkpoint_rounds;
  const uint64_t below = short_of_room ? version : version - std::min(version, rounds);
  while (saving_old_ < kSavingOldMax) {
    const int64_t extent = tier_->OldestBelow(below);
    if (extent < 0) break;
    ++saving_old_;
    BALLAST_PROBE(kOldExtentSaved);
    tier_->Save(static_cast<uint32_t>(extent), /*initial=*/false,
                [this](const absl::Status& status) {
                  --saving_old_;
                  if (!status.ok()) return links_.Fail(status);
                  if (saving_old_ == 0) Flush();
                });
  }
  // The log may only lack a flush of images that evictions wrote.
  if (short_of_room && saving_old_ == 0 && tier_->unflushed()) Flush();
}

absl::Status NvmePlacement::CopyTo(ImageFile* images, uint64_t version) {
  return CopyExtents(
      extents_, options_.shape.arrays, images, version,
      [this](const PlacedExtent& one, void* to) -> absl::StatusOr<std::vector<uint32_t>> {
        if (tier_->IsHere(one.extent)) {
          return CopyToImage(tier_->State(one.extent), one.elements, options_.shape, to);
        }
        BALLAST_RETURN_IF_ERROR(ReadImage(links_.images->image_io(), one.extent, to));
        return std::vector<uint32_t>();
      });
}

// --- Recovery -----------------------------------------------------------------------------------

// Overwrites the older or damaged image. The image that was read stays until the new one counts.
absl::StatusOr<uint64_t> NvmePlacement::Keep(const RebuiltExtent& rebuilt, ImageFile* images) {
  if (!rebuilt.stepped) return rebuilt.image;
  float* const state = lanes_[rebuilt.lane].State(rebuilt.extent);
  tier::PackLastTile(rebuilt.elements, options_.shape.tile_elements, options_.shape.arrays, state);
  BALLAST_RETURN_IF_ERROR(images->Write(rebuilt.extent, rebuilt.version, state));
  return rebuilt.version;
}

absl::Status NvmePlacement::EndRecovery(const std::vector<uint64_t>& stored, ImageFile* images) {
  for (size_t i = 0; i < extents_.size(); ++i) tier_->SetStored(extents_[i].extent, stored[i]);
  return images->Sync();
}

}  // namespace

std::unique_ptr<StatePlacement> MakeNvmePlacement(const PlacementOptions& options) {
  return std::make_unique<NvmePlacement>(options);
}

}  // namespace ballast::server
