// The tier on NVMe: extents live in their images, and a bounded number of them is in memory at a
// time. A stepped extent stays in memory until its buffer is needed; the gradient log covers it
// until then. Sweeps alternate their direction, so each finds the extents that the last one ended
// with: of N extents of which B fit into memory, a sweep reads and writes N - B.
//
//   away --read--> here --(released, buffer needed)--> written, if it was changed --> away
//
// The extent stepped longest ago in this sweep is evicted first: the next sweep, in the other
// direction, needs it last. The tier keeps a few buffers free ahead of the sweep, for reads and
// writes under way.
// Comes from: ExtentStore, the round engine. Goes to: ImageIo.
// Thread safety: as Tier. Completions of the ImageIo come back through Wrap.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/arena.h"
#include "common/tensor/layout.h"
#include "server/durability/images/image_io.h"
#include "server/tier/tier.h"

namespace ballast::server {

// With fewer, a read could not start while another extent is written.
inline constexpr uint32_t kNvmeBuffersMin = 4;

// Elements of the layout's largest extent: less than the limit where every flat space is shorter.
uint32_t LargestExtent(const Layout& layout);

class NvmeTier final : public Tier {
 public:
  struct Options {
    StateShape shape;
    uint32_t extent_elements = 0;        // of the largest extent
    uint32_t buffers = kNvmeBuffersMin;  // extents in memory at a time
  };
  // Brings a completion to the thread that owns the tier.
  using Wrap = std::function<ImageIo::Done(ImageIo::Done)>;

  // Reserves the buffers; they get memory at their first use. INVALID_ARGUMENT for fewer than
  // kNvmeBuffersMin; RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<NvmeTier>> Create(const Options& options);

  // Names the images: before the first Acquire, and again when a job gets new files. `io` is used
  // until the next call (null: no images any more) and must not be busy for this tier then.
  // `failed` gets errors of writes and flushes without a callback.
  void Connect(ImageIo* io, Wrap wrap, std::function<void(absl::Status)> failed) {
    io_ = io;
    wrap_ = std::move(wrap);
    failed_ = std::move(failed);
    if (io_ != nullptr) return;
    flush_waiting_.clear();  // None begins any more, and WhenQuiet would wait for them.
    Break(absl::CancelledError("the tier is closed"));
  }

  // An extent larger than all others widens every buffer, between rounds only: it is refused while
  // an extent is acquired or any read, write or flush is under way.
  absl::Status AddExtent(uint32_t extent, uint32_t elements) override;
  void Acquire(uint32_t extent, Ready ready) override;
  void Release(uint32_t extent, uint64_t version) override;
  // Every other sweep goes in the other direction, and begins with the extents that the last one
  // left in memory. A sweep without extents only ends the last one.
  std::vector<uint32_t> BeginSweep(std::vector<uint32_t> extents) override;
  size_t sweep_depth() const override;
  size_t read_depth() const override { return 1; }
  TileView Tile(uint32_t extent, uint32_t tile) override;
  float* State(uint32_t extent) override;
  uint64_t bytes() const override { return options_.buffers * buffer_bytes_; }

  // A buffer, before the first Acquire and Prefetch: the memory of any extent.
  float* Buffer(uint32_t index) {
    return reinterpret_cast<float*>(memory_.data() + index * buffer_bytes_);
  }
  // The newest image of the extent holds its state as of `version`.
  void SetStored(uint32_t extent, uint64_t version);
  // From now on the state of every extent is that of `version`, until it is stepped.
  void SetVersion(uint64_t version) { version_ = version; }
  // Writes the extent's present state to its images; durable after a Flush. `initial` as in
  // ExtentImage. `done` gets the outcome of the write.
  void Save(uint32_t extent, bool initial, ImageIo::Done done);
  // `done` runs when everything written so far survives; it waits for writes under way.
  void Flush(ImageIo::Done done);
  // Whether a write ended since the last flush began.
  bool unflushed() const { return unflushed_; }
  // Loads the extents that the next sweep over `extents` begins with, as long as buffers are free.
  void Prefetch(std::vector<uint32_t> extents);
  // The extent with the oldest image, if it is older than `version`; else -1. Extents without an
  // image, or with a write due or under way, do not count. -1 once the disk has failed.
  int64_t OldestBelow(uint64_t version) const;
  // `quiet` runs when no read, write or flush is under way and none is waited for.
  void WhenQuiet(std::function<void()> quiet);
  // Whether the extent's arrays are in memory; State may then be read until the next call.
  bool IsHere(uint32_t extent) const;

 private:
  enum class Residence : uint8_t { kAway, kReading, kHere, kWriting };
  struct Entry {
    uint32_t elements = 0;
    Residence residence = Residence::kAway;
    float* base = nullptr;
    int users = 0;
    uint64_t stored = 0;   // version in the images; 0: none
    uint64_t dirty = 0;    // version of the arrays, if newer than the images'; else 0
    uint64_t writing = 0;  // version under way
    bool evicted = false;  // while written: its buffer is for another extent
    bool save = false;     // to be written once no user has it
    bool initial = false;
    std::vector<Ready> waiting;
    std::vector<ImageIo::Done> saved;
    std::list<uint32_t>* list = nullptr;  // of the two below; null: away
    std::list<uint32_t>::iterator at;
  };

  NvmeTier(const Options& options, size_t buffer_bytes, Arena memory);
  void FreeAll();
  absl::Status Widen(size_t bytes);
  Entry& Find(uint32_t extent);
  const Entry& Find(uint32_t extent) const;
  // Starts all that is possible: reads into free buffers, writes that free some.
  void Pump();
  // Buffers that should be free or become so: for waiting calls, and for the sweep's next extents.
  size_t Wanted() const;
  bool EvictOne();
  bool EvictFrom(std::list<uint32_t>* list);
  void StartRead(uint32_t extent, Entry* entry);
  void OnRead(uint32_t extent, const absl::Status& status);
  void StartWrite(uint32_t extent, Entry* entry, bool evicted);
  void OnWritten(uint32_t extent, const absl::Status& status);
  void Spread(Entry* entry) const;
  void Arrive(uint32_t extent, Entry* entry, std::list<uint32_t>* list);
  void GiveBack(Entry* entry);
  static void Serve(Entry* entry, const absl::Status& status);
  void StartFlush();
  void OnFlushed(const absl::Status& status);
  void TellQuiet();
  bool quiet() const;
  void Fail(const absl::Status& status);
  void Break(const absl::Status& why);

  const Options options_;
  size_t buffer_bytes_;
  Arena memory_;
  ImageIo* io_ = nullptr;
  Wrap wrap_;
  std::function<void(absl::Status)> failed_;
  absl::Status failure_;

  std::unordered_map<uint32_t, Entry> entries_;  // entries stay where they are
  std::vector<float*> free_;
  std::deque<uint32_t> wanted_;  // away, and waited for
  // Extents in memory, the next to be evicted in front: those stepped in this sweep, and the rest.
  std::list<uint32_t> behind_;
  std::list<uint32_t> ahead_;
  struct Sweep {
    std::vector<uint32_t> extents;
    size_t next = 0;        // index in extents
    bool backward = false;  // the sweep after this one
  };
  Sweep sweep_;
  uint64_t version_ = 0;
  size_t reading_ = 0;
  size_t writing_ = 0;
  size_t evicting_ = 0;
  bool flushing_ = false;
  bool unflushed_ = false;
  std::vector<ImageIo::Done> flush_waiting_;
  std::vector<ImageIo::Done> flush_under_way_;
  std::vector<std::function<void()>> when_quiet_;
  bool pumping_ = false;
  bool pump_again_ = false;
};

}  // namespace ballast::server
