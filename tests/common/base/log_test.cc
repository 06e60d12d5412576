// Tests of common/base/log.h.
#include "common/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"

namespace ballast {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Captures stderr and restores the process-wide settings.
class LogTest : public ::testing::Test {
 protected:
  LogTest() { ::testing::internal::CaptureStderr(); }
  ~LogTest() override {
    if (!taken_) ::testing::internal::GetCapturedStderr();
    SetLogFormat(LogFormat::kText);
    SetMinLogSeverity(LogSeverity::kInfo);
  }
  std::string Take() {
    taken_ = true;
    return ::testing::internal::GetCapturedStderr();
  }

 private:
  bool taken_ = false;
};

TEST_F(LogTest, TextLineHasTimeSeverityPlaceMessageAndFields) {
  BALLAST_LOG(INFO, LogField("job", "gpt"), LogField("round", 7), LogField("ok", true))
      << "committed in " << 1.5 << " s";
  EXPECT_THAT(Take(), MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9:]+\\.[0-9]+Z INFO log_test.cc:[0-9]+ "
                                   "committed in 1.5 s job=\"gpt\" round=7 ok=true\n"));
}

TEST_F(LogTest, JsonLineHasTheSameInOneObject) {
  SetLogFormat(LogFormat::kJson);
  BALLAST_LOG(ERROR, LogField("job", "gpt"), LogField("round", 7), LogField("norm", 0.5)) << "x";
  EXPECT_THAT(Take(), MatchesRegex("\\{\"time\":\"[^\"]+\",\"severity\":\"ERROR\","
                                   "\"source\":\"log_test.cc:[0-9]+\",\"message\":\"x\","
                                   "\"job\":\"gpt\",\"round\":7,\"norm\":0.5\\}\n"));
}

TEST_F(LogTest, JsonEscapesWhatWouldBreakTheLine) {
  SetLogFormat(LogFormat::kJson);
  BALLAST_LOG(WARN, LogField("bad", std::string("a\x01\xff\"\\")),
              LogField("norm", std::numeric_limits<double>::infinity()))
      << "two\nlines \xc3\xa9";
  const std::string line = Take();
  EXPECT_THAT(line, HasSubstr("\"message\":\"two\\nlines \xc3\xa9\""));
  EXPECT_THAT(line, HasSubstr("\"bad\":\"a\\u0001\\ufffd\\\"\\\\\""));
  EXPECT_THAT(line, EndsWith("\"norm\":\"inf\"}\n"));
}

TEST_F(LogTest, TextStaysOnOneLine) {
  BALLAST_LOG(INFO) << "first\nINFO forged line";
  EXPECT_THAT(Take(), EndsWith("first\\nINFO forged line\n"));
}

TEST_F(LogTest, SeveritiesBelowTheLimitAreNeitherWrittenNorEvaluated) {
  SetMinLogSeverity(LogSeverity::kWarn);
  int evaluated = 0;
  BALLAST_LOG(INFO, LogField("n", ++evaluated)) << "hidden " << ++evaluated;
  BALLAST_LOG(WARN) << "shown";
  EXPECT_EQ(evaluated, 0);
  EXPECT_THAT(Take(), EndsWith("shown\n"));
}

TEST_F(LogTest, IsOneStatementForAnIfWithElse) {
  const bool first = false;
  if (first)
    BALLAST_LOG(INFO) << "one";
  else
    BALLAST_LOG(INFO) << "two";
  EXPECT_THAT(Take(), EndsWith("two\n"));
}

TEST_F(LogTest, ShowsStatusAndStringKinds) {
  BALLAST_LOG(INFO) << absl::NotFoundError("no job") << ' ' << absl::string_view("a")
                    << std::string("b") << std::string_view("c") << 'd' << false << uint8_t{7};
  EXPECT_THAT(Take(), EndsWith("NOT_FOUND: no job abcdfalse7\n"));
}

// A pipe takes long lines in parts, so without the lock they would mix.
TEST(LogPipeTest, LongLinesOfManyThreadsStayWhole) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int saved = dup(STDERR_FILENO);
  ASSERT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  close(ends[1]);
  std::string received;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
      received.append(buffer, static_cast<size_t>(n));
    }
  });
  const std::string body(100000, 'x');
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 10; ++n) BALLAST_LOG(INFO) << body << "end";
    });
  }
  for (std::thread& thread : threads) thread.join();
  dup2(saved, STDERR_FILENO);  // Closes the last writing end.
  close(saved);
  reader.join();
  close(ends[0]);
  std::vector<std::string> lines = absl::StrSplit(received, '\n');
  ASSERT_EQ(lines.size(), 41u);
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  for (const std::string& line : lines) ASSERT_THAT(line, EndsWith(" " + body + "end"));
}

TEST_F(LogTest, RateLimitWritesTheFirstAndCountsTheRest) {
  static int runs = 0;
  if (runs++ > 0) GTEST_SKIP() << "a statement remembers for as long as the process lives";
  for (int i = 0; i < 10; ++i) BALLAST_LOG_EVERY(3600, WARN, LogField("i", i)) << "again";
  EXPECT_THAT(Take(), EndsWith("again i=0\n"));
}

TEST_F(LogTest, RateLimitTellsHowManyLinesWereLeftOut) {
  internal::LogRateLimiter never(3600);
  EXPECT_EQ(never.Allow(), 0);
  EXPECT_EQ(never.Allow(), -1);
  internal::LogRateLimiter always(0);
  EXPECT_EQ(always.Allow(), 0);
  EXPECT_EQ(always.Allow(), 0);
  { LogMessage message(LogSeverity::kInfo, "a/b.cc", 3, {}, /*suppressed=*/12); }
  EXPECT_THAT(Take(), EndsWith("b.cc:3  suppressed=12\n"));
}

TEST_F(LogTest, ParsesTheWordsOfTheConfiguration) {
  EXPECT_EQ(*ParseLogFormat("json"), LogFormat::kJson);
  EXPECT_EQ(*ParseLogFormat("text"), LogFormat::kText);
  EXPECT_EQ(*ParseLogSeverity("info"), LogSeverity::kInfo);
  EXPECT_EQ(*ParseLogSeverity("warn"), LogSeverity::kWarn);
  EXPECT_EQ(*ParseLogSeverity("error"), LogSeverity::kError);
  EXPECT_THAT(std::string(ParseLogFormat("xml").status().message()), HasSubstr("xml"));
  EXPECT_THAT(std::string(ParseLogSeverity("loud").status().message()), HasSubstr("info, warn"));
}

}  // namespace
}  // namespace ballast
