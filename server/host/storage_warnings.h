// Properties of the machine that make durable jobs slower, or less safe, than necessary: logged
// once at the start, because they cause no failure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/file.h"

namespace ballast::server {

struct StorageFacts {
  std::string data_dir;
  bool in_memory = false;  // tmpfs or ramfs
  bool direct_io = true;
  uint32_t direct_io_bytes = 0;            // DirectIoBytes
  std::string huge_pages;                  // HugePageMode
  uint64_t free_bytes = 0;                 // of the file system
  std::optional<uint64_t> file_bytes_max;  // FileBytesMax
};

// The alignment in bytes that the kernel (statx) requires for direct I/O in `directory`; 0:
// unknown.
uint32_t DirectIoBytes(const std::string& directory);

// Inspects `data_dir`, which exists.
StorageFacts ReadStorageFacts(FileSystem* files, const std::string& data_dir);

// `status`, the error of a failed start, with the disk's part in it: that it refuses writes, or how
// little space is free. Unchanged if the disk is not the cause.
absl::Status WithDisk(const absl::Status& status, const std::string& data_dir);

// One sentence for each relevant fact: the fact, its consequence and the remedy.
std::vector<std::string> StorageWarnings(const StorageFacts& facts);

}  // namespace ballast::server
