#include "common/safetensors/dtype.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/text/names.h"

namespace ballast {
namespace {

struct Row {
  const char* name;
  size_t bytes;
};

// In the order of SafeDType.
constexpr std::array<Row, 15> kRows = {{{"BOOL", 1},
                                        {"U8", 1},
                                        {"I8", 1},
                                        {"F8_E5M2", 1},
                                        {"F8_E4M3", 1},
                                        {"I16", 2},
                                        {"U16", 2},
                                        {"F16", 2},
                                        {"BF16", 2},
                                        {"I32", 4},
                                        {"U32", 4},
                                        {"F32", 4},
                                        {"F64", 8},
                                        {"I64", 8},
                                        {"U64", 8}}};

// The format's others: less than a byte wide, scales, or without a use here.
constexpr std::array<absl::string_view, 7> kNotRead = {
    "F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"};

std::string ReadNames() {
  std::string names;
  for (const Row& row : kRows) absl::StrAppend(&names, names.empty() ? "" : ", ", row.name);
  return names;
}

}  // namespace

size_t SafeDTypeBytes(SafeDType dtype) { return kRows[static_cast<size_t>(dtype)].bytes; }

const char* SafeDTypeName(SafeDType dtype) { return kRows[static_cast<size_t>(dtype)].name; }

absl::StatusOr<SafeDType> ParseSafeDType(absl::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (name == kRows[i].name) return static_cast<SafeDType>(i);
  }
  if (std::find(kNotRead.begin(), kNotRead.end(), name) != kNotRead.end()) {
    return absl::UnimplementedError(
        absl::StrCat("dtype ", name, " is not read here; convert it to one of ", ReadNames()));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "dtype ", Quoted(name), " is none of the format; this build reads ", ReadNames()));
}

}  // namespace ballast
