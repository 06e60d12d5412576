// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
// Comes from: texts of others. Goes to: logs, error messages, configuration, safetensors headers.
// Source: the Unicode Standard 15, table 3-7; RFC 3629. Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace ballast {

// Bytes of the UTF-8 sequence that `text`, not empty, begins with; 0: it begins with none.
size_t Utf8Length(absl::string_view text);

// Whether all of `text` is UTF-8.
bool IsUtf8(absl::string_view text);

}  // namespace ballast
