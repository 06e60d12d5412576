// Collects configuration errors. See error_list.h.
#include "server/config/error_list.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast::config {

void ErrorList::Add(absl::string_view where, absl::string_view message) {
  if (full()) {
    ++hidden_;
    return;
  }
  lines_.push_back(where.empty() ? std::string(message) : absl::StrCat(where, ": ", message));
}

absl::Status ErrorList::ToStatus() const {
  if (lines_.empty()) return absl::OkStatus();
  std::string text = absl::StrJoin(lines_, "\n");
  if (hidden_ > 0) absl::StrAppend(&text, "\nand ", hidden_, " more");
  return absl::InvalidArgumentError(text);
}

}  // namespace ballast::config
