// Element types of safetensors files. Wider than common/tensor/dtype.h, which lists what Ballast
// trains: a file may hold anything, and an error must be able to name it.
// Comes from: headers of files, exporters. Goes to: header.h. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

enum class SafeDType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};

// Bytes of one element: 1, 2, 4 or 8.
size_t SafeDTypeBytes(SafeDType dtype);

// The format's own word: "BF16", "F8_E4M3".
const char* SafeDTypeName(SafeDType dtype);

// The dtype that the format calls `name`. UNIMPLEMENTED: one that the format has and this build
// does not read (F4, C64 and the like); INVALID_ARGUMENT: none of the format's. Both name it and
// list the readable ones.
absl::StatusOr<SafeDType> ParseSafeDType(absl::string_view name);

}  // namespace ballast
