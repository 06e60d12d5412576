#include "server/security/denied.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ballast::server {

absl::StatusOr<DeniedIdentities> DeniedIdentities::Parse(absl::string_view text,
                                                         absl::string_view file,
                                                         absl::string_view domain) {
  DeniedIdentities denied;
  size_t number = 0;
  for (const absl::string_view whole : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripTrailingAsciiWhitespace(whole);
    if (line.empty() || line[0] == '#') continue;
    const absl::StatusOr<Identity> identity = ParseIdentity(line, domain);
    if (!identity.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ":1: ", identity.status().message()));
    }
    denied.uris_.insert(UriOf(*identity));
  }
  return denied;
}

}  // namespace ballast::server
