// The deny-list: identities without any rights although their certificates or tokens are valid. A
// line is an identity as in identity.h; empty lines and lines that begin with # are ignored. An
// identity is denied by its whole URI: tenant/a/trainer does not deny tenant/a/trainer/7.
// Comes from: security.denied_file. Goes to: the gate. Thread safety: immutable.
#pragma once

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/security/identity.h"

namespace ballast::server {

class DeniedIdentities {
 public:
  // Reads the text of `file`, a name for messages. INVALID_ARGUMENT "file:line:1: why".
  static absl::StatusOr<DeniedIdentities> Parse(absl::string_view text, absl::string_view file,
                                                absl::string_view domain);

  bool Has(const Identity& identity) const { return uris_.contains(UriOf(identity)); }
  size_t size() const { return uris_.size(); }

 private:
  std::set<std::string> uris_;
};

}  // namespace ballast::server
