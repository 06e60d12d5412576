#include "server/meta/request_checks.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace ballast::server {
namespace {

constexpr size_t kShownBytesMax = 80;

std::string Shown(absl::string_view text) {
  const bool whole = text.size() <= kShownBytesMax;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kShownBytesMax)), whole ? "'" : "...'");
}

bool IsPrintable(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

absl::Status CheckText(absl::string_view what, absl::string_view text) {
  if (text.size() > kMetaKeyBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", Shown(text), " of ", text.size(),
                                                   " bytes is above the limit of ",
                                                   kMetaKeyBytesMax, "; use a shorter one"));
  }
  if (!IsPrintable(text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " ", Shown(text), " holds a blank or a character that is not printable ASCII"));
  }
  return absl::OkStatus();
}

absl::Status CheckValue(absl::string_view key, absl::string_view value) {
  if (value.size() <= kMetaValueBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "value of metadata key '", key, "' has ", value.size(), " bytes, above the limit of ",
      kMetaValueBytesMax, "; the metadata store is for small records, bulk bytes go to files"));
}

absl::Status CheckWrittenOnce(std::vector<absl::string_view> keys) {
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("metadata key '", *twice,
                                                 "' is written twice in one transaction; keep one "
                                                 "put or delete per key"));
}

absl::Status CheckTxnSize(const MetaTxn& txn) {
  const size_t operations = txn.compares.size() + txn.puts.size() + txn.deletes.size();
  if (operations > kMetaTxnOperationsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "metadata transaction has ", operations, " compares, puts and deletes, above the limit of ",
        kMetaTxnOperationsMax, "; split it"));
  }
  size_t value_bytes = 0;
  for (const MetaCompare& compare : txn.compares) value_bytes += compare.value.size();
  for (const MetaPut& put : txn.puts) value_bytes += put.value.size();
  if (value_bytes > kMetaTxnValueBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("metadata transaction holds ", value_bytes,
                                                   " bytes of values, above the limit of ",
                                                   kMetaTxnValueBytesMax, "; split it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMetaKey(absl::string_view key) {
  BALLAST_RETURN_IF_ERROR(CheckText("metadata key", key));
  if (key.empty() || absl::StartsWith(key, "/") || absl::EndsWith(key, "/") ||
      absl::StrContains(key, "//")) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata key ", Shown(key),
                     " has an empty component; write components with one '/' between them"));
  }
  return absl::OkStatus();
}

absl::Status CheckMetaList(const MetaListRequest& request) {
  BALLAST_RETURN_IF_ERROR(CheckText("list prefix", request.prefix));
  BALLAST_RETURN_IF_ERROR(CheckText("list start", request.after));
  if (request.limit < 1 || request.limit > kMetaListEntriesMax) {
    return absl::InvalidArgumentError(absl::StrCat("list limit ", request.limit, " is not in 1 to ",
                                                   kMetaListEntriesMax,
                                                   "; read further pages with `after`"));
  }
  return absl::OkStatus();
}

absl::Status CheckMetaTxn(const MetaTxn& txn) {
  std::vector<absl::string_view> written;
  for (const MetaCompare& compare : txn.compares) {
    BALLAST_RETURN_IF_ERROR(CheckMetaKey(compare.key));
    BALLAST_RETURN_IF_ERROR(CheckValue(compare.key, compare.value));
  }
  for (const MetaPut& put : txn.puts) {
    BALLAST_RETURN_IF_ERROR(CheckMetaKey(put.key));
    BALLAST_RETURN_IF_ERROR(CheckValue(put.key, put.value));
    written.push_back(put.key);
  }
  for (const std::string& key : txn.deletes) {
    BALLAST_RETURN_IF_ERROR(CheckMetaKey(key));
    written.push_back(key);
  }
  BALLAST_RETURN_IF_ERROR(CheckTxnSize(txn));
  return CheckWrittenOnce(std::move(written));
}

bool MetaCompareHolds(const MetaCompare& compare, const MetaEntry* current) {
  switch (compare.kind) {
    case MetaCompare::Kind::kAbsent:
      return current == nullptr;
    case MetaCompare::Kind::kExists:
      return current != nullptr;
    case MetaCompare::Kind::kModRevision:
      return compare.mod_revision == (current == nullptr ? 0 : current->mod_revision);
    case MetaCompare::Kind::kValue:
      return current != nullptr && compare.value == current->value;
  }
  return false;
}

}  // namespace ballast::server
