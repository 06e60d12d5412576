// ForwardingFiles: a file system that forwards all calls to another one, for classes that add
// something to some of them by overriding.
// Comes from: EngineFileSystem, WatchedFileSystem. Goes to: another FileSystem.
// Thread safety: as file.h says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file.h"

namespace ballast {

class ForwardingFiles : public FileSystem {
 public:
  // `below` outlives it.
  explicit ForwardingFiles(FileSystem* below) : below_(below) {}

  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    return below_->List(directory);
  }
  absl::Status MakeDirectory(const std::string& directory) override {
    return below_->MakeDirectory(directory);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return below_->Rename(from, to);
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    return below_->Link(from, to);
  }
  absl::Status Remove(const std::string& path) override { return below_->Remove(path); }
  absl::Status RemoveAll(const std::string& directory) override {
    return below_->RemoveAll(directory);
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    return below_->SyncDirectory(directory);
  }
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override {
    return below_->FreeBytes(path);
  }
  absl::StatusOr<bool> ShareSpace(const std::string& a, const std::string& b) override {
    return below_->ShareSpace(a, b);
  }
  bool DirectIo(const std::string& directory) override { return below_->DirectIo(directory); }

 protected:
  FileSystem* below() const { return below_; }

 private:
  FileSystem* const below_;
};

}  // namespace ballast
