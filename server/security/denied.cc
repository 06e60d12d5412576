#include "server/security/denied.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/security/entries.h"

namespace ballast::server {

absl::StatusOr<DeniedIdentities> DeniedIdentities::Parse(absl::string_view text,
                                                         absl::string_view file,
                                                         absl::string_view domain) {
  DeniedIdentities denied;
  const auto take = [&](size_t number, absl::string_view line) {
    const absl::StatusOr<Identity> identity = ParseIdentity(line, domain);
    if (!identity.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ":1: ", identity.status().message()));
    }
    denied.uris_.insert(UriOf(*identity));
    return absl::OkStatus();
  };
  BALLAST_RETURN_IF_ERROR(ForEachEntry(text, take));
  return denied;
}

}  // namespace ballast::server
