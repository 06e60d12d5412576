#include "server/tier/nvme_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "server/tier/tile_layout.h"

namespace ballast::server {
namespace {
// Limit of reads ahead of a sweep, and of evictions after it: more would only shrink the cache.
constexpr uint32_t kAheadMax = 8;
constexpr size_t kLookahead = 4 * kAheadMax;  // how far to look for extents to read
}  // namespace

uint32_t LargestExtent(const Layout& layout) {
  uint32_t largest = 0;
  for (const Extent& extent : layout.extents()) largest = std::max(largest, extent.elements);
  return largest;
}

absl::StatusOr<std::unique_ptr<NvmeTier>> NvmeTier::Create(const Options& options) {
  if (options.buffers < kNvmeBuffersMin) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.buffers, " extents in memory are too few for the NVMe tier; it needs ",
                     kNvmeBuffersMin));
  }
  const size_t bytes = DramExtentBytes(options.extent_elements, options.shape);
  BALLAST_ASSIGN_OR_RETURN(Arena memory, Arena::Create(bytes * options.buffers));
  memory.LockTouchedPages();  // As far as the limit allows; swapping is slow, but not wrong.
  return std::unique_ptr<NvmeTier>(new NvmeTier(options, bytes, std::move(memory)));
}
NvmeTier::NvmeTier(const Options& options, size_t buffer_bytes, Arena memory)
    : options_(options), buffer_bytes_(buffer_bytes), memory_(std::move(memory)) {
  FreeAll();
}
void NvmeTier::FreeAll() {
  free_.clear();
  // From the last on, as they are taken from the back: pages of later buffers stay untouched.
  for (size_t i = options_.buffers; i-- > 0;) {
    free_.push_back(reinterpret_cast<float*>(memory_.data() + i * buffer_bytes_));
  }
}
absl::Status NvmeTier::Widen(size_t bytes) {
  BALLAST_ASSIGN_OR_RETURN(Arena memory, Arena::Create(bytes * options_.buffers));
  memory.LockTouchedPages();
  const Arena before = std::exchange(memory_, std::move(memory));
  const size_t bytes_before = std::exchange(buffer_bytes_, bytes);
  FreeAll();
  // No image has the state of dirty extents, so buffers move with their contents.
  for (auto& [extent, entry] : entries_) {
    if (entry.base == nullptr) continue;
    std::memcpy(free_.back(), entry.base, bytes_before);
    entry.base = free_.back();
    free_.pop_back();
  }
  return absl::OkStatus();
}

absl::Status NvmeTier::AddExtent(uint32_t extent, uint32_t elements) {
  const uint64_t bytes = DramExtentBytes(elements, options_.shape);
  if (bytes > buffer_bytes_) {
    // An extent in use or in transit is known to others by its old address.
    const bool used = std::any_of(entries_.begin(), entries_.end(),
                                  [](const auto& entry) { return entry.second.users != 0; });
    if (used || !quiet()) {
      return absl::ResourceExhaustedError(absl::StrCat("extent ", extent, " takes ", bytes,
                                                       " bytes, the tier's buffers have ",
                                                       buffer_bytes_, " and are in use"));
    }
    // All buffers, so that any of them can take any extent.
    BALLAST_RETURN_IF_ERROR(Widen(bytes));
  }
  entries_[extent].elements = elements;
  return absl::OkStatus();
}

NvmeTier::Entry& NvmeTier::Find(uint32_t extent) {
  const auto it = entries_.find(extent);
  BALLAST_CHECK(it != entries_.end());
  return it->second;
}
const NvmeTier::Entry& NvmeTier::Find(uint32_t extent) const {
  const auto it = entries_.find(extent);
  BALLAST_CHECK(it != entries_.end());
  return it->second;
}

TileView NvmeTier::Tile(uint32_t extent, uint32_t tile) {
  const Entry& entry = Find(extent);
  return TileAt(entry.base, entry.elements, options_.shape, tile);
}
float* NvmeTier::State(uint32_t extent) { return Find(extent).base; }
bool NvmeTier::IsHere(uint32_t extent) const { return Find(extent).residence == Residence::kHere; }
// At most half of the buffers: a sweep also reads ahead and evicts in the rest.
size_t NvmeTier::sweep_depth() const { return std::clamp(options_.buffers / 2, 2u, kAheadMax); }
void NvmeTier::SetStored(uint32_t extent, uint64_t version) {
  Entry& entry = Find(extent);
  entry.stored = version;
  entry.dirty = 0;
}

// --- Users --------------------------------------------------------------------------------------
void NvmeTier::Acquire(uint32_t extent, Ready ready) {
  Entry& entry = Find(extent);
  if (!failure_.ok()) return ready(failure_);
  // Fetches and saves acquire in between, and must not advance the sweep.
  const bool next = sweep_.next < sweep_.extents.size() && sweep_.extents[sweep_.next] == extent;
  if (next) ++sweep_.next;
  if (entry.residence == Residence::kHere) {
    ++entry.users;  // First: `ready` may release.
    ready(absl::OkStatus());
    Pump();  // The sweep may have advanced.
    return;
  }
  // A read or write under way serves the waiting extent at its end.
  if (entry.residence == Residence::kAway && entry.waiting.empty()) wanted_.push_back(extent);
  entry.waiting.push_back(std::move(ready));
  Pump();
}

void NvmeTier::Release(uint32_t extent, uint64_t version) {
  Entry& entry = Find(extent);
  BALLAST_CHECK(entry.users > 0);
  --entry.users;
  if (version != 0) {
    entry.dirty = version;
    // To the end: stepped last, it is the first that the next sweep needs, in the other direction.
    behind_.splice(behind_.end(), *entry.list, entry.at);
    entry.list = &behind_;
  }
  const bool due = entry.users == 0 && entry.save && entry.residence == Residence::kHere;
  if (due && failure_.ok()) StartWrite(extent, &entry, /*evicted=*/false);
  if (due && !failure_.ok()) {  // The job may have ended while this user had the extent.
    for (const ImageIo::Done& done : std::exchange(entry.saved, {})) done(failure_);
  }
  Pump();
}

std::vector<uint32_t> NvmeTier::BeginSweep(std::vector<uint32_t> extents) {
  // An empty sweep only ends the last one, and must not use up a turn of direction.
  const bool reverse = !extents.empty() && std::exchange(sweep_.backward, !sweep_.backward);
  if (reverse) std::reverse(extents.begin(), extents.end());
  sweep_.extents = std::move(extents);
  sweep_.next = 0;
  // The least recently stepped stay in front: the new direction needs them last.
  for (const uint32_t extent : behind_) Find(extent).list = &ahead_;
  ahead_.splice(ahead_.end(), behind_);
  return sweep_.extents;
}

void NvmeTier::Save(uint32_t extent, bool initial, ImageIo::Done done) {
  Acquire(extent, [this, extent, initial, done = std::move(done)](const absl::Status& status) {
    if (!status.ok()) return done(status);
    Entry& entry = Find(extent);
    if (!initial && entry.dirty == 0 && entry.stored >= version_) {  // Written meanwhile.
      Release(extent, 0);
      return done(absl::OkStatus());
    }
    entry.save = true;
    entry.initial = entry.initial || initial;
    entry.saved.push_back(done);
    Release(extent, 0);  // Starts the write, unless another user has the extent.
  });
}

void NvmeTier::Prefetch(std::vector<uint32_t> extents) {
  if (sweep_.backward) std::reverse(extents.begin(), extents.end());
  for (const uint32_t extent : extents) {
    // Free buffers belong to waiting extents first.
    if (free_.empty() || !wanted_.empty() || !failure_.ok()) return;
    Entry& entry = Find(extent);
    // Without an image there is nothing to read: its initial values are formed when it is needed.
    if (entry.residence == Residence::kAway && entry.stored != 0) StartRead(extent, &entry);
  }
}

int64_t NvmeTier::OldestBelow(uint64_t version) const {
  if (!failure_.ok()) return -1;
  int64_t oldest = -1;
  uint64_t stored = version;
  for (const auto& [extent, entry] : entries_) {
    // A write that is due or under way brings the image up to date anyway.
    const bool counts = entry.stored != 0 && !entry.save && entry.residence != Residence::kWriting;
    if (!counts || entry.stored >= version || entry.stored > stored) continue;
    // The lowest among equals: the order of the table is not reproducible.
    if (entry.stored == stored && oldest >= 0 && extent > oldest) continue;
    oldest = extent;
    stored = entry.stored;
  }
  return oldest;
}

// --- Room ---------------------------------------------------------------------------------------
size_t NvmeTier::Wanted() const {
  size_t wanted = wanted_.size();
  const size_t enough = sweep_depth();
  const size_t end = std::min(sweep_.extents.size(), sweep_.next + kLookahead);
  // No more than the sweep can use at once: each free buffer is one extent less in the cache.
  for (size_t i = sweep_.next; i < end && wanted < enough; ++i) {
    wanted += Find(sweep_.extents[i]).residence == Residence::kAway ? 1 : 0;
  }
  return std::min(wanted, enough);
}

void NvmeTier::Pump() {
  // Callbacks come back here. Nested calls would recurse once per extent, and disturb the loops.
  if (pumping_) {
    pump_again_ = true;
    return;
  }
  pumping_ = true;
  do {
    pump_again_ = false;
    while (!wanted_.empty() && !free_.empty() && failure_.ok()) {
      const uint32_t extent = wanted_.front();
      wanted_.pop_front();
      StartRead(extent, &Find(extent));
    }
    // Buffers being written count as free, or one shortage would evict an extent per completion.
    while (failure_.ok() && free_.size() + evicting_ < Wanted() && EvictOne()) {
    }
  } while (pump_again_ || (!wanted_.empty() && !free_.empty() && failure_.ok()));
  pumping_ = false;
  TellQuiet();
}

bool NvmeTier::EvictOne() {
  if (EvictFrom(&behind_)) return true;
  // This sweep still needs the rest: evict one only where the job would stop otherwise.
  const bool stuck = !wanted_.empty() && free_.empty() && evicting_ == 0;
  return stuck && EvictFrom(&ahead_);
}
bool NvmeTier::EvictFrom(std::list<uint32_t>* list) {
  for (const uint32_t extent : *list) {
    Entry& entry = Find(extent);
    if (entry.users != 0 || entry.residence != Residence::kHere || entry.save) continue;
    // Where an image has the state, nothing is written: a fetch leaves many such extents.
    if (entry.dirty == 0) {
      GiveBack(&entry);
    } else {
      StartWrite(extent, &entry, /*evicted=*/true);
    }
    return true;
  }
  return false;
}
void NvmeTier::GiveBack(Entry* entry) {
  // After a failed read it is in no list: it has not arrived.
  if (entry->list != nullptr) entry->list->erase(entry->at);
  entry->list = nullptr;
  entry->residence = Residence::kAway;
  free_.push_back(std::exchange(entry->base, nullptr));
}

// --- Disk ---------------------------------------------------------------------------------------
void NvmeTier::StartRead(uint32_t extent, Entry* entry) {
  entry->base = free_.back();
  free_.pop_back();
  entry->residence = Residence::kReading;
  ++reading_;
  if (entry->stored == 0) {
    // FillInitial expects zeros; the buffer has another extent's values.
    std::memset(entry->base, 0, DramExtentBytes(entry->elements, options_.shape));
    FillInitial(entry->base, entry->elements, options_.shape);
    return OnRead(extent, absl::OkStatus());
  }
  io_->Read(extent, entry->base,
            wrap_([this, extent](const absl::Status& status) { OnRead(extent, status); }));
}

void NvmeTier::OnRead(uint32_t extent, const absl::Status& status) {
  Entry& entry = Find(extent);
  --reading_;
  if (!status.ok()) {
    GiveBack(&entry);
    if (entry.waiting.empty()) Fail(status);  // A read ahead has no caller to report to.
    Serve(&entry, status);
    Break(status);
  } else {
    if (entry.stored != 0) Spread(&entry);
    // The sweep needs later reads ahead later: each goes to the front, to be evicted first.
    Arrive(extent, &entry, entry.waiting.empty() ? &ahead_ : &behind_);
  }
  Pump();
}

// From the packed form of an image to the tier's.
void NvmeTier::Spread(Entry* entry) const {
  tier::SpreadLastTile(entry->elements, options_.shape.tile_elements, options_.shape.arrays,
                       entry->base);
}
void NvmeTier::Arrive(uint32_t extent, Entry* entry, std::list<uint32_t>* list) {
  entry->residence = Residence::kHere;
  entry->list = list;
  list->push_front(extent);
  entry->at = list->begin();
  Serve(entry, failure_);  // The job may have ended during the read.
}
void NvmeTier::Serve(Entry* entry, const absl::Status& status) {
  const std::vector<Ready> waiting = std::exchange(entry->waiting, {});
  // All count before the first call: its release must not evict the extent under the others.
  if (status.ok()) entry->users += static_cast<int>(waiting.size());
  for (const Ready& ready : waiting) ready(status);
}

void NvmeTier::StartWrite(uint32_t extent, Entry* entry, bool evicted) {
  entry->residence = Residence::kWriting;
  entry->evicted = evicted;
  entry->save = false;
  // No round changed a clean extent since its image, so its state is also that of version_.
  entry->writing = std::max(entry->dirty, version_);
  ++writing_;
  if (evicted) ++evicting_;
  // In place: a copy would take a buffer. Acquire waits until OnWritten has spread the tile again.
  tier::PackLastTile(entry->elements, options_.shape.tile_elements, options_.shape.arrays,
                     entry->base);
  io_->Write({.extent = extent,
              .version = entry->writing,
              .data = entry->base,
              .owner = nullptr,
              .initial = std::exchange(entry->initial, false)},
             wrap_([this, extent](const absl::Status& status) { OnWritten(extent, status); }));
}

void NvmeTier::OnWritten(uint32_t extent, const absl::Status& status) {
  Entry& entry = Find(extent);
  --writing_;
  if (entry.evicted) --evicting_;
  const std::vector<ImageIo::Done> saved = std::exchange(entry.saved, {});
  if (status.ok()) {
    entry.stored = entry.writing;
    entry.dirty = 0;  // Nothing stepped it meanwhile: Acquire waits for writes.
    unflushed_ = true;
  } else {
    if (saved.empty()) Fail(status);  // An eviction has no caller to report to.
    Break(status);
  }
  // An extent that was asked for during its eviction stays, and saves a read.
  if (entry.evicted && entry.waiting.empty()) {
    GiveBack(&entry);
  } else {
    Spread(&entry);
    entry.residence = Residence::kHere;
    Serve(&entry, status.ok() ? failure_ : status);
  }
  // After the entry is consistent: a callback may save or acquire the extent again.
  for (const ImageIo::Done& done : saved) done(status);
  if (writing_ == 0 && !flush_waiting_.empty()) StartFlush();
  Pump();
}

void NvmeTier::Flush(ImageIo::Done done) {
  flush_waiting_.push_back(std::move(done));
  if (writing_ == 0) StartFlush();  // A flush covers only writes that ended before it.
}
void NvmeTier::StartFlush() {
  if (flushing_ || io_ == nullptr) return;  // OnFlushed starts the next one.
  flushing_ = true;
  unflushed_ = false;  // Now: the flush does not cover writes that end from here on.
  flush_under_way_ = std::exchange(flush_waiting_, {});
  io_->Flush(wrap_([this](const absl::Status& status) { OnFlushed(status); }));
}
void NvmeTier::OnFlushed(const absl::Status& status) {
  flushing_ = false;
  // A failed flush may have lost any earlier write, so it breaks the tier like a failed write.
  if (!status.ok()) Break(status);
  for (const ImageIo::Done& done : std::exchange(flush_under_way_, {})) done(status);
  if (writing_ == 0 && !flush_waiting_.empty()) StartFlush();
  TellQuiet();
}

void NvmeTier::Fail(const absl::Status& status) {
  if (const auto failed = failed_) failed(status);  // A copy: the job may end and disconnect.
}

// The file is unreliable after an error: nothing starts from now on, and waiting calls fail.
void NvmeTier::Break(const absl::Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  for (const uint32_t extent : std::exchange(wanted_, {})) Serve(&Find(extent), why);
}

bool NvmeTier::quiet() const {
  return reading_ == 0 && writing_ == 0 && !flushing_ && flush_waiting_.empty() && wanted_.empty();
}
void NvmeTier::WhenQuiet(std::function<void()> callback) {
  when_quiet_.push_back(std::move(callback));
  TellQuiet();
}
void NvmeTier::TellQuiet() {
  if (!quiet()) return;
  // Taken out first: a callback may start work, and wait again.
  for (const auto& callback : std::exchange(when_quiet_, {})) callback();
}

}  // namespace ballast::server
