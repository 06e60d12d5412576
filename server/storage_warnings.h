// What about the machine makes durable jobs slower, or less safe, than they could be: said once, at
// the start, because nothing fails because of it.
// Comes from: the kernel. Goes to: server.cc, which logs it. Thread safety: pure apart from reading
// the kernel's files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/io/file.h"

namespace ballast::server {

struct StorageFacts {
  std::string data_dir;
  bool in_memory = false;  // tmpfs or ramfs
  bool direct_io = true;
  // The word in brackets of /sys/kernel/mm/transparent_hugepage/enabled; empty: not known.
  std::string huge_pages;
};

// Looks at `data_dir`, which exists.
StorageFacts ReadStorageFacts(FileSystem* files, const std::string& data_dir);

// The value that is in force in a line like "always [madvise] never"; empty for any other.
std::string ChosenWord(const std::string& line);

// A sentence for each fact that matters: what is so, what follows, what to do.
std::vector<std::string> StorageWarnings(const StorageFacts& facts);

}  // namespace ballast::server
