#include "common/text/inert.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace ballast {
namespace {

// The code point of one UTF-8 sequence.
uint32_t CodeOf(absl::string_view sequence) {
  const auto lead = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return lead;
  uint32_t code = lead & (0xFFu >> (sequence.size() + 1));
  for (const char next : sequence.substr(1)) {
    code = code << 6 | (static_cast<unsigned char>(next) & 0x3Fu);
  }
  return code;
}

bool IsHarmful(uint32_t code) {
  const bool control = (code < 0x20 && code != '\n') || (code >= 0x7F && code < 0xA0);
  const bool turns = code == 0x61C || code == 0x200E || code == 0x200F ||
                     (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  return control || turns;
}

}  // namespace

std::string Inert(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
      continue;
    }
    const absl::string_view sequence = text.substr(0, length);
    if (const uint32_t code = CodeOf(sequence); IsHarmful(code)) {
      absl::StrAppendFormat(&out, "\\u%04x", code);
    } else {
      absl::StrAppend(&out, sequence);
    }
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace ballast
