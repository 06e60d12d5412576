// A disk whose power goes at a chosen operation: that one and all later ones do nothing and fail,
// so whoever was writing cannot even clean up. The caller then lets the disk crash and starts
// again on it.
// Comes from: tests of whatever must survive power loss. Goes to: MemoryDisk.
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/io/memory_disk.h"
#include "server/meta/meta_store.h"

namespace ballast::server::testing {

class PowerCut : public FileSystem {
 public:
  // The power goes at the `operations`th (from 0) call that changes something. The disk outlives
  // this and its files.
  PowerCut(MemoryDisk* disk, uint64_t operations) : disk_(disk), left_(operations) {}

  // Whether the power is gone: false when everything was over before.
  bool off() const { return off_; }
  // One more operation; an error when the power is gone.
  absl::Status Take() {
    off_ = off_ || left_ == 0;
    if (off_) return Off();
    --left_;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) override {
    if (absl::Status power = Take(); !power.ok()) return power;
    absl::StatusOr<std::unique_ptr<File>> file = disk_->Open(path, options);
    if (!file.ok()) return file.status();
    return std::make_unique<OpenFile>(this, *std::move(file));
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    if (off_) return Off();
    return disk_->List(directory);
  }
  absl::Status MakeDirectory(const std::string& directory) override {
    const absl::Status power = Take();
    return power.ok() ? disk_->MakeDirectory(directory) : power;
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    const absl::Status power = Take();
    return power.ok() ? disk_->Rename(from, to) : power;
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    const absl::Status power = Take();
    return power.ok() ? disk_->Link(from, to) : power;
  }
  absl::Status Remove(const std::string& path) override {
    const absl::Status power = Take();
    return power.ok() ? disk_->Remove(path) : power;
  }
  absl::Status RemoveAll(const std::string& directory) override {
    const absl::Status power = Take();
    return power.ok() ? disk_->RemoveAll(directory) : power;
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    const absl::Status power = Take();
    return power.ok() ? disk_->SyncDirectory(directory) : power;
  }
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    if (off_) return Off();
    return disk_->FreeBytes(path);
  }
  absl::StatusOr<bool> ShareSpace(const std::string& a, const std::string& b) override {
    if (off_) return Off();
    return disk_->ShareSpace(a, b);
  }
  bool DirectIo(const std::string& directory) override { return disk_->DirectIo(directory); }

 private:
  class OpenFile : public File {
   public:
    OpenFile(PowerCut* power, std::unique_ptr<File> file) : power_(power), file_(std::move(file)) {}
    absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t bytes, void* to) override {
      if (power_->off_) return Off();
      return file_->ReadAt(offset, bytes, to);
    }
    absl::Status WriteAt(uint64_t offset, absl::Span<const ConstBytes> parts) override {
      const absl::Status power = power_->Take();
      return power.ok() ? file_->WriteAt(offset, parts) : power;
    }
    absl::Status Sync() override {
      const absl::Status power = power_->Take();
      return power.ok() ? file_->Sync() : power;
    }
    absl::Status Allocate(uint64_t bytes) override {
      const absl::Status power = power_->Take();
      return power.ok() ? file_->Allocate(bytes) : power;
    }
    absl::StatusOr<uint64_t> Size() override {
      if (power_->off_) return Off();
      return file_->Size();
    }

   private:
    PowerCut* const power_;
    const std::unique_ptr<File> file_;
  };

  static absl::Status Off() { return absl::DataLossError("the power is off"); }

  MemoryDisk* const disk_;
  uint64_t left_;
  bool off_ = false;
};

// The metadata store of the same server: a transaction is one operation, and survives.
class PowerCutMeta : public MetaStore {
 public:
  PowerCutMeta(PowerCut* power, MetaStore* meta) : power_(power), meta_(meta) {}

  absl::StatusOr<std::optional<MetaEntry>> Get(absl::string_view key) override {
    return meta_->Get(key);
  }
  absl::StatusOr<MetaPage> List(const MetaListRequest& request) override {
    return meta_->List(request);
  }
  absl::StatusOr<MetaTxnResult> Txn(const MetaTxn& txn) override {
    if (const absl::Status power = power_->Take(); !power.ok()) return power;
    return meta_->Txn(txn);
  }

 private:
  PowerCut* const power_;
  MetaStore* const meta_;
};

}  // namespace ballast::server::testing
