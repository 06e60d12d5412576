// MemoryPlacement: all state in memory, stepped in place, and a rolling checkpoint of it, written
// from the same pages.
// Comes from: MakePlacement. Goes to: the tier in memory, Checkpointer, ImageStore.
// Thread safety: as StatePlacement.
#include <limits>
#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "server/tier/checkpointer.h"
#include "server/tier/image_copy.h"
#include "server/tier/state_placement.h"

namespace ballast::server {
namespace {

class MemoryPlacement final : public StatePlacement {
 public:
  explicit MemoryPlacement(const PlacementOptions& options)
      : options_(options), tier_(MakeDramTier(options.shape)) {}

  const char* name() const override { return "dram"; }
  Tier* tier() override { return tier_.get(); }
  int image_threads() const override { return 0; }

  absl::Status Place(const Layout& layout, const std::vector<uint32_t>& owned,
                     uint64_t version) override {
    std::vector<PlacedExtent> placed = PlacedOf(layout, owned, extents_, version);
    for (const PlacedExtent& one : placed) {
      if (one.fresh) BALLAST_RETURN_IF_ERROR(tier_->AddExtent(one.extent, one.elements));
    }
    extents_ = std::move(placed);
    return MakeCheckpointer();
  }

  void Connect(PlacementLinks links, uint64_t) override {
    links_ = std::move(links);
    ++generation_;
  }
  void Disconnect() override {
    Connect({}, 0);
    tier_->DropWaiting();
  }

  void PutInitial(uint32_t extent, uint64_t, std::function<void()> fill) override {
    ++filling_;
    // At once, unless the weights that these replace are being written.
    tier_->Acquire(extent, [this, extent, fill = std::move(fill)](const absl::Status&) {
      --filling_;
      fill();
      if (!keeps_images()) return;
      checkpointer_->AddInitial(extent);
      links_.Progress();
    });
  }
  void DropInitial() override { checkpointer_->DropInitial(); }
  bool initial_durable() const override {
    return filling_ == 0 && !checkpointer_->initial_pending();
  }

  void OnRound(uint64_t) override { checkpointer_->OnRound(); }
  void KeepImages(uint64_t version, bool short_of_room) override {
    if (!keeps_images()) return;
    checkpointer_->Pump(tier_, links_.images, version, short_of_room, links_.wrap,
                        links_.wrap([this, generation = generation_](const absl::Status& status) {
                          // Writes to outgrown files, or of an ended job, change nothing here.
                          if (generation_ == generation) OnWritten(status);
                        }));
  }

  void Quiesce(std::function<void()> quiet) override { tier_->WhenQuiet(std::move(quiet)); }
  absl::Status CopyTo(ImageFile* images, uint64_t version) override {
    return CopyExtents(extents_, options_.shape.arrays, images, version,
                       [this](const PlacedExtent& one, void* to) {
                         return CopyToImage(tier_->State(one.extent), one.elements, options_.shape,
                                            to);
                       });
  }

  size_t recovery_lanes() const override { return std::numeric_limits<size_t>::max(); }
  // Extents are rebuilt where they stay.
  Tier* RecoveryTier(size_t) override { return tier_.get(); }
  absl::StatusOr<uint64_t> Keep(const RebuiltExtent& rebuilt, ImageFile*) override {
    return rebuilt.image;  // The log has the rest until the next checkpoint.
  }
  absl::Status EndRecovery(const std::vector<uint64_t>& stored, ImageFile*) override {
    for (size_t i = 0; i < extents_.size(); ++i) extents_[i].stored = stored[i];
    return MakeCheckpointer();
  }

 private:
  bool keeps_images() const { return links_.images != nullptr && links_.images->keeps_images(); }
  absl::Status MakeCheckpointer() {
    BALLAST_ASSIGN_OR_RETURN(
        checkpointer_, Checkpointer::Create(options_.shape, extents_, options_.checkpoint_rounds));
    return absl::OkStatus();
  }
  void OnWritten(const absl::Status& status) {
    checkpointer_->OnWritten();
    status.ok() ? links_.Progress() : links_.Fail(status);
  }

  const PlacementOptions options_;
  const std::shared_ptr<DramTier> tier_;      // also of the writes under way
  std::vector<PlacedExtent> extents_;         // `stored` as of the last Place or recovery
  std::optional<Checkpointer> checkpointer_;  // from Place on
  PlacementLinks links_;
  uint32_t generation_ = 0;  // of links_
  uint32_t filling_ = 0;     // extents whose initial weights wait
};

}  // namespace

std::unique_ptr<StatePlacement> MakeMemoryPlacement(const PlacementOptions& options) {
  return std::make_unique<MemoryPlacement>(options);
}

std::unique_ptr<StatePlacement> MakePlacement(const PlacementOptions& options) {
  return options.buffers == 0 ? MakeMemoryPlacement(options) : MakeNvmePlacement(options);
}

}  // namespace ballast::server
