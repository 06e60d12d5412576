// Rules for names that people choose (jobs, groups, servers), help for misspelt ones, and how input
// is shown.
// Comes from: the config loader, job creation, command lines. Goes to: nothing.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// OK when `name` is 1 to 128 of [A-Za-z0-9._-] and begins with a letter or digit: such a name is
// safe as a file name, a metric label and part of a URL. INVALID_ARGUMENT otherwise; the message
// begins with `what` ("job name") and shows the name, escaped and shortened, and the rule.
absl::Status ValidateName(absl::string_view what, absl::string_view name);

// A job's number as people see it, in logs, errors, `ballastctl` and names of folders: 16 hex
// digits.
std::string JobIdText(uint64_t job);

// The least number of insertions, deletions, replacements and swaps of neighbours that turn `a`
// into `b`, in bytes (optimal string alignment).
size_t EditDistance(absl::string_view a, absl::string_view b);

// The candidate nearest to `word` (the first of equals), or "" when none is within a third of the
// word's length, and at least one edit.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates);

// Shows input inside an error message: escaped, in quotes, shortened to about 64 bytes.
std::string Quoted(absl::string_view text);

}  // namespace ballast
