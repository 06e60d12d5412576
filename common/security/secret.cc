#include "common/security/secret.h"

#include <openssl/crypto.h>
#include <unistd.h>

#include "common/base/check.h"

namespace ballast {

std::string NewSecret() {
  std::string bytes(kSecretBytes, '\0');
  // It fails for buffers above 256 bytes only, once the kernel has begun.
  BALLAST_CHECK(getentropy(bytes.data(), bytes.size()) == 0);
  return bytes;
}

bool SameSecret(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace ballast
