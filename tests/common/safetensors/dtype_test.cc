// The dtypes of the format by name.
#include "common/safetensors/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace ballast {
namespace {

using ::testing::HasSubstr;

TEST(SafeDType, NamesAndWidthsAreThoseOfTheFormat) {
  const std::map<std::string, size_t> bytes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
      {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
  for (const auto& [name, width] : bytes) {
    const absl::StatusOr<SafeDType> dtype = ParseSafeDType(name);
    ASSERT_TRUE(dtype.ok()) << dtype.status();
    EXPECT_EQ(SafeDTypeName(*dtype), name);
    EXPECT_EQ(SafeDTypeBytes(*dtype), width) << name;
  }
}

TEST(SafeDType, OfTheFormatButNotReadIsUnimplementedAndNamed) {
  for (const char* name :
       {"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"}) {
    const absl::Status status = ParseSafeDType(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

TEST(SafeDType, NoneOfTheFormatIsInvalidAndNamed) {
  for (const char* name : {"", "f32", "F32 ", "FLOAT", "F128"}) {
    const absl::Status status = ParseSafeDType(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

}  // namespace
}  // namespace ballast
