// MetaStore: the small records that a cluster must not lose (jobs, plans, epochs, devices) as a
// revisioned key-value store with compare-and-write transactions. Bulk bytes never go
// here. The semantics are a part of etcd's, so that an etcd back-end can implement the same
// interface; its leases and watches would become further methods here (Lease, Watch).
// Comes from: server/jobs, recovery. Goes to: rocksdb_store.h, memory_store.h.
// Thread safety: all methods may be called from any thread at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast::server {

// The checks of every back-end. A key is 1 to kMetaKeyBytesMax printable ASCII characters without
// blanks, as non-empty components with '/' between them. A value is any bytes.
inline constexpr size_t kMetaKeyBytesMax = 512;
inline constexpr size_t kMetaValueBytesMax = size_t{16} << 20;
// Of one transaction: compares, puts and deletes together; bytes of all values in it.
inline constexpr size_t kMetaTxnOperationsMax = 128;
inline constexpr size_t kMetaTxnValueBytesMax = size_t{32} << 20;
// Of one page of a list. A page also ends with the value that brings it to the second limit.
inline constexpr size_t kMetaListEntriesMax = 1000;
inline constexpr size_t kMetaListValueBytes = size_t{16} << 20;

struct MetaEntry {
  std::string key;
  std::string value;
  uint64_t create_revision = 0;  // of the transaction since which the key exists without a gap
  uint64_t mod_revision = 0;     // of the transaction that wrote this value

  bool operator==(const MetaEntry&) const = default;
};

// A condition on one key. A key that does not exist has mod_revision 0, and no value.
struct MetaCompare {
  enum class Kind : uint8_t { kAbsent, kExists, kModRevision, kValue };

  Kind kind = Kind::kAbsent;
  std::string key;
  uint64_t mod_revision = 0;  // kModRevision only
  std::string value;          // kValue only

  static MetaCompare Absent(std::string key) { return {Kind::kAbsent, std::move(key), 0, {}}; }
  static MetaCompare Exists(std::string key) { return {Kind::kExists, std::move(key), 0, {}}; }
  static MetaCompare ModRevisionIs(std::string key, uint64_t revision) {
    return {Kind::kModRevision, std::move(key), revision, {}};
  }
  static MetaCompare ValueIs(std::string key, std::string value) {
    return {Kind::kValue, std::move(key), 0, std::move(value)};
  }
};

struct MetaPut {
  std::string key;
  std::string value;
};

// Written when all compares hold. A key may occur in many compares, but in one put or delete only.
struct MetaTxn {
  std::vector<MetaCompare> compares;
  std::vector<MetaPut> puts;
  std::vector<std::string> deletes;  // of a key that does not exist: nothing happens
};

// The transaction of a write-once record: not committed when the key exists.
inline MetaTxn PutOnce(const std::string& key, std::string value) {
  MetaTxn txn;
  txn.compares.push_back(MetaCompare::Absent(key));
  txn.puts.push_back(MetaPut{key, std::move(value)});
  return txn;
}

struct MetaTxnResult {
  bool committed = false;
  // Of the store after the transaction; when it wrote, also the mod_revision of all its puts.
  uint64_t revision = 0;
};

struct MetaListRequest {
  std::string prefix;                  // of the keys' texts; empty: all keys
  std::string after;                   // only keys greater than this one; empty: from the first
  size_t limit = kMetaListEntriesMax;  // 1 to kMetaListEntriesMax
};

struct MetaPage {
  std::vector<MetaEntry> entries;  // ascending by key, compared as bytes
  std::string next;                // `after` of the next page; empty: this was the last one
};

// Methods are synchronous: they wait for the disk or the network, so call them on an executor,
// never on a poller or a strand that others wait for. Errors:
//   UNAVAILABLE          the store cannot be reached, is locked by another process, or a write
//                        failed; whether a failed transaction happened is then unknown: read again
//   DATA_LOSS            something stored is damaged or gone; a person must look at it
//   FAILED_PRECONDITION  written by another release in a format that this one does not read
//   INVALID_ARGUMENT     a key, value, limit or transaction that no store accepts
class MetaStore {
 public:
  virtual ~MetaStore() = default;

  // The entry of `key`, or nullopt when it does not exist. Sees every transaction whose Txn has
  // returned.
  virtual absl::StatusOr<std::optional<MetaEntry>> Get(absl::string_view key) = 0;

  // Keys that begin with request.prefix and come after request.after. One page is a consistent
  // view; between pages others may write.
  virtual absl::StatusOr<MetaPage> List(const MetaListRequest& request) = 0;

  // Compares and writes in one step that no other transaction can interleave with. When it returns
  // committed, all of it survives power loss (in a durable back-end); when not committed, nothing
  // was written. Revisions start at 0 and grow by exactly one per committed transaction that
  // writes; one without puts whose deletes meet nothing does not write. They never go back, not
  // even over restarts.
  virtual absl::StatusOr<MetaTxnResult> Txn(const MetaTxn& txn) = 0;
};

}  // namespace ballast::server
