#include "server/stream/parse_budget.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"

namespace ballast::server {

ParseBudget::Hold::Hold(Hold&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}

ParseBudget::Hold& ParseBudget::Hold::operator=(Hold&& other) noexcept {
  if (this == &other) return *this;
  Release();
  budget_ = std::exchange(other.budget_, nullptr);
  bytes_ = other.bytes_;
  return *this;
}

void ParseBudget::Hold::Release() {
  if (budget_ != nullptr) std::exchange(budget_, nullptr)->Give(bytes_);
}

absl::StatusOr<ParseBudget::Hold> ParseBudget::Take(size_t bytes) {
  MutexLock lock(&mu_);
  if (held_ > 0 && held_ + bytes > bytes_max_) {
    return ReasonedError(
        absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
        absl::StrCat("parsing this request takes ", bytes, " bytes, and others take ", held_,
                     " of limits.max_parse_bytes ", bytes_max_, "; try again"));
  }
  held_ += bytes;
  return Hold(this, bytes);
}

size_t ParseBudget::held_bytes() const {
  MutexLock lock(&mu_);
  return held_;
}

void ParseBudget::Give(size_t bytes) {
  MutexLock lock(&mu_);
  held_ -= bytes;
}

}  // namespace ballast::server
