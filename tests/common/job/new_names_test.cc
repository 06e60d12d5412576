// Names of new tensors: refused ones, and similar ones that are not.
#include "common/job/new_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/reason.h"

namespace ballast {
namespace {

absl::Status Check(const std::string& name, const std::vector<std::string>& aliases = {}) {
  return CheckNewNames(
      std::vector<TensorSpec>{{.name = "first"}, {.name = name, .aliases = aliases}});
}

TEST(CheckNewNames, RefusesEveryControlCharacterOfC1AndShowsItHarmless) {
  for (int code = 0x80; code <= 0x9F; ++code) {
    const std::string bad = {'\xC2', static_cast<char>(code)};
    EXPECT_EQ(ReasonOf(Check("a" + bad)), Reason::kBadSpec) << code;
    EXPECT_EQ(ReasonOf(Check("a", {"b", bad + "c"})), Reason::kBadSpec) << code;
  }
  const absl::Status status = Check("a\u009b2J");
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(),
            R"(the name "a\u009b2J" of new tensor 1 contains a control character )"
            "(U+0080 to U+009F); rename it");
}

TEST(CheckNewNames, TakesLettersWhoseBytesAreAlike) {
  // The first after C1, letters with bytes of 80 to 9F after another lead, and the lead byte last.
  for (const char* good :
       {"\u00a0", "\u00c0\u00df", "\u4f60\u597d", "\u0416", "\U0001F600", "\xC2"}) {
    EXPECT_TRUE(Check(good, {good}).ok()) << good;
  }
}

}  // namespace
}  // namespace ballast
