// SimDisk: MemoryDisk as one process after another sees it. A process can end inside any operation,
// and nothing it does afterwards reaches the disk. The disk knows which data is not durable yet, so
// an answer that was sent too early shows at once.
// Comes from: the simulated server. Goes to: GradientLog, ImageFile. Thread safety: one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/io/memory_disk.h"
#include "tests/sim/mutants.h"

namespace ballast::sim {

class SimDisk : public FileSystem {
 public:
  // `shared`: a disk that other machines see, too, and which outlives this; none: its own.
  explicit SimDisk(Mutant mutant, MemoryDisk* shared = nullptr)
      : mutant_(mutant), disk_(shared != nullptr ? shared : &own_) {}

  MemoryDisk* raw() { return disk_; }

  // The process ends inside its `operations`th change from now on (1: the next), before it (or,
  // with `happens`, after it has been made). `died` must not call the disk.
  void DieAt(uint64_t operations, bool happens, std::function<void()> died);
  // The same inside the next Rename.
  void DieAtRename(bool happens, std::function<void()> died);
  void Disarm() {
    die_at_ = 0;
    die_at_rename_ = false;
  }
  // The process has ended: its further operations are refused.
  void Detach() {
    ++process_;
    Disarm();
    beside_sync_ = nullptr;
    images_syncing_ = 0;
  }
  // Called within every flush of the log or the images, before and after the written data is safe:
  // for the work of others meanwhile.
  void SetBesideSync(std::function<void(bool log)> beside) { beside_sync_ = std::move(beside); }
  // The job's files are made. Mutants of directories lie from here on only.
  void Made() { made_ = true; }
  // Data that a power loss may take now: bytes, and names that were made, changed or removed.
  bool unsynced_bytes() const;
  bool unsynced_names() const { return unsynced_names_; }
  // The power is off: unsynced data may be lost. Not of a disk that is shared.
  void PowerOff(const MemoryDisk::Random& random);

  uint64_t operations() const { return operations_; }  // changes made so far
  // Whether everything that the newest PREPARE of `round` stands on is on the medium.
  bool PrepareIsDurable(uint64_t round) const;
  // The newest change of the images at `offset`; 0: none.
  uint64_t ImageWrittenAt(uint64_t offset) const;
  // Two flushes of the images were under way at a time.
  bool syncs_overlapped() const { return syncs_overlapped_; }
  // The images that changes up to this one have made are safe.
  uint64_t images_synced() const { return images_synced_; }
  // A segment of the log has been written a second time.
  bool reused_segment() const { return reused_segment_; }
  // Errors that a process was told since it began; of them, writes and syncs of files that failed.
  uint64_t errors() const { return errors_; }
  uint64_t failed_writes() const { return failed_writes_; }
  uint64_t failed_syncs() const { return failed_syncs_; }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    return disk_->List(directory);
  }
  absl::Status MakeDirectory(const std::string& directory) override {
    unsynced_names_ = true;
    return Change([&] { return disk_->MakeDirectory(directory); });
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    unsynced_names_ = true;
    if (std::exchange(die_at_rename_, false)) die_at_ = operations_ + 1;
    return Change([&] { return disk_->Rename(from, to); });
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    unsynced_names_ = true;
    return Change([&] { return disk_->Link(from, to); });
  }
  absl::Status Remove(const std::string& path) override {
    unsynced_names_ = true;
    return Change([&] { return disk_->Remove(path); });
  }
  absl::Status RemoveAll(const std::string& directory) override {
    return Change([&] { return disk_->RemoveAll(directory); });
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    if (mutant_ == Mutant::kDirectorySyncLies && made_) return absl::OkStatus();
    return Change([&] {
      const absl::Status status = disk_->SyncDirectory(directory);
      if (status.ok()) unsynced_names_ = false;
      return status;
    });
  }
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    return disk_->FreeBytes(path);
  }
  absl::StatusOr<bool> ShareSpace(const std::string& a, const std::string& b) override {
    return disk_->ShareSpace(a, b);
  }
  bool DirectIo(const std::string& directory) override { return disk_->DirectIo(directory); }

 private:
  class SimFile;
  // The state of one file, over all processes.
  struct Watched {
    bool log = false;
    bool images = false;
    bool made = false;  // its first Sync has returned
    uint64_t oldest_unsynced = 0;
    uint64_t sync_failed_in = 0;  // which process's newest Sync failed; 0: it did not
    int begun = 0;                // segments that began in it
  };

  // The oldest change to a log that no Sync has covered (0: none), for a PREPARE in `file`.
  uint64_t OldestUnsyncedLogWrite(const Watched* file) const;
  // Runs one operation that changes the disk, if the process is still there.
  template <typename Operation>
  absl::Status Change(const Operation& operation) {
    if (dead_process_ == process_) return Gone();
    if (++operations_ != die_at_) return Counted(operation());
    return Die(operation);
  }
  template <typename Operation>
  absl::Status Die(const Operation& operation) {
    die_at_ = 0;
    if (death_happens_after_) (void)operation();
    dead_process_ = process_;
    std::exchange(died_, nullptr)();
    return Gone();
  }
  static absl::Status Gone() { return absl::InternalError("the process that asks has ended"); }
  absl::Status Counted(const absl::Status& status) {
    if (!status.ok() && !absl::IsNotFound(status)) ++errors_;  // Nothing is wrong with the disk.
    return status;
  }

  const Mutant mutant_;
  MemoryDisk own_;
  MemoryDisk* const disk_;
  uint64_t process_ = 1;
  uint64_t dead_process_ = 0;
  uint64_t operations_ = 0;
  uint64_t errors_ = 0;
  uint64_t failed_writes_ = 0;
  uint64_t failed_syncs_ = 0;
  bool made_ = false;
  bool unsynced_names_ = false;
  bool reused_segment_ = false;
  uint64_t die_at_ = 0;  // 0: not
  bool die_at_rename_ = false;
  bool death_happens_after_ = false;
  uint64_t images_synced_ = 0;
  std::function<void(bool)> beside_sync_;
  int images_syncing_ = 0;
  bool syncs_overlapped_ = false;
  struct Prepare {
    uint64_t change = 0;
    const Watched* file = nullptr;
  };
  std::map<uint64_t, Prepare> prepares_;       // by round, its newest one
  std::map<uint64_t, uint64_t> image_writes_;  // change by offset, of the newest write there
  std::function<void()> died_;
  std::map<std::string, Watched> watched_;
};

}  // namespace ballast::sim
