// Collects configuration errors. See error_list.h.
#include "server/config/error_list.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast::config {

std::string Quoted(absl::string_view text) {
  constexpr size_t kMaxBytes = 64;
  if (text.size() <= kMaxBytes) return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
  size_t cut = kMaxBytes;
  while (cut > 0 && (text[cut] & 0xC0) == 0x80) --cut;  // not inside a UTF-8 sequence
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text.substr(0, cut)), "...\" (", text.size(),
                      " bytes)");
}

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
