// The record of a job's plan: its versions and the fields that each leaves out; and the other
// records of its log.
#include "server/jobs/job_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"
#include "common/base/reason.h"
#include "server/durability/log/log_format.h"
#include "server/jobs/job_store.h"
#include "server/meta/keys.h"
#include "server/round/job_plan.h"
#include "tests/server/directory/durable_plans.h"

namespace ballast::server {
namespace {

using testing::DurableDisk;
using testing::DurablePlan;
using testing::kJobsRoot;

// As releases before decision 031 wrote DurablePlan(): its contributors are left out.
constexpr char kOldRecord[] =
    "01000000094d00000000000000123a0a056a6f6237371002180120012a0a0a0274301202ac0218012a09"
    "0a027431120128180139000000000000f03f400148405080015801600170641a1e080110011a0911e803"
    "0000000000001a0b080111e903000000000000300122050a030001002a0200013001";

JobPlan Reduced() {
  JobPlan plan = DurablePlan();
  plan.spec.gradients = Gradients::kReduced;
  plan.epoch.contributors = ContributorsOf(plan.spec, plan.epoch.members);
  return plan;
}

std::string RecordOf(const JobPlan& plan) {
  DurableDisk disk;
  EXPECT_TRUE(JobRecords(disk.meta(), MakePlanCodec()).Create(plan).ok());
  return disk.meta()->Get(JobPlanKey(plan.job))->value_or(MetaEntry()).value;
}

absl::StatusOr<JobPlan> Read(const std::string& value) {
  DurableDisk disk;
  MetaTxn txn;
  txn.puts.push_back({JobPlanKey(77), value});
  EXPECT_TRUE(disk.meta()->Txn(txn).ok());
  return JobRecords(disk.meta(), MakePlanCodec()).Find(77);
}

TEST(JobRecordsTest, ARecordOfAnOlderReleaseIsReadAndWrittenAsItWas) {
  const std::string old = absl::HexStringToBytes(kOldRecord);
  const auto plan = Read(old);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.gradients, Gradients::kLocal);
  EXPECT_EQ(plan->epoch.contributors, AllContribute(plan->epoch.members, 1));
  EXPECT_EQ(absl::BytesToHexString(RecordOf(*plan)), kOldRecord);
}

// A reader of version 1 only would let all slots push the share of one of them.
TEST(JobRecordsTest, ReducedGradientsHaveAVersionThatOlderReleasesRefuse) {
  const std::string record = RecordOf(Reduced());
  EXPECT_EQ(record.substr(0, 4), std::string("\x02\0\0\0", 4));
  const auto plan = Read(record);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->spec.gradients, Gradients::kReduced);
  EXPECT_EQ(plan->epoch.contributors, (std::vector<ContributorSet>{{{0}, 1}}));
}

// Contributors that are left out are made again: as many as the record says.
TEST(JobRecordsTest, ARecordOfMoreGroupsThanAJobCanHaveIsDamagedAndCostsNoMemory) {
  JobPlan plan = DurablePlan();
  plan.epoch.contributors.clear();
  for (const uint32_t groups : {65537u, UINT32_MAX}) {
    plan.spec.group_count = groups;
    const auto read = Read(std::string("\x01\0\0\0", 4) + MakePlanCodec().encode(plan));
    EXPECT_EQ(ReasonOf(read.status()), Reason::kStateLost) << groups;
  }
  plan.spec.group_count = 1;
  EXPECT_TRUE(Read(std::string("\x01\0\0\0", 4) + MakePlanCodec().encode(plan)).ok());
}

TEST(JobRecordsTest, AVersionOfANewerReleaseIsRefusedByNumber) {
  std::string record = RecordOf(Reduced());
  record[0] = 3;
  const absl::Status status = Read(record).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("version 3"));
}

// The content of the log's own pages, without payload.
uint64_t SecretIn(MemoryDisk* disk, const std::string& files) {
  const auto bytes = ReadWholeFile(disk, files + "/log-000", size_t{64} << 20);
  const auto header = bytes.ok() ? DecodeSegmentPage(bytes->data()) : bytes.status();
  EXPECT_TRUE(header.ok()) << header.status();
  return header.ok() ? header->secret : 0;
}

TEST(JobStoreTest, EachLogHasASecretOfItsOwn) {
  DurableDisk disk;
  uint64_t drawn = 100;
  JobStore store(&disk, kJobsRoot, disk.meta(), 0, 2, MakePlanCodec(), [&] { return ++drawn; });
  ASSERT_TRUE(store.Load().ok());
  JobPlan plan = DurablePlan(77);
  ASSERT_TRUE(store.Create(plan).ok());
  ASSERT_TRUE(store.Create(DurablePlan(5)).ok());
  EXPECT_EQ(SecretIn(&disk, store.FilesOf(plan)), 101u);
  EXPECT_EQ(SecretIn(&disk, store.FilesOf(DurablePlan(5))), 102u);
  ASSERT_TRUE(store.Open(plan).ok());
  EXPECT_EQ(SecretIn(&disk, store.FilesOf(plan)), 101u) << "it keeps it";
  plan.layout_version = 2;
  ASSERT_TRUE(store.Grow(plan).ok());
  EXPECT_EQ(SecretIn(&disk, store.FilesOf(plan)), 104u) << "a log of its own";
}

}  // namespace
}  // namespace ballast::server
