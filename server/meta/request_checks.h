// What all back-ends of MetaStore check and decide alike: forms of keys and requests, and whether a
// compare holds, and when a page is full. Comes from: the back-ends. Goes to: nothing.
// Thread safety: pure functions; MetaPageBuilder is thread-compatible.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/meta/meta_store.h"

namespace ballast::server {

// OK when `key` has the form that meta_store.h describes, else INVALID_ARGUMENT with the key,
// escaped and shortened, and the rule.
absl::Status CheckMetaKey(absl::string_view key);

// INVALID_ARGUMENT: a prefix or an `after` that no key can have, or a limit out of range.
absl::Status CheckMetaList(const MetaListRequest& request);

// INVALID_ARGUMENT: a bad key, a key written twice, too many operations, too large values.
absl::Status CheckMetaTxn(const MetaTxn& txn);

// Whether `compare` holds for the current entry of its key; null when there is none.
bool MetaCompareHolds(const MetaCompare& compare, const MetaEntry* current);

// Fills one page of a list, in key order, up to the limits of the request and of meta_store.h.
class MetaPageBuilder {
 public:
  explicit MetaPageBuilder(const MetaListRequest& request) : entries_max_(request.limit) {}

  bool HasRoom() const {
    return page_.entries.size() < entries_max_ && value_bytes_ < kMetaListValueBytes;
  }
  // Only while HasRoom().
  void Add(MetaEntry entry) {
    value_bytes_ += entry.value.size();
    page_.entries.push_back(std::move(entry));
  }
  // `more`: the store holds further entries of the list.
  MetaPage Finish(bool more) && {
    if (more) page_.next = page_.entries.back().key;
    return std::move(page_);
  }

 private:
  const size_t entries_max_;
  size_t value_bytes_ = 0;
  MetaPage page_;
};

}  // namespace ballast::server
