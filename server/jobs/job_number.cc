#include "server/jobs/job_number.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/bytes/little_endian.h"
#include "common/security/sha256.h"

namespace ballast::server {

uint64_t NewJobNumber(const QualifiedName& name, const std::vector<Member>& members,
                      const MakingAttempt& attempt) {
  std::string seats = absl::StrCat(name.Text(), "\n");
  for (const Member& member : members) absl::StrAppend(&seats, member.incarnation, "\n");
  absl::StrAppend(&seats, "home ", attempt.home, " ", attempt.number, "\n");
  const auto number = ReadLittleEndian<uint64_t>(Sha256(seats), 0);
  return number == 0 ? 1 : number;
}

uint64_t RandomId() {
  std::random_device random;
  const uint64_t id = (uint64_t{random()} << 32) ^ random();
  return id == 0 ? 1 : id;
}

}  // namespace ballast::server
