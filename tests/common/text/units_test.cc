// Tests of common/text/units.h.
#include "common/text/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

namespace ballast {
namespace {

using std::chrono::nanoseconds;
using ::testing::HasSubstr;

TEST(ParseBytesTest, ReadsNumbersWithAndWithoutUnits) {
  const std::vector<std::pair<std::string, uint64_t>> cases = {
      {"4096", 4096},
      {"0", 0},
      {"7B", 7},
      {"64MiB", uint64_t{64} << 20},
      {"1.5GiB", (uint64_t{3} << 30) / 2},
      {" 2 KiB ", 2048},
      {"0.0009765625KiB", 1},
      {"8388607TiB", uint64_t{8388607} << 40},
      {"9223372036854775807", 9223372036854775807u}};
  for (const auto& [text, bytes] : cases) {
    const auto parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseBytesTest, RefusesWhatItCannotRepresent) {
  for (const char* text :
       {"", "MiB", "64MB", "64mib", "1.3KiB", "-1", "+1", "1e6", "1..5GiB", "1.", ".5GiB", "1 000",
        "0x10", "nan", "8388608TiB", "9223372036854775808", "99999999999999999999999999999TiB"}) {
    EXPECT_EQ(ParseBytes(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ParseBytesTest, ErrorsNameTheTextAndTheUnits) {
  const std::string message(ParseBytes("64MB").status().message());
  EXPECT_THAT(message, HasSubstr("\"64MB\""));
  EXPECT_THAT(message, HasSubstr("B, KiB, MiB, GiB, TiB"));
  EXPECT_THAT(std::string(ParseBytes("8388608TiB").status().message()), HasSubstr("2^63 - 1"));
}

TEST(ParseDurationTest, ReadsNumbersWithUnits) {
  const std::vector<std::pair<std::string, int64_t>> cases = {{"30s", 30000000000},
                                                              {"250ms", 250000000},
                                                              {"10m", 600000000000},
                                                              {"1.5h", 5400000000000},
                                                              {"3us", 3000},
                                                              {"1ns", 1},
                                                              {"0", 0},
                                                              {"0s", 0},
                                                              {"2.5s", 2500000000}};
  for (const auto& [text, ns] : cases) {
    const auto parsed = ParseDuration(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->count(), ns) << text;
  }
}

TEST(ParseDurationTest, RefusesWhatItCannotRepresent) {
  for (const char* text :
       {"", "30", "s", "-1s", "1.5ns", "10 minutes", "1m30s", "2562048h", "1d"}) {
    EXPECT_EQ(ParseDuration(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(ParseDuration("30").status().message()), HasSubstr("has no unit"));
  EXPECT_THAT(std::string(ParseDuration("1d").status().message()),
              HasSubstr("ns, us, ms, s, m, h"));
}

TEST(FormatTest, UsesTheLargestUnitThatDivides) {
  EXPECT_EQ(BytesText(0), "0 bytes");
  EXPECT_EQ(BytesText(1023), "1023 bytes");
  EXPECT_EQ(BytesText(3608200), "3608200 bytes (3.4 MiB)");
  EXPECT_EQ(BytesText(uint64_t{12} << 30), "12884901888 bytes (12.0 GiB)");
  EXPECT_EQ(FormatBytes(0), "0B");
  EXPECT_EQ(FormatBytes(4097), "4097B");
  EXPECT_EQ(FormatBytes((uint64_t{3} << 30) / 2), "1536MiB");
  EXPECT_EQ(FormatDuration(nanoseconds(0)), "0s");
  EXPECT_EQ(FormatDuration(std::chrono::seconds(90)), "90s");
  EXPECT_EQ(FormatDuration(std::chrono::minutes(120)), "2h");
  EXPECT_EQ(FormatDuration(std::chrono::milliseconds(-250)), "-250ms");
  EXPECT_EQ(FormatDuration(nanoseconds::min()), "-9223372036854775808ns");
}

TEST(FormatTest, FormattedValuesParseBackEqual) {
  for (uint64_t value = 1; value < (uint64_t{1} << 62); value = value * 3 + 1) {
    EXPECT_EQ(*ParseBytes(FormatBytes(value)), value);
    const nanoseconds duration(static_cast<int64_t>(value));
    EXPECT_EQ(*ParseDuration(FormatDuration(duration)), duration);
  }
  EXPECT_EQ(*ParseDuration(FormatDuration(nanoseconds::max())), nanoseconds::max());
}

}  // namespace
}  // namespace ballast
