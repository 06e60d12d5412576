// Bearer tokens: a file maps hashes of tokens to identities, for trainers without a certificate.
//
//   # a comment, or an empty line
//   sha256:<64 lower-case hex digits> <identity, as identity.h>
//
// The file has no token in it: a stranger that reads it gains nothing it could send. The first line
// of a token's hash is the only one: a second is refused.
// Comes from: security.tokens_file. Goes to: the gate. Thread safety: TokenTable is immutable.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/security/identity.h"

namespace ballast {

using TokenHash = std::array<uint8_t, 32>;

TokenHash HashToken(absl::string_view token);

class TokenTable {
 public:
  // Reads the text of `file`, a name for messages. INVALID_ARGUMENT "file:line:column: why"; a
  // message shows the identity at fault, never a hash.
  static absl::StatusOr<TokenTable> Parse(absl::string_view text, absl::string_view file,
                                          absl::string_view domain);

  TokenTable() = default;

  // The identity of a token, or null. The time it takes does not depend on where hashes differ:
  // each hash of the table is compared whole.
  const Identity* Find(absl::string_view token) const;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    TokenHash hash{};
    Identity identity;
  };
  struct Reader;

  // Takes one line of the file.
  absl::Status Add(const Reader& reader, absl::string_view line);

  std::vector<Entry> entries_;
};

}  // namespace ballast
