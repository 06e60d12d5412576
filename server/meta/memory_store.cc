#include "server/meta/memory_store.h"

#include <utility>

#include "absl/strings/match.h"
#include "common/base/status_macros.h"
#include "server/meta/request_checks.h"

namespace ballast::server {

const MetaEntry* MemoryMetaStore::Find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

absl::StatusOr<std::optional<MetaEntry>> MemoryMetaStore::Get(absl::string_view key) {
  BALLAST_RETURN_IF_ERROR(CheckMetaKey(key));
  MutexLock lock(&mu_);
  const MetaEntry* entry = Find(std::string(key));
  if (entry == nullptr) return std::optional<MetaEntry>();
  return std::optional<MetaEntry>(*entry);
}

absl::StatusOr<MetaPage> MemoryMetaStore::List(const MetaListRequest& request) {
  BALLAST_RETURN_IF_ERROR(CheckMetaList(request));
  MetaPageBuilder page(request);
  MutexLock lock(&mu_);
  auto next = request.after < request.prefix ? entries_.lower_bound(request.prefix)
                                             : entries_.upper_bound(request.after);
  while (next != entries_.end() && absl::StartsWith(next->first, request.prefix) &&
         page.HasRoom()) {
    page.Add(next->second);
    ++next;
  }
  const bool more = next != entries_.end() && absl::StartsWith(next->first, request.prefix);
  return std::move(page).Finish(more);
}

bool MemoryMetaStore::Writes(const MetaTxn& txn) const {
  for (const std::string& key : txn.deletes) {
    if (Find(key) != nullptr) return true;
  }
  return !txn.puts.empty();
}

absl::StatusOr<MetaTxnResult> MemoryMetaStore::Txn(const MetaTxn& txn) {
  BALLAST_RETURN_IF_ERROR(CheckMetaTxn(txn));
  MutexLock lock(&mu_);
  for (const MetaCompare& compare : txn.compares) {
    if (!MetaCompareHolds(compare, Find(compare.key))) return MetaTxnResult{false, revision_};
  }
  if (!Writes(txn)) return MetaTxnResult{true, revision_};
  ++revision_;
  for (const MetaPut& put : txn.puts) {
    const MetaEntry* current = Find(put.key);
    const uint64_t created = current == nullptr ? revision_ : current->create_revision;
    entries_[put.key] = MetaEntry{put.key, put.value, created, revision_};
  }
  for (const std::string& key : txn.deletes) entries_.erase(key);
  return MetaTxnResult{true, revision_};
}

}  // namespace ballast::server
