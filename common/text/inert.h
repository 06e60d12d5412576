// Text of others on its way to a terminal.
// Comes from: names and error texts of peers. Goes to: ballastctl, pages as plain text.
// Thread safety: pure function.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ballast {

// `text` with everything that a terminal would obey as visible escapes: control characters but the
// line feed (C0, DEL, C1), bytes other than UTF-8, and marks that turn the direction of text.
std::string Inert(absl::string_view text);

}  // namespace ballast
