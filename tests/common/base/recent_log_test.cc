// The last records of the log.
#include "common/base/recent_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/log.h"

namespace ballast {
namespace {

TEST(RecentLog, ForgetsTheOldest) {
  RecentLog log(2);
  for (const char* text : {"one", "two", "three"}) log.Add({0, "INFO", text});
  const std::vector<LogRecord> all = log.All();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].text, "two");
  EXPECT_EQ(all[1].text, "three");
}

TEST(RecentLog, CutsALongTextBetweenTwoCharacters) {
  RecentLog log(1);
  std::string text(kRecentLogBytesMax - 4, 'a');
  for (int i = 0; i < 8; ++i) text += "\xc3\xbc";
  log.Add({0, "INFO", text});
  const std::string kept = log.All()[0].text;
  EXPECT_LE(kept.size(), kRecentLogBytesMax);
  EXPECT_THAT(kept, testing::EndsWith("a..."));
}

TEST(RecentLog, KeepsWhatTheProcessLogs) {
  BALLAST_LOG(WARN, LogField("job", "gpt")) << "a line\nof \x1b[31mtwo";
  const LogRecord last = ProcessLog().All().back();
  EXPECT_STREQ(last.severity, "WARN");
  EXPECT_GT(last.time_us, 0);
  EXPECT_EQ(last.text, "a line\\nof \\u001b[31mtwo job=\"gpt\"");
}

}  // namespace
}  // namespace ballast
