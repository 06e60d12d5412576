#include "tests/sim/world/disk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "server/durability/log/log_format.h"

namespace ballast::sim {
class SimDisk::SimFile : public File {
 public:
  SimFile(SimDisk* disk, std::unique_ptr<File> file, Watched* watched)
      : disk_(disk), process_(disk->process_), file_(std::move(file)), watched_(watched) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t bytes, void* to) override {
    if (!Alive()) return SimDisk::Gone();
    absl::StatusOr<size_t> count = file_->ReadAt(offset, bytes, to);
    if (!count.ok()) ++disk_->errors_;
    return count;
  }
  absl::Status WriteAt(uint64_t offset, absl::Span<const ConstBytes> parts) override {
    return Change([&] {
      if (offset == 0 && watched_->log && watched_->made) ++watched_->begun;
      if (watched_->begun > 1) disk_->reused_segment_ = true;
      Remember(offset, parts);
      const absl::Status status = file_->WriteAt(offset, parts);
      if (!status.ok()) ++disk_->failed_writes_;
      // What failed is not counted on.
      const bool oldest = watched_->oldest_unsynced == 0;
      if (status.ok() && oldest) watched_->oldest_unsynced = disk_->operations_;
      return disk_->mutant_ == Mutant::kIgnoreWriteError ? absl::OkStatus() : status;
    });
  }
  absl::Status Sync() override {
    const bool lies =
        (disk_->mutant_ == Mutant::kImageSyncLies && watched_->images && watched_->made) ||
        (disk_->mutant_ == Mutant::kLogSyncLies && watched_->log);
    if (lies) return absl::OkStatus();
    if (watched_->images && ++disk_->images_syncing_ > 1) disk_->syncs_overlapped_ = true;
    Beside();
    absl::Status status = SyncNow();
    Beside();
    if (watched_->images && Alive()) --disk_->images_syncing_;
    return Alive() ? status : SimDisk::Gone();
  }
  absl::Status SyncNow() {
    return Change([&] {
      const absl::Status status = file_->Sync();
      if (status.ok()) {
        watched_->oldest_unsynced = watched_->sync_failed_in = 0;
        watched_->made = true;
        if (watched_->images) disk_->images_synced_ = disk_->operations_;
      } else {
        ++disk_->failed_syncs_;
        watched_->sync_failed_in = disk_->process_;
      }
      return disk_->mutant_ == Mutant::kIgnoreSyncError ? absl::OkStatus() : status;
    });
  }
  absl::Status Allocate(uint64_t bytes) override {
    return Change([&] { return file_->Allocate(bytes); });
  }
  absl::StatusOr<uint64_t> Size() override {
    if (!Alive()) return SimDisk::Gone();
    return file_->Size();
  }

 private:
  void Beside() {
    if (!(watched_->log || watched_->images) || !Alive()) return;
    const std::function<void(bool)> beside = disk_->beside_sync_;  // It may end the process.
    if (beside) beside(watched_->log);
  }
  void Remember(uint64_t offset, absl::Span<const ConstBytes> parts) {
    if (watched_->images) disk_->image_writes_[offset] = disk_->operations_;
    if (!watched_->log || parts[0].bytes < kPageBytes) return;
    const auto header = server::DecodeRecordPage(static_cast<const char*>(parts[0].data));
    if (header.ok() && header->type == server::RecordType::kPrepared) {
      disk_->prepares_[header->round] = {disk_->operations_, watched_};
    }
  }
  bool Alive() const { return process_ == disk_->process_ && process_ != disk_->dead_process_; }
  template <typename Operation>
  absl::Status Change(const Operation& operation) {
    return Alive() ? disk_->Change(operation) : SimDisk::Gone();
  }

  SimDisk* const disk_;
  const uint64_t process_;
  const std::unique_ptr<File> file_;
  Watched* const watched_;
};

void SimDisk::DieAt(uint64_t operations, bool happens, std::function<void()> died) {
  die_at_ = operations_ + operations;
  death_happens_after_ = happens;
  died_ = std::move(died);
}

void SimDisk::DieAtRename(bool happens, std::function<void()> died) {
  die_at_ = 0;
  die_at_rename_ = true;
  death_happens_after_ = happens;
  died_ = std::move(died);
}

void SimDisk::PowerOff(const MemoryDisk::Random& random) {
  Detach();
  disk_->Crash(random);
  for (auto& [path, watched] : watched_) watched.oldest_unsynced = 0;
  unsynced_names_ = false;
}

bool SimDisk::unsynced_bytes() const {
  return std::any_of(watched_.begin(), watched_.end(),
                     [](const auto& entry) { return entry.second.oldest_unsynced != 0; });
}

bool SimDisk::PrepareIsDurable(uint64_t round) const {
  const auto prepare = prepares_.find(round);
  if (prepare == prepares_.end()) return false;
  const uint64_t oldest = OldestUnsyncedLogWrite(prepare->second.file);
  return oldest == 0 || oldest > prepare->second.change;
}

uint64_t SimDisk::ImageWrittenAt(uint64_t offset) const {
  const auto written = image_writes_.find(offset);
  return written == image_writes_.end() ? 0 : written->second;
}

// Data left unsynced by an earlier process is not counted on: the process that followed wrote
// everything it needs into other files. Unless the PREPARE itself is among it.
uint64_t SimDisk::OldestUnsyncedLogWrite(const Watched* file) const {
  uint64_t oldest = 0;
  for (const auto& [path, watched] : watched_) {
    if (!watched.log || watched.oldest_unsynced == 0) continue;
    const bool given_up = watched.sync_failed_in != 0 && watched.sync_failed_in != process_;
    if (given_up && &watched != file) continue;
    oldest = oldest == 0 ? watched.oldest_unsynced : std::min(oldest, watched.oldest_unsynced);
  }
  return oldest;
}

absl::StatusOr<std::unique_ptr<File>> SimDisk::Open(const std::string& path,
                                                    const OpenOptions& options) {
  std::unique_ptr<File> file;
  if (options.mode == OpenMode::kCreate || options.mode == OpenMode::kCreateNew) {
    unsynced_names_ = true;
  }
  const absl::Status status = Change([&] {
    absl::StatusOr<std::unique_ptr<File>> opened = disk_->Open(path, options);
    if (opened.ok()) file = *std::move(opened);
    return opened.status();
  });
  if (!status.ok()) return status;
  Watched* const watched = &watched_[path];
  watched->log = absl::StrContains(path, "/log-");
  watched->images = absl::StrContains(path, "/slots");
  return std::make_unique<SimFile>(this, std::move(file), watched);
}

}  // namespace ballast::sim
