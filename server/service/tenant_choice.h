// The tenant of an operator's or trainer's call: the caller's own, or for an admin the one named in
// the message.
// Comes from: admin_service. Goes to: the calls of operators.
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/security/caller.h"

namespace ballast::server {

// `named`: of the message; empty: none. A caller of a tenant may name that one only; an admin, and
// every caller of a server without security, may name any, and means "default" by none. Errors,
// which reveal nothing of existing tenants: PERMISSION_DENIED NOT_PERMITTED for another tenant than
// the caller's; INVALID_ARGUMENT BAD_ARGUMENT for an invalid name.
absl::StatusOr<std::string> TenantOfCall(const Caller& caller, const std::string& named);

// Likewise of a list; nullopt: of all tenants, an admin's default.
absl::StatusOr<std::optional<std::string>> TenantOfList(const Caller& caller,
                                                        const std::string& named);

}  // namespace ballast::server
