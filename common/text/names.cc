// Name rules, edit distance and quotation; see names.h.
// Thread safety: pure functions.
#include "common/text/names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kShownBytes = 40;  // Of a bad name, in the message.

bool IsNameByte(char c, bool first) {
  if (absl::ascii_isalnum(static_cast<unsigned char>(c))) return true;
  return !first && (c == '.' || c == '_' || c == '-');
}

}  // namespace

absl::Status ValidateName(absl::string_view what, absl::string_view name) {
  bool good = !name.empty() && name.size() <= kMaxNameBytes;
  for (size_t i = 0; good && i < name.size(); ++i) good = IsNameByte(name[i], i == 0);
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " \"", absl::CEscape(name.substr(0, kShownBytes)),
      name.size() > kShownBytes ? "..." : "", "\" (", name.size(),
      " bytes) is not allowed; use 1 to 128 letters, digits, '.', '_' or '-', beginning with a "
      "letter or digit"));
}

std::string JobIdText(uint64_t job) { return absl::StrCat(absl::Hex(job, absl::kZeroPad16)); }

size_t EditDistance(absl::string_view a, absl::string_view b) {
  const size_t width = b.size() + 1;
  // Rows i-2, i-1 and i of the table of distances between prefixes.
  std::vector<size_t> older(width), previous(width), current(width);
  for (size_t j = 0; j < width; ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j < width; ++j) {
      const size_t replace = previous[j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], older[j - 2] + 1);
      }
    }
    older.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates) {
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  std::string best;
  for (const std::string& candidate : candidates) {
    // The lengths alone bound the distance; skipping spares the table for long hostile words.
    const size_t shorter = std::min(word.size(), candidate.size());
    const size_t longer = std::max(word.size(), candidate.size());
    if (longer - shorter >= best_distance) continue;
    const size_t distance = EditDistance(word, candidate);
    if (distance < best_distance && distance < longer) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string Quoted(absl::string_view text) {
  constexpr size_t kMaxBytes = 64;
  if (text.size() <= kMaxBytes) return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
  size_t cut = kMaxBytes;
  while (cut > 0 && (text[cut] & 0xC0) == 0x80) --cut;  // not inside a UTF-8 sequence
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text.substr(0, cut)), "...\" (", text.size(),
                      " bytes)");
}

}  // namespace ballast
