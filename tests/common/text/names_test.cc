// Tests of common/text/names.h.
#include "common/text/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ballast {
namespace {

using ::testing::HasSubstr;

TEST(ValidateNameTest, AcceptsLettersDigitsAndThreeSigns) {
  for (const std::string& name :
       {std::string("a"), std::string("0"), std::string("gpt-2_v1.5"), std::string(128, 'Z')}) {
    EXPECT_TRUE(ValidateName("job name", name).ok()) << name;
  }
}

TEST(ValidateNameTest, RefusesWhatCouldBeAPathOrALine) {
  const std::vector<std::string> bad = {"",
                                        ".hidden",
                                        "-x",
                                        "_x",
                                        "..",
                                        "a/b",
                                        "a b",
                                        "a\n",
                                        "caf\xc3\xa9",
                                        std::string("a\0b", 3),
                                        std::string(129, 'a')};
  for (const std::string& name : bad) {
    EXPECT_EQ(ValidateName("job name", name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(ValidateNameTest, TheMessageShowsTheNameEscapedAndShortened) {
  const std::string message(ValidateName("job name", "a\n" + std::string(5000, 'x')).message());
  EXPECT_THAT(message, HasSubstr("job name \"a\\nxxx"));
  EXPECT_THAT(message, HasSubstr("5002 bytes"));
  EXPECT_THAT(message, HasSubstr("1 to 128"));
  EXPECT_LT(message.size(), 300u);
}

TEST(JobIdTextTest, IsSixteenHexDigits) {
  EXPECT_EQ(JobIdText(0xabc), "0000000000000abc");
  EXPECT_EQ(JobIdText(UINT64_MAX), "ffffffffffffffff");
}

TEST(EditDistanceTest, CountsEveryKindOfEdit) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("abc", ""), 3u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("queue_dept", "queue_depth"), 1u);
  EXPECT_EQ(EditDistance("betas", "beats"), 1u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), EditDistance("sitting", "kitten"));
}

TEST(DidYouMeanTest, FindsTheNearest) {
  const std::vector<std::string> keys = {"address", "queue_depth", "queue_bytes", "id"};
  EXPECT_EQ(DidYouMean("queue_dept", keys), "queue_depth");
  EXPECT_EQ(DidYouMean("adress", keys), "address");
  EXPECT_EQ(DidYouMean("di", keys), "id");
}

TEST(DidYouMeanTest, IsSilentWhenNothingIsNear) {
  const std::vector<std::string> keys = {"address", "x"};
  EXPECT_EQ(DidYouMean("frobnicate", keys), "");
  EXPECT_EQ(DidYouMean("y", keys), "");
  EXPECT_EQ(DidYouMean("", keys), "");
  EXPECT_EQ(DidYouMean("address", {}), "");
}

TEST(QuotedTest, EscapesAndShortens) {
  EXPECT_EQ(Quoted("a\nb"), "\"a\\nb\"");
  EXPECT_EQ(Quoted(std::string(100, 'x')), "\"" + std::string(64, 'x') + "...\" (100 bytes)");
}

}  // namespace
}  // namespace ballast
