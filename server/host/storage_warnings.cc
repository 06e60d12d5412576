#include "server/host/storage_warnings.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/io/file_error.h"
#include "common/io/huge_pages.h"
#include "server/host/disk_watch.h"

namespace ballast::server {
namespace {

// Disk space for the server's own small files, without those of jobs, which reserve theirs.
constexpr uint64_t kOwnBytes = 64 * 1024;

}  // namespace

uint32_t DirectIoBytes([[maybe_unused]] const std::string& directory) {
#ifdef STATX_DIOALIGN
  struct statx found = {};
  const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) return 0;
  const bool known = statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &found) == 0 &&
                     (found.stx_mask & STATX_DIOALIGN) != 0;
  close(file);
  if (known) return found.stx_dio_offset_align;
#endif
  return 0;
}

StorageFacts ReadStorageFacts(FileSystem* files, const std::string& data_dir) {
  StorageFacts facts{.data_dir = data_dir};
  struct statfs system = {};
  if (statfs(data_dir.c_str(), &system) == 0) {
    const auto type = static_cast<uint64_t>(system.f_type) & 0xFFFFFFFF;
    facts.in_memory = type == TMPFS_MAGIC || type == RAMFS_MAGIC;
  }
  facts.direct_io = files->DirectIo(data_dir);
  facts.direct_io_bytes = DirectIoBytes(data_dir);
  facts.huge_pages = HugePageMode();
  facts.free_bytes = files->FreeBytes(data_dir).value_or(0);
  facts.file_bytes_max = FileBytesMax();
  return facts;
}

absl::Status WithDisk(const absl::Status& status, const std::string& data_dir) {
  if (data_dir.empty()) return status;
  if (ReadDisk(data_dir).read_only) {
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), "\nthe file system of storage.data_dir ", data_dir,
                     " is read-only: look at dmesg for the reason, check "
                     "it with fsck, and mount it again"));
  }
  if (!absl::IsResourceExhausted(status) || ReasonOf(status) != Reason::kUnspecified) return status;
  const absl::StatusOr<uint64_t> free = PosixFileSystem()->FreeBytes(data_dir);
  if (!free.ok()) return status;
  return absl::Status(
      status.code(), absl::StrCat(status.message(), "; storage.data_dir ", data_dir, " has ", *free,
                                  " bytes free, and ballastd needs ", kOwnBytes, " for itself"));
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
    const std::string why =
        facts.direct_io_bytes <= kPageBytes
            ? ""
            : absl::StrCat(" in pieces of ", kPageBytes, " bytes (its device wants ",
                           facts.direct_io_bytes, ")");
    warnings.push_back(
        absl::StrCat("storage.data_dir ", facts.data_dir, " takes no direct I/O", why,
                     ": log and state go through the page cache, which is slower and takes "
                     "memory that no budget counts. Use ext4 or xfs on a local disk"));
  }
  if (facts.huge_pages == "never") {
    warnings.push_back(
        absl::StrCat("the kernel gives no huge pages (", kHugePagesFile,
                     " is never): steps and direct I/O are slower. Set it to madvise"));
  }
  if (facts.file_bytes_max.has_value() && *facts.file_bytes_max < facts.free_bytes) {
    warnings.push_back(absl::StrCat(
        "files of this process may have ", *facts.file_bytes_max,
        " bytes at most (RLIMIT_FSIZE, ulimit -f), and storage.data_dir ", facts.data_dir, " has ",
        facts.free_bytes,
        " bytes free: durable jobs, snapshots and exports with larger files are refused. Raise the "
        "limit where ballastd is started"));
  }
  return warnings;
}

}  // namespace ballast::server
