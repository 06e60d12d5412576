// MetaStore in a RocksDB directory on the local disk. Every committed transaction is synced to
// RocksDB's log before Txn returns. Values carry the header of value_codec.h, the newest revision
// has a key of its own in the same write batch, and committed_mark.h notices lost commits. Comes
// from: the server's start. Goes to: RocksDB, whose own background threads stay idle mostly. Thread
// safety: as MetaStore.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/meta/meta_store.h"

namespace rocksdb {
class Env;
}

namespace ballast::server {

struct RocksDbMetaStoreOptions {
  // Created, with its parents, when missing. Belongs to the store alone.
  std::string directory;
  // File system of the store, for tests with faults; null: the machine's own. Outlives the store.
  rocksdb::Env* env = nullptr;
  // Called once when a write has failed, before its Txn returns: the process should end.
  std::function<void(const absl::Status&)> write_failed;
};

// The key under which the newest revision is stored. No key that CheckMetaKey accepts.
inline constexpr char kMetaRevisionKey[] = "\1revision";

// Opens or creates the store. Errors, all naming the directory:
//   UNAVAILABLE          another store, of this or another process, holds the directory; or the
//                        system refuses to open it
//   DATA_LOSS STATE_LOST files are damaged or missing, or commits are gone. Nothing was changed,
//   and
//                        nothing is created over the remains
//   FAILED_PRECONDITION  written by another release, or by another program
// The destructor closes the store and frees the directory. After a failed write the store answers
// every Txn with UNAVAILABLE until it is reopened: the failed one may have reached the disk or not.
absl::StatusOr<std::unique_ptr<MetaStore>> OpenRocksDbMetaStore(
    const RocksDbMetaStoreOptions& options);

}  // namespace ballast::server
