#include "server/registration.h"

#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "server/host/storage_warnings.h"
#include "server/meta/keys.h"

namespace ballast::server {
namespace {

// Name of the file system with this statfs(2) number, or the number if it is not known here.
std::string FileSystemName(uint64_t type) {
  switch (type) {
    case 0xEF53:
      return "ext4";
    case 0x58465342:
      return "xfs";
    case 0x9123683E:
      return "btrfs";
    case 0x01021994:
      return "tmpfs";
    case 0x794C7630:
      return "overlay";
    case 0x2FC12FC1:
      return "zfs";
    case 0x6969:
      return "nfs";
    default:
      return absl::StrCat("0x", absl::Hex(type));
  }
}

}  // namespace

std::string DescribeServer(const std::string& address, const std::string& data_dir) {
  std::string record = absl::StrCat("address ", address, "\ndata_dir ", data_dir, "\n");
  struct statfs system = {};
  if (statfs(data_dir.c_str(), &system) == 0) {
    absl::StrAppend(&record, "file_system ", FileSystemName(static_cast<uint64_t>(system.f_type)),
                    "\ncapacity_bytes ",
                    static_cast<uint64_t>(system.f_blocks) * static_cast<uint64_t>(system.f_bsize),
                    "\n");
  }
  struct stat directory = {};
  if (stat(data_dir.c_str(), &directory) == 0) {
    absl::StrAppend(&record, "device ", major(directory.st_dev), ":", minor(directory.st_dev),
                    "\n");
  }
  if (const uint32_t bytes = DirectIoBytes(data_dir); bytes != 0) {
    absl::StrAppend(&record, "direct_io_bytes ", bytes, "\n");
  }
  return record;
}

absl::Status RegisterServer(MetaStore* meta, uint32_t id, const std::string& data_dir,
                            const std::string& record) {
  BALLAST_ASSIGN_OR_RETURN(const MetaPage servers, meta->List({.prefix = kServersPrefix}));
  for (const MetaEntry& entry : servers.entries) {
    BALLAST_ASSIGN_OR_RETURN(const uint64_t other, NumberOfKey(entry.key));
    if (other == id) continue;
    return ReasonedError(
        absl::StatusCode::kDataLoss, Reason::kStateLost,
        absl::StrCat(data_dir, " is the data directory of server ", other, ", this is server ", id,
                     "; check storage.data_dir and cluster.id"));
  }
  MetaTxn txn;
  txn.puts.push_back({ServerKey(id), record});
  return meta->Txn(txn).status();
}

}  // namespace ballast::server
