// ParseBudget: held parses, refused ones, and the bytes given back.
#include "server/stream/parse_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "common/base/reason.h"

namespace ballast::server {
namespace {

TEST(ParseBudget, GrantsWhatFitsAndTakesItBackWithTheHold) {
  ParseBudget budget(100);
  auto first = budget.Take(60);
  ASSERT_TRUE(first.ok());
  const auto refused = budget.Take(41);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused.status()), Reason::kOverBudget);
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("try again"));
  EXPECT_TRUE(budget.Take(40).ok());  // And given back at once.
  EXPECT_EQ(budget.held_bytes(), 60u);
  ParseBudget::Hold moved = *std::move(first);
  EXPECT_EQ(budget.held_bytes(), 60u);
  moved = {};
  EXPECT_EQ(budget.held_bytes(), 0u);
}

TEST(ParseBudget, OneRequestAloneAlwaysPasses) {
  ParseBudget budget(100);
  const auto large = budget.Take(1000);
  EXPECT_TRUE(large.ok());
  EXPECT_FALSE(budget.Take(1).ok());
}

}  // namespace
}  // namespace ballast::server
