// A metadata store that finds room on a full disk: a file next to it reserves some, released to the
// file system before a transaction when little else is free, and reserved again when there is room.
// So a change of epoch does not fail because other files have filled the disk.
// Comes from: the server's start. Goes to: another MetaStore, common/io files.
// Thread safety: DiskReserve's methods may be called from any thread; the store as MetaStore.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/io/file.h"
#include "server/meta/meta_store.h"

namespace ballast::server {

// The file. Its errors are logged; it never fails.
class DiskReserve {
 public:
  // `path` lies in an existing directory on the store's disk. `fs` outlives the reserve.
  DiskReserve(FileSystem* fs, std::string path, uint64_t bytes)
      : fs_(fs), path_(std::move(path)), bytes_(bytes) {}

  // Removes the file, of this process or an earlier one, when less than its bytes are free.
  void GiveIfShort();
  // Makes it when it is missing and twice its bytes are free.
  void TakeIfRoom();

 private:
  FileSystem* const fs_;
  const std::string path_;
  const uint64_t bytes_;
  Mutex mu_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
};

// `store` with `reserve`, which outlives it.
std::unique_ptr<MetaStore> WithReserve(std::unique_ptr<MetaStore> store, DiskReserve* reserve);

}  // namespace ballast::server
