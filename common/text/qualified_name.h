// QualifiedName: a name and the tenant that it belongs to. Two tenants may use the same name for
// two things.
//
//   gpt          of the tenant "default": of a server without security, or from before tenants
//   acme/gpt     of any other; no name has a '/' in it, so the text is unambiguous
//
// Comes from: callers (common/security/caller.h), plans. Goes to: keys of maps, records and metric
// series. Thread safety: plain values.
#pragma once

#include <compare>
#include <string>

#include "absl/strings/string_view.h"

namespace ballast {

// The tenant of everything on a server without security, and of all data stored before tenants
// existed.
inline constexpr char kDefaultTenant[] = "default";

struct QualifiedName {
  std::string tenant = kDefaultTenant;
  std::string name;

  friend auto operator<=>(const QualifiedName&, const QualifiedName&) = default;

  // As above: for logs, metadata keys and tables. Texts for the tenant itself have the bare name.
  std::string Text() const { return TenantPrefix(tenant, "/") + name; }

  // The prefix of a tenant's names, with `end`; empty for the tenant "default".
  static std::string TenantPrefix(absl::string_view tenant, absl::string_view end) {
    if (tenant == kDefaultTenant) return std::string();
    return std::string(tenant).append(end.data(), end.size());
  }
};

}  // namespace ballast
