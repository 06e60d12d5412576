// Text of others before a terminal sees it.
#include "common/text/inert.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(Inert, ControlCharactersBecomeVisible) {
  EXPECT_EQ(Inert("\x1b[2J"), "\\u001b[2J");
  EXPECT_EQ(Inert("a\rb\tc\x7f"), "a\\u000db\\u0009c\\u007f");
  EXPECT_EQ(Inert("\xc2\x9b"
                  "31m"),
            "\\u009b31m")
      << "C1 is a control sequence, too";
  EXPECT_EQ(Inert("\xe2\x80\xae"
                  "abc"),
            "\\u202eabc")
      << "turns the direction of text";
}

TEST(Inert, BytesThatAreNoUtf8BecomeVisible) {
  EXPECT_EQ(Inert("\x9b"
                  "31m"),
            "\\x9b31m");
  EXPECT_EQ(Inert("\xc3"), "\\xc3");
  EXPECT_EQ(Inert("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a surrogate pair";
  EXPECT_EQ(Inert("\xe0\x82\x9b"), "\\xe0\\x82\\x9b") << "U+009B in three bytes";
  EXPECT_EQ(Inert("\xf0\x80\x82\x9b"), "\\xf0\\x80\\x82\\x9b") << "U+009B in four bytes";
  EXPECT_EQ(Inert("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "U+110000";
}

TEST(Inert, OtherTextStays) {
  const std::string text = "layer.0 \xe2\x86\x92 \xc3\xbc\xf0\x9f\x99\x82\nnext <b>";
  EXPECT_EQ(Inert(text), text);
  EXPECT_EQ(Inert(""), "");
}

}  // namespace
}  // namespace ballast
