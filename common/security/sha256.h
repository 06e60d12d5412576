// SHA-256 (FIPS 180-4) of some bytes, as 32 bytes. Comes from: nothing. Goes to: server/jobs,
// server/security.
// Thread safety: a pure function.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ballast {

std::string Sha256(absl::string_view bytes);

}  // namespace ballast
