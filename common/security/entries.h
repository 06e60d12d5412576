// The lines of a file that lists identities or tokens.
// Comes from: the text of a file. Goes to: tokens.cc, server/security. Thread safety: pure.
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Calls `take` with the number of each line, from 1, and the line without the blanks at its end.
// Empty lines and lines that begin with # are passed over. Stops at the first error, and returns
// it.
inline absl::Status ForEachEntry(
    absl::string_view text,
    absl::FunctionRef<absl::Status(size_t number, absl::string_view line)> take) {
  size_t number = 0;
  for (const absl::string_view whole : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripTrailingAsciiWhitespace(whole);
    if (line.empty() || line[0] == '#') continue;
    if (absl::Status status = take(number, line); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ballast
