#include "common/security/sha256.h"

#include <openssl/sha.h>

namespace ballast {

std::string Sha256(absl::string_view bytes) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(),
         reinterpret_cast<uint8_t*>(hash.data()));
  return hash;
}

}  // namespace ballast
