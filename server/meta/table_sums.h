// Checksums of whole table files, each in a small file next to its table: <table>.sum. RocksDB has
// a checksum for most of a table, but believes its footer and its properties, and damage there can
// end the process. So a table is compared before RocksDB reads it. A missing or incomplete sum
// proves nothing.
// Layout: magic "BLMT" | crc32c u32 of the rest | crc32c u32 of the table, little-endian, 12 bytes.
// Comes from: rocksdb_store. Goes to: POSIX. Thread safety: any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace rocksdb {
class EventListener;
}

namespace ballast::server {

// Suffix of a table's name.
inline constexpr char kTableSumSuffix[] = ".sum";

// Keeps the sums of the tables that a store makes and removes. The store's options must have
// file_checksum_gen_factory of CRC32C.
std::shared_ptr<rocksdb::EventListener> KeepTableSums();

// Whether the table at `path` matches its sum, or has none. UNAVAILABLE with the reason when it
// cannot be read.
absl::StatusOr<bool> TableIsWhole(const std::string& path);

}  // namespace ballast::server
