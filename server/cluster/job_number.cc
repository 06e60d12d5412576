#include "server/cluster/job_number.h"

#include <openssl/sha.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/little_endian.h"

namespace ballast::server {

uint64_t NewJobNumber(const QualifiedName& name, const std::vector<Member>& members) {
  std::string seats = absl::StrCat(name.Text(), "\n");
  for (const Member& member : members) absl::StrAppend(&seats, member.incarnation, "\n");
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(seats.data()), seats.size(),
         reinterpret_cast<uint8_t*>(hash.data()));
  const auto number = ReadLittleEndian<uint64_t>(hash, 0);
  return number == 0 ? 1 : number;
}

}  // namespace ballast::server
