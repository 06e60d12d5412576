// The audit log: the fields of a line, and the number of refusals written.
#include "server/security/audit.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

class AuditTest : public testing::Test {
 protected:
  FakeClock clock_;
  std::vector<AuditLine> lines_;
  AuditLog log_{&clock_, [this](const AuditLine& line) { lines_.push_back(line); }};
};

TEST_F(AuditTest, EveryOrderIsWritten) {
  for (int i = 0; i < 100; ++i) log_.Order({.method = "m"});
  EXPECT_EQ(lines_.size(), 100u);
  EXPECT_EQ(lines_[0].kind, "order");
}

TEST_F(AuditTest, AFloodOfRefusalsIsCountedNotWritten) {
  for (int i = 0; i < 1000; ++i) log_.Refused({.method = "m"});
  EXPECT_EQ(lines_.size(), static_cast<size_t>(AuditLog::kRefusalsPerSecond));
  log_.Order({.method = "an order is written all the same"});
  EXPECT_EQ(lines_.back().suppressed, 0u);
  clock_.Advance(std::chrono::seconds(1));
  log_.Refused({.method = "m"});
  EXPECT_EQ(lines_.back().kind, "refused");
  EXPECT_EQ(lines_.back().suppressed, 1000u - AuditLog::kRefusalsPerSecond);
  log_.Refused({.method = "m"});
  EXPECT_EQ(lines_.back().suppressed, 0u);
}

TEST_F(AuditTest, ALineIsOneJsonObjectWhateverACallerSends) {
  testing::internal::CaptureStderr();
  WriteAuditLine({.kind = "order",
                  .identity = "spiffe://d/admin",
                  .method = "/a/B",
                  .job = "x\n\"}{\xff",
                  .result = "OK",
                  .suppressed = 3});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text,
              testing::MatchesRegex(
                  "\\{\"time\":\"[^\"]*\",\"audit\":\"order\",\"identity\":\"spiffe://d/admin\","
                  "\"method\":\"/a/B\",\"job\":\"x\\\\n\\\\\"\\}\\{\\\\ufffd\",\"result\":"
                  "\"OK\",\"suppressed\":3\\}\n"));
}

}  // namespace
}  // namespace ballast::server
