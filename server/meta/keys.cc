#include "server/meta/keys.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"

namespace ballast::server {

absl::StatusOr<std::string> JobNameKey(const QualifiedName& job) {
  BALLAST_RETURN_IF_ERROR(ValidateName("tenant", job.tenant));
  BALLAST_RETURN_IF_ERROR(ValidateName("job name", job.name));
  return absl::StrCat(kJobNamesPrefix, job.Text());
}

std::string JobPlanKey(uint64_t job) { return absl::StrCat("job/", job, "/plan"); }

std::string JobEpochsPrefix(uint64_t job) { return absl::StrCat("job/", job, "/epoch/"); }

std::string JobEpochKey(uint64_t job, uint64_t epoch) {
  // 20 digits hold every uint64_t; absl::Dec pads to 16 at most.
  std::string digits = absl::StrCat(epoch);
  digits.insert(0, 20 - digits.size(), '0');
  return JobEpochsPrefix(job) + digits;
}

std::string ServerKey(uint32_t server) { return absl::StrCat(kServersPrefix, server); }

absl::StatusOr<uint64_t> NumberOfKey(absl::string_view key) {
  const absl::string_view digits = key.substr(key.rfind('/') + 1);
  const bool decimal =
      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  uint64_t number = 0;
  if (!decimal || !absl::SimpleAtoi(digits, &number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata key '", absl::CHexEscape(key),
                     "' does not end with '/' and a decimal number below 2^64"));
  }
  return number;
}

}  // namespace ballast::server
