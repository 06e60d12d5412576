// Sizes and durations with units, as people write them in configuration files.
// Comes from: the config loader, command lines. Goes to: every room as bytes and nanoseconds.
// Thread safety: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Reads "4096", "64MiB" or "1.5GiB" as bytes. Units: B, KiB, MiB, GiB, TiB; none means bytes. A
// blank may stand before the unit. INVALID_ARGUMENT, naming the text and the accepted units: not a
// number, unknown unit, not a whole number of bytes, or 2^63 bytes and more.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);

// Reads "30s", "250ms", "1.5h". Units: ns, us, ms, s, m, h; only 0 may stand without one.
// INVALID_ARGUMENT as ParseBytes, also for negative durations and for more than 292 years.
absl::StatusOr<std::chrono::nanoseconds> ParseDuration(absl::string_view text);

// Writes `bytes` in the largest unit that divides it: 1536MiB, 4097B. ParseBytes reads it back to
// the same number.
std::string FormatBytes(uint64_t bytes);

// For messages: the exact number, and from 1 KiB on a rounded form: "512 bytes", "3608200 bytes
// (3.4 MiB)".
std::string BytesText(uint64_t bytes);

// Writes a duration in the largest unit that divides it: 90s, 250ms. ParseDuration reads it back
// when it is not negative.
std::string FormatDuration(std::chrono::nanoseconds duration);

}  // namespace ballast
