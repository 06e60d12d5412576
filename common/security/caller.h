// Caller: the party that makes a call, as the gate has found it.
// Comes from: the gate. Goes to: the services, the parts that answer operators. Thread safety:
// plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/security/identity.h"
#include "common/text/qualified_name.h"

namespace ballast {

struct Caller {
  // False: the server has no security. Then the call may do everything, and belongs to the default
  // tenant.
  bool secured = false;
  Identity identity;  // with `secured`
  // Without security: the server whose number the call carries.
  std::optional<uint32_t> peer;

  // Whether it may see and use the resources of `tenant`.
  bool Sees(absl::string_view tenant) const {
    if (!secured) return true;
    const bool all = identity.role == Role::kAdmin || identity.role == Role::kServer;
    return all || identity.tenant == tenant;
  }
  // The tenant that a new job of this caller belongs to.
  std::string tenant() const {
    return secured && !identity.tenant.empty() ? identity.tenant : kDefaultTenant;
  }
  // That tenant's job, or other thing, of this name.
  QualifiedName Own(absl::string_view name) const { return {tenant(), std::string(name)}; }
  // The identity as text; empty without security.
  std::string uri() const { return secured ? UriOf(identity) : std::string(); }
};

}  // namespace ballast
