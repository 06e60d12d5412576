#include "server/meta/table_sums.h"

#include <fcntl.h>
#include <rocksdb/listener.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/bytes/crc32c.h"
#include "common/bytes/little_endian.h"
#include "server/meta/summed_file.h"

namespace ballast::server {
namespace {

constexpr absl::string_view kSumMagic("BLMT", 4);
constexpr size_t kPieceBytes = size_t{1} << 16;

// Synced before RocksDB takes the table over. A failure is ignored: the table is not compared then.
void WriteSum(const std::string& path, uint32_t table) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  const std::string sum = EncodeSummed(kSumMagic, table);
  if (pwrite(file, sum.data(), sum.size(), 0) == static_cast<ssize_t>(sum.size())) fsync(file);
  close(file);
}

absl::StatusOr<uint32_t> SumOf(const std::string& path) {
  const auto unreadable = [&path] {
    return absl::UnavailableError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return unreadable();
  std::string piece(kPieceBytes, '\0');
  uint32_t sum = 0;
  ssize_t got = 0;
  while ((got = read(file, piece.data(), piece.size())) > 0) {
    sum = Crc32c(piece.data(), static_cast<size_t>(got), sum);
  }
  const absl::Status status = got < 0 ? unreadable() : absl::OkStatus();
  close(file);
  if (!status.ok()) return status;
  return sum;
}

class SumKeeper : public rocksdb::EventListener {
 public:
  // An older attempt at this number may have left one.
  void OnTableFileCreationStarted(const rocksdb::TableFileCreationBriefInfo& info) override {
    unlink((info.file_path + kTableSumSuffix).c_str());
  }
  // Before anything refers to the table. RocksDB gives the checksum as four bytes, high one first.
  void OnTableFileCreated(const rocksdb::TableFileCreationInfo& info) override {
    std::string checksum = info.file_checksum;
    if (!info.status.ok() || checksum.size() != sizeof(uint32_t)) return;
    std::reverse(checksum.begin(), checksum.end());
    WriteSum(info.file_path + kTableSumSuffix, ReadLittleEndian<uint32_t>(checksum, 0));
  }
  void OnTableFileDeleted(const rocksdb::TableFileDeletionInfo& info) override {
    unlink((info.file_path + kTableSumSuffix).c_str());
  }
};

}  // namespace

std::shared_ptr<rocksdb::EventListener> KeepTableSums() { return std::make_shared<SumKeeper>(); }

absl::StatusOr<bool> TableIsWhole(const std::string& path) {
  const std::optional<uint32_t> promised = ReadSummed<uint32_t>(kSumMagic, path + kTableSumSuffix);
  if (!promised.has_value()) return true;
  const absl::StatusOr<uint32_t> sum = SumOf(path);
  if (!sum.ok()) return sum.status();
  return *sum == *promised;
}

}  // namespace ballast::server
