// Callers' notices of quotas.
#include "server/quota/quotas.h"

#include "common/base/reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

using ::testing::HasSubstr;

using Kind = Holding::Kind;

QuotaTable DiskOf(uint64_t bytes) {
  QuotaTable table;
  table.others.disk_bytes = bytes;
  return table;
}

TEST(QuotasTest, ARefusalNamesTenantResourceBothNumbersAndTheNextStep) {
  Quotas quotas(3);
  quotas.SetLimits(DiskOf(4096));
  ASSERT_TRUE(quotas.Take({Kind::kSnapshot, 1}, "acme", {.disk_bytes = 4000}).ok());
  const absl::Status refused = quotas.Take({Kind::kSnapshot, 2}, "acme", {.disk_bytes = 100});
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), Reason::kOverQuota);
  EXPECT_EQ(FieldsOf(refused).server, 3);
  EXPECT_EQ(std::string(refused.message()),
            "tenant \"acme\" uses 4000 of 4096 bytes of disk that it may use at server 3, and this "
            "takes 100 more; delete jobs, snapshots or exports of this tenant, or raise `disk` of "
            "the tenant in security.quotas_file");
  EXPECT_EQ(quotas.Uses()[0].used.disk_bytes, 4000u);
}

TEST(QuotasTest, ACheckTakesNothing) {
  Quotas quotas;
  quotas.SetLimits(DiskOf(10));
  EXPECT_TRUE(quotas.Check("a", {.disk_bytes = 10}).ok());
  EXPECT_EQ(ReasonOf(quotas.Check("a", {.disk_bytes = 11})), Reason::kOverQuota);
  EXPECT_TRUE(quotas.Uses().empty());
}

TEST(QuotasTest, ReleasesWithTheLastCopy) {
  const auto quotas = std::make_shared<Quotas>();
  ASSERT_TRUE(quotas->Take({Kind::kAttach, 1}, "a", {.waiting_attaches = 1}).ok());
  std::shared_ptr<void> end = GiveAtEnd(quotas, {Kind::kAttach, 1});
  std::shared_ptr<void> copy = end;
  end.reset();
  EXPECT_EQ(quotas->Uses().size(), 1u);
  copy.reset();
  EXPECT_TRUE(quotas->Uses().empty());
}

}  // namespace
}  // namespace ballast::server
