// The key space.
#include "server/meta/keys.h"

#include <gtest/gtest.h>

#include <limits>

#include "server/meta/request_checks.h"

namespace ballast::server {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(MetaKeys, AreWrittenAsDocumented) {
  EXPECT_EQ(*JobNameKey({.name = "gpt-2.small_1"}), "jobs/gpt-2.small_1");
  EXPECT_EQ(*JobNameKey({"acme", "gpt"}), "jobs/acme/gpt");
  EXPECT_EQ(JobPlanKey(42), "job/42/plan");
  EXPECT_EQ(JobEpochsPrefix(42), "job/42/epoch/");
  EXPECT_EQ(JobEpochKey(42, 7), "job/42/epoch/00000000000000000007");
  EXPECT_EQ(JobEpochKey(kMax, kMax), "job/18446744073709551615/epoch/18446744073709551615");
  EXPECT_EQ(ServerKey(3), "server/3");
}

TEST(MetaKeys, AreKeysThatStoresAccept) {
  EXPECT_TRUE(CheckMetaKey(*JobNameKey({std::string(128, 't'), std::string(128, 'n')})).ok());
  for (const std::string& key : {JobPlanKey(0), JobEpochKey(kMax, kMax), ServerKey(0)}) {
    EXPECT_TRUE(CheckMetaKey(key).ok()) << key;
  }
}

TEST(MetaKeys, NamesThatAreNoJobNamesAreRefused) {
  for (const char* name : {"", "a/b", "a b", "../a", "/"}) {
    for (const QualifiedName& job : {QualifiedName{"t", name}, QualifiedName{name, "n"}}) {
      EXPECT_EQ(JobNameKey(job).status().code(), absl::StatusCode::kInvalidArgument) << name;
    }
  }
}

TEST(MetaKeys, EpochsSortByNumber) {
  EXPECT_LT(JobEpochKey(1, 9), JobEpochKey(1, 10));
  EXPECT_LT(JobEpochKey(1, kMax - 1), JobEpochKey(1, kMax));
}

TEST(MetaKeys, NumbersAreReadBack) {
  EXPECT_EQ(*NumberOfKey(JobEpochKey(42, 7)), 7u);
  EXPECT_EQ(*NumberOfKey(JobEpochKey(42, kMax)), kMax);
  EXPECT_EQ(*NumberOfKey(ServerKey(3)), 3u);
  for (const char* key : {"", "server/", "server/x", "server/-1", "server/ 1", "server/1x",
                          "server/18446744073709551616"}) {
    EXPECT_EQ(NumberOfKey(key).status().code(), absl::StatusCode::kInvalidArgument) << key;
  }
}

}  // namespace
}  // namespace ballast::server
