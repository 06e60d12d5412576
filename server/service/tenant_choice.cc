#include "server/service/tenant_choice.h"

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/text/names.h"

namespace ballast::server {
namespace {

bool MayNameAny(const Caller& caller) {
  return !caller.secured || caller.identity.role == Role::kAdmin;
}

}  // namespace

absl::StatusOr<std::string> TenantOfCall(const Caller& caller, const std::string& named) {
  if (named.empty()) return caller.tenant();
  if (const absl::Status status = ValidateName("tenant", named); !status.ok()) {
    return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
                         status.message());
  }
  if (MayNameAny(caller) || named == caller.tenant()) return named;
  return ReasonedError(
      absl::StatusCode::kPermissionDenied, Reason::kNotPermitted,
      absl::StrCat("a ", RoleName(caller.identity.role), " of tenant ", caller.tenant(),
                   " may not name tenant ", named, "; leave the tenant out"));
}

absl::StatusOr<std::optional<std::string>> TenantOfList(const Caller& caller,
                                                        const std::string& named) {
  if (named.empty() && MayNameAny(caller)) return std::optional<std::string>();
  absl::StatusOr<std::string> tenant = TenantOfCall(caller, named);
  if (!tenant.ok()) return tenant.status();
  return std::optional<std::string>(*std::move(tenant));
}

}  // namespace ballast::server
