#include "client/collective/lost.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast::collective {
namespace {

std::string Names(const std::vector<uint32_t>& ranks) {
  if (ranks.empty()) return "a rank";
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

}  // namespace

std::string InBucket(const char* call, BucketId id) {
  return absl::StrCat(call, " of bucket ", id.bucket, " of round ", id.round);
}

absl::Status Late(const std::vector<uint32_t>& ranks, uint64_t epoch,
                  std::chrono::nanoseconds waited, const std::string& where) {
  const double seconds = std::chrono::duration<double>(waited).count();
  return absl::UnavailableError(absl::StrCat(Names(ranks), " of epoch ", epoch,
                                             " did not arrive within ", seconds, " s (in ", where,
                                             ")"));
}

absl::Status Gone(const std::vector<uint32_t>& ranks, uint64_t epoch, const std::string& where,
                  const std::string& said) {
  return absl::UnavailableError(absl::StrCat(Names(ranks), " of epoch ", epoch,
                                             ranks.size() > 1 ? " are" : " is", " gone (in ", where,
                                             "; ", said, ")"));
}

}  // namespace ballast::collective
