// StatePlacement: where one job's state stays at this server, and how it survives: the tier in
// which its arrays are read and stepped, and the images that let the log forget rounds. In memory a
// share of the extents is copied to their images each round; on NVMe the images are the state, and
// a bounded number of extents is in memory.
//
//   Place -(recovery)-> Connect -> PutInitial ... OnRound ... -Quiesce-> CopyTo, Place, Connect
//
// A new device is one more class here and a line of MakePlacement; no other code depends on it.
// Comes from: server/round. Goes to: Tier, ImageStore, ImageFile.
// Thread safety: on the job's strand, but for RecoveryTier and Keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tensor/layout.h"
#include "server/durability/images/image_file.h"
#include "server/durability/round_log.h"
#include "server/tier/tier.h"

namespace ballast::server {

// Connects a placement to the images of its job and to the job itself.
struct PlacementLinks {
  ImageStore* images = nullptr;  // used until the next Connect, or Disconnect
  // Brings a completion to the job's strand.
  std::function<ImageIo::Done(ImageIo::Done)> wrap;
  // A read, write or flush failed: the error is final.
  std::function<void(const absl::Status&)> failed;
  // Images became durable, or are due: KeepImages and initial_durable may have news.
  std::function<void()> progress;

  // Both call through a copy, because the call may end the job, which replaces the links.
  // Nothing happens after Disconnect.
  void Fail(const absl::Status& status) const {
    if (const auto call = failed) call(status);
  }
  void Progress() const {
    if (const auto call = progress) call();
  }
};

// An extent rebuilt from an image by recovery, in the tier of a lane.
struct RebuiltExtent {
  size_t lane = 0;
  uint32_t extent = 0;
  uint32_t elements = 0;  // of the extent
  uint64_t image = 0;     // the version read
  uint64_t version = 0;   // the state is of this version
  bool stepped = false;   // a round has changed it since `image`
};

class StatePlacement {
 public:
  virtual ~StatePlacement() = default;

  // In the status of a job: dram, nvme.
  virtual const char* name() const = 0;
  // The placement's own, from the first Place on.
  virtual Tier* tier() = 0;
  // How many images are read, and how many written, at a time; 0: images are only written.
  virtual int image_threads() const = 0;

  // Makes room for the extents `owned`, in push order: once, and again for a grown job, after
  // Quiesce. Known extents keep their state, which the images, by now new ones, hold as of
  // `version`; the others begin with initial values and without an image. RESOURCE_EXHAUSTED.
  virtual absl::Status Place(const Layout& layout, const std::vector<uint32_t>& owned,
                             uint64_t version) = 0;
  // The state is that of `version` from now on. `links` replace earlier ones, whose images are not
  // used any more.
  virtual void Connect(PlacementLinks links, uint64_t version) = 0;
  // The job has ended: nothing starts, and completions of work under way are dropped.
  virtual void Disconnect() = 0;

  // An extent gets its initial weights, as the state of `version`: `fill` writes them once its
  // arrays are in memory, perhaps within the call, and they are written to its image.
  virtual void PutInitial(uint32_t extent, uint64_t version, std::function<void()> fill) = 0;
  // Initial weights come again: queued writes of the old ones may be dropped.
  virtual void DropInitial() = 0;
  // Whether all weights from PutInitial are durable; always true where a job has no images.
  virtual bool initial_durable() const = 0;

  // A round is over, all of its steps are done, and the state is that of `version`.
  virtual void OnRound(uint64_t version) = 0;
  // Starts the due writes of images, as far as possible now. The state is that of `version`, and
  // no step is under way. `short_of_room`: the log waits for newer images of the oldest extents.
  virtual void KeepImages(uint64_t version, bool short_of_room) = 0;

  // A job grows: `quiet` runs, perhaps within the call, when no work under way needs the present
  // images. Place and Connect may follow.
  virtual void Quiesce(std::function<void()> quiet) = 0;
  // Writes the state of every extent to `images` as that of `version`, and flushes it. Blocks on
  // the disk. Called while the placement is quiet.
  virtual absl::Status CopyTo(ImageFile* images, uint64_t version) = 0;

  // Recovery comes between the first Place and Connect, several extents at a time, each in a lane:
  // it reads an image into State of the lane's tier and steps it there.
  // The limit of lanes.
  virtual size_t recovery_lanes() const = 0;
  // The tier of `lane`, which holds the state of at least one extent at a time. Any thread.
  virtual Tier* RecoveryTier(size_t lane) = 0;
  // The state in the lane's tier is final. Returns the version that the images hold afterwards. Any
  // thread; blocks on the disk. Errors: those of ImageFile::Write.
  virtual absl::StatusOr<uint64_t> Keep(const RebuiltExtent& rebuilt, ImageFile* images) = 0;
  // All lanes are done. `stored`: versions in the images, in the order of Place's extents; 0: none.
  virtual absl::Status EndRecovery(const std::vector<uint64_t>& stored, ImageFile* images) = 0;
};

struct PlacementOptions {
  StateShape shape;
  uint32_t checkpoint_rounds = 1;  // no image is older than this many rounds for long
  uint32_t buffers = 0;            // extents in memory at a time, on NVMe; 0: in memory, all
  int image_threads = 2;           // image_threads(), on NVMe
};

// One of the two below, as the options say. They take no memory before Place.
std::unique_ptr<StatePlacement> MakePlacement(const PlacementOptions& options);
std::unique_ptr<StatePlacement> MakeMemoryPlacement(const PlacementOptions& options);
// Place gives INVALID_ARGUMENT for fewer buffers than kNvmeBuffersMin.
std::unique_ptr<StatePlacement> MakeNvmePlacement(const PlacementOptions& options);

}  // namespace ballast::server
