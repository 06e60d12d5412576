// MetaStore in memory, for the simulator and for tests: the same semantics as the durable
// back-ends, gone with the object. A simulated restart keeps the object.
// Comes from: simulator, tests. Goes to: nothing.
// Thread safety: as MetaStore.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "server/meta/meta_store.h"

namespace ballast::server {

// Thread-safe. Its errors are those of wrong arguments only.
class MemoryMetaStore : public MetaStore {
 public:
  absl::StatusOr<std::optional<MetaEntry>> Get(absl::string_view key) override;
  absl::StatusOr<MetaPage> List(const MetaListRequest& request) override;
  absl::StatusOr<MetaTxnResult> Txn(const MetaTxn& txn) override;

 private:
  // The entry of `key`, or null.
  const MetaEntry* Find(const std::string& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether `txn`, whose compares hold, changes anything.
  bool Writes(const MetaTxn& txn) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  uint64_t revision_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, MetaEntry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
