// Jobs of tenants: a stranger takes no seat, learns nothing of a job, deletes none, opens no
// stream, and leaves room for others.
#include "common/security/caller.h"
#include "gmock/gmock.h"
#include "server/round/no_job.h"
#include "tests/server/directory/durable_jobs_fixture.h"

namespace ballast::server::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Caller As(const std::string& path) {
  return {.secured = true, .identity = *ParseIdentity("spiffe://d/" + path, "d")};
}

const Caller& Owner() {
  static const auto& caller = *new Caller(As("tenant/a/trainer"));
  return caller;
}
const Caller& Stranger() {
  static const auto& caller = *new Caller(As("tenant/b/trainer"));
  return caller;
}

class TenantsTest : public DurableJobsTest {
 protected:
  static AttachCall CallOf(const Caller& caller, uint32_t slot, uint64_t incarnation,
                           Resume resume = Resume::kAuto) {
    AttachCall call = SeatCall(slot, incarnation, resume);
    call.caller = caller;
    return call;
  }
  // Two trainers of tenant a make the job.
  void MakeOwned(uint32_t servers, const Caller& zero = Owner(), const Caller& one = Owner()) {
    cluster_ = std::make_unique<DurableDirectories>(servers);
    AttachAnswer first = Ask(CallOf(zero, 0, kFirst));
    AttachAnswer second = Ask(CallOf(one, 1, kFirst + 1));
    ASSERT_TRUE(first.Get().ok()) << first.Get().status();
    ASSERT_TRUE(second.Get().ok());
    job_ = first.Get()->plan.job;
  }
  absl::Status Hello(uint32_t server, const Caller& caller, uint32_t slot) {
    Answer<absl::StatusOr<SlotWelcome>> welcome;
    cluster_->Engine(server, job_)
        ->trainers()
        .AttachSlot({.slot = slot, .incarnation = kFirst + slot, .epoch = 1, .caller = caller},
                    std::make_shared<RecordingSink>(16), welcome.Setter());
    return welcome.Get().status();
  }
  absl::Status DeleteAs(const Caller& caller, const std::string& name) {
    Answer<absl::Status> deleted;
    cluster_->At(0)->apis().jobs->DeleteJob({caller.Own(name), true}, deleted.Setter());
    return deleted.Get();
  }
};

TEST_F(TenantsTest, AJobBelongsToTheTenantThatMadeItAtEveryServerAndOnDisk) {
  MakeOwned(2);
  for (const uint32_t server : {0u, 1u}) {
    const JobPlan plan = cluster_->Record(server, job_);
    EXPECT_EQ(plan.tenant, "a");
    EXPECT_EQ(plan.epoch.members[1].identity, "spiffe://d/tenant/a/trainer");
  }
  EXPECT_EQ(List(0)->at(0).tenant, "a");
}

TEST_F(TenantsTest, AnotherTenantsTrainerUnderThatNameTakesNoSilentSeat) {
  MakeOwned(2);
  AttachAnswer strange = Ask(CallOf(Stranger(), 0, 900));
  Settle(0);
  EXPECT_FALSE(strange.Has());  // It waits for the other trainer of a job of its own.
  EXPECT_EQ(cluster_->Record(0, job_).epoch.epoch, 1u);
  // A process of the tenant takes it, and is in the record with its identity.
  const auto taken = Ask(CallOf(As("tenant/a/trainer/x"), 0, 901)).Get();
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->plan.epoch.epoch, 2u);
  EXPECT_EQ(taken->plan.epoch.members[0].identity, "spiffe://d/tenant/a/trainer/x");
  EXPECT_EQ(taken->plan.epoch.members[1].identity, "spiffe://d/tenant/a/trainer");
}

TEST_F(TenantsTest, TwoTenantsHaveAJobOfOneNameAlsoAfterARestart) {
  MakeOwned(2);
  const std::string name = SeatCall(0, 1, Resume::kAuto).spec.name;
  // The same processes, as far as their numbers go.
  AttachAnswer first = Ask(CallOf(Stranger(), 0, kFirst));
  AttachAnswer second = Ask(CallOf(Stranger(), 1, kFirst + 1));
  ASSERT_TRUE(first.Get().ok()) << first.Get().status();
  ASSERT_TRUE(second.Get().ok());
  const uint64_t theirs = first.Get()->plan.job;
  EXPECT_NE(theirs, job_);
  cluster_->Restart(0);
  cluster_->Restart(1);
  const absl::StatusOr<DurableJobs> jobs = List(0);
  ASSERT_EQ(jobs->size(), 2u);
  EXPECT_EQ(jobs->at(0).tenant, "a");
  EXPECT_EQ(jobs->at(0).job, job_);
  EXPECT_EQ(jobs->at(1).tenant, "b");
  EXPECT_EQ(jobs->at(1).job, theirs);
  EXPECT_EQ(jobs->at(1).name, jobs->at(0).name);
  ASSERT_TRUE(DeleteAs(Stranger(), name).ok());
  ASSERT_EQ(List(0)->size(), 1u);
  EXPECT_EQ(List(0)->at(0).job, job_);
}

TEST_F(TenantsTest, AStrangerLearnsNothingOfTheManifest) {
  MakeOwned(1);
  AttachCall guess = CallOf(Stranger(), 0, 900);
  guess.spec.tensors[0].name = "a guess";
  AttachAnswer wrong = Ask(guess);
  Settle(0);
  EXPECT_FALSE(wrong.Has());
  // Its tenant does learn it.
  guess.caller = Owner();
  EXPECT_EQ(ReasonOf(Ask(guess).Get().status()), Reason::kSpecMismatch);
}

TEST_F(TenantsTest, AForeignJobIsResumedAsOneThatIsNotThere) {
  MakeOwned(1);
  AttachCall foreign = CallOf(Stranger(), 0, 900, Resume::kMust);
  const absl::Status there = Ask(foreign).Get().status();
  ASSERT_TRUE(DeleteAs(Owner(), foreign.spec.name).ok());
  EXPECT_EQ(there, Ask(foreign).Get().status());
  EXPECT_EQ(ReasonOf(there), Reason::kUnknownJob);
}

TEST_F(TenantsTest, AStreamComesFromTheTenantAndTheIdentityOfItsSeat) {
  MakeOwned(2, As("tenant/a/trainer/zero"), Owner());
  for (const uint32_t server : {0u, 1u}) {
    EXPECT_EQ(Hello(server, Stranger(), 1), NoJobHere(job_));
    EXPECT_EQ(ReasonOf(Hello(server, Owner(), 0)), Reason::kWrongIncarnation);
    EXPECT_EQ(ReasonOf(Hello(server, As("tenant/a/trainer/one"), 0)), Reason::kWrongIncarnation);
    EXPECT_TRUE(Hello(server, As("tenant/a/trainer/zero"), 0).ok());
    EXPECT_TRUE(Hello(server, Owner(), 1).ok());
  }
}

TEST_F(TenantsTest, ASeatsIncarnationAloneGivesNoAnswer) {
  MakeOwned(1, As("tenant/a/trainer/zero"), Owner());
  EXPECT_EQ(ReasonOf(Ask(CallOf(Owner(), 0, kFirst)).Get().status()), Reason::kSlotTaken);
  EXPECT_TRUE(Ask(CallOf(As("tenant/a/trainer/zero"), 0, kFirst)).Get().ok());
}

TEST_F(TenantsTest, AForeignJobIsDeletedAsOneThatIsNotThere) {
  MakeOwned(1);
  const std::string name = SeatCall(0, 1, Resume::kAuto).spec.name;
  const absl::Status foreign = DeleteAs(As("tenant/b/operator"), name);
  EXPECT_EQ(List(0)->size(), 1u);
  EXPECT_EQ(cluster_->Metrics(0)->jobs_under_way()->value(), 1);
  EXPECT_TRUE(DeleteAs(As("tenant/a/operator"), name).ok());
  EXPECT_EQ(cluster_->Metrics(0)->jobs_under_way()->value(), 0);
  EXPECT_EQ(foreign, DeleteAs(As("tenant/b/operator"), name));
  EXPECT_EQ(ReasonOf(foreign), Reason::kUnknownJob);
}

TEST_F(TenantsTest, ATenantWhoseTrainersDoNotComeLeavesRoomForOthers) {
  cluster_ = std::make_unique<DurableDirectories>(1);
  const size_t most = DirectoryConfig().jobs_max / 4;
  std::vector<AttachAnswer> pending;
  for (size_t i = 0; i < most; ++i) {
    AttachCall call = CallOf(Owner(), 0, kFirst);
    call.spec.name = "squat" + std::to_string(i);
    pending.push_back(Ask(call));
  }
  Settle(0);
  for (AttachAnswer& answer : pending) EXPECT_FALSE(answer.Has());
  EXPECT_EQ(cluster_->Metrics(0)->jobs_under_way()->value(), most);
  const absl::Status status = Ask(CallOf(Owner(), 0, kFirst)).Get().status();
  EXPECT_EQ(ReasonOf(status), Reason::kOverBudget);
  EXPECT_THAT(std::string(status.message()), HasSubstr("16 jobs of tenant a"));
  AttachAnswer first = Ask(CallOf(Stranger(), 0, kFirst));
  AttachAnswer second = Ask(CallOf(Stranger(), 1, kFirst + 1));
  EXPECT_TRUE(first.Get().ok()) << first.Get().status();
  EXPECT_TRUE(second.Get().ok());
}

TEST_F(TenantsTest, ATenantWithoutANumberOfJobsGetsHalfOfThemAndAnotherTheRest) {
  cluster_ = std::make_unique<DurableDirectories>(1);
  const size_t half = DirectoryConfig().jobs_max / 2;
  const auto begin = [&](const Caller& caller, size_t number) {
    AttachCall zero = CallOf(caller, 0, kFirst), one = CallOf(caller, 1, kFirst + 1);
    for (AttachCall* const call : {&zero, &one}) {
      call->spec.name = "job" + std::to_string(number);
      call->spec.durability = Durability::kNone;
    }
    AttachAnswer first = Ask(zero), second = Ask(one);
    return second.Get().status();
  };
  for (size_t i = 0; i < half; ++i) ASSERT_TRUE(begin(Owner(), i).ok());
  const absl::Status refused = begin(Owner(), half);
  EXPECT_EQ(ReasonOf(refused), Reason::kOverBudget);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("tenant a has 32 jobs under way, half"));
  EXPECT_TRUE(begin(Stranger(), 0).ok());
  // A number in the quota file is the operator's word that it may have more.
  QuotaTable table;
  table.others = NoLimits();
  table.tenants["a"] = NoLimits();
  table.tenants["a"].jobs = half + 1;
  cluster_->QuotasOf(0)->SetLimits(table);
  EXPECT_TRUE(begin(Owner(), half).ok());
}

}  // namespace
}  // namespace ballast::server::testing
