#include "common/base/inert.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ballast {
namespace {

// The code point at the start of `text` and its length; length 0 where it is no UTF-8.
struct Character {
  uint32_t code = 0;
  size_t bytes = 0;
};

Character CharacterOf(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {lead, 0};
  uint32_t code = lead & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0u) != 0x80) return {lead, 0};
    code = code << 6 | (next & 0x3Fu);
  }
  return {code, bytes};
}

bool IsHarmful(uint32_t code) {
  const bool control = (code < 0x20 && code != '\n') || (code >= 0x7F && code < 0xA0);
  const bool turns = code == 0x61C || code == 0x200E || code == 0x200F ||
                     (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return control || turns || surrogate;
}

}  // namespace

std::string Inert(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character next = CharacterOf(text);
    if (next.bytes == 0) {
      absl::StrAppendFormat(&out, "\\x%02x", next.code);
      text.remove_prefix(1);
      continue;
    }
    if (IsHarmful(next.code)) {
      absl::StrAppendFormat(&out, "\\u%04x", next.code);
    } else {
      absl::StrAppend(&out, text.substr(0, next.bytes));
    }
    text.remove_prefix(next.bytes);
  }
  return out;
}

}  // namespace ballast
