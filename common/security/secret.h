// Secrets that a process makes for itself. Comes from: the operating system. Goes to:
// server/security. Thread safety: pure functions, but for the system's random numbers.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ballast {

inline constexpr size_t kSecretBytes = 16;

// 16 bytes that no other process can guess, from getentropy(3).
std::string NewSecret();

// Whether both are equal. The time it takes does not depend on where they differ.
bool SameSecret(absl::string_view a, absl::string_view b);

}  // namespace ballast
