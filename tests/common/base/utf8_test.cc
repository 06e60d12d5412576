// Which byte sequences are UTF-8.
#include "common/base/utf8.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(IsUtf8, FollowsTheTableOfTheUnicodeStandard) {
  for (const char* good : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xef\xbf",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

TEST(Utf8Length, IsThatOfTheFirstSequence) {
  EXPECT_EQ(Utf8Length("ab"), 1u);
  EXPECT_EQ(Utf8Length("\xe2\x86\x92 "), 3u);
  EXPECT_EQ(Utf8Length("\xf0\x9f\x99\x82"), 4u);
  EXPECT_EQ(Utf8Length("\xf0\x9f\x99"), 0u) << "cut off";
}

}  // namespace
}  // namespace ballast
