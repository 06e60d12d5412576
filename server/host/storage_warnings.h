// What about the machine makes durable jobs slower, or less safe, than they could be: said once, at
// the start, because nothing fails because of it.
// Comes from: the kernel. Goes to: server.cc, which logs it. Thread safety: pure apart from reading
// the kernel's files.
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

// What the kernel (statx) wants direct I/O in `directory` aligned to; 0: it does not say.
uint32_t DirectIoBytes(const std::string& directory);

// Looks at `data_dir`, which exists.
StorageFacts ReadStorageFacts(FileSystem* files, const std::string& data_dir);

// The error `status` of a server that did not start, with what its disk has to do with it: that it
// takes no writes, or how little is free. Unchanged where that is not the cause.
absl::Status WithDisk(const absl::Status& status, const std::string& data_dir);

// A sentence for each fact that matters: what is so, what follows, what to do.
std::vector<std::string> StorageWarnings(const StorageFacts& facts);

}  // namespace ballast::server
