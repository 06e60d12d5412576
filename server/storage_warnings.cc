#include "server/storage_warnings.h"

#include <linux/magic.h>
#include <sys/statfs.h>

#include "absl/strings/str_cat.h"
#include "common/io/huge_pages.h"

namespace ballast::server {
StorageFacts ReadStorageFacts(FileSystem* files, const std::string& data_dir) {
  StorageFacts facts{.data_dir = data_dir};
  struct statfs system = {};
  if (statfs(data_dir.c_str(), &system) == 0) {
    const auto type = static_cast<uint64_t>(system.f_type) & 0xFFFFFFFF;
    facts.in_memory = type == TMPFS_MAGIC || type == RAMFS_MAGIC;
  }
  facts.direct_io = files->DirectIo(data_dir);
  facts.huge_pages = HugePageMode();
  return facts;
}

std::vector<std::string> StorageWarnings(const StorageFacts& facts) {
  std::vector<std::string> warnings;
  if (facts.in_memory) {
    warnings.push_back(absl::StrCat(
        "storage.data_dir ", facts.data_dir,
        " is on a file system in memory (tmpfs): durable jobs take memory that no budget counts "
        "and do not survive a reboot. Use a directory on a local disk"));
  }
  if (!facts.direct_io) {
    warnings.push_back(absl::StrCat(
        "storage.data_dir ", facts.data_dir,
        " takes no direct I/O: log and state go through the page cache, which is slower and takes "
        "memory that no budget counts. Use ext4 or xfs on a local disk"));
  }
  if (facts.huge_pages == "never") {
    warnings.push_back(
        absl::StrCat("the kernel gives no huge pages (", kHugePagesFile,
                     " is never): steps and direct I/O are slower. Set it to madvise"));
  }
  return warnings;
}

}  // namespace ballast::server
