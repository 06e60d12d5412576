// Variable worlds that grow under a quota: a server never grants the same room to the next epochs
// of two jobs, and a change of epoch gives unused room back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/server/directory/durable_jobs_fixture.h"

namespace ballast::server::testing {
namespace {

using ::testing::HasSubstr;

// Jobs of one tenant, two trainers each, on two servers with quotas.
class WorldQuotasTest : public DurableJobsTest {
 protected:
  // The jobs a and b, which use four seats at each server. The second server's limits are `theirs`.
  void MakeTwo(const QuotaTable& home, const QuotaTable& theirs) {
    cluster_ = std::make_unique<DurableDirectories>(
        2, DurableDirectories::Options{.quotas = {home, theirs}});
    for (const char* name : {"a", "b"}) {
      AttachAnswer zero = AskOf(name, 0, kFirst), one = AskOf(name, 1, kFirst + 1);
      ASSERT_TRUE(zero.Get().ok()) << zero.Get().status();
      ASSERT_TRUE(one.Get().ok()) << one.Get().status();
      jobs_[name] = zero.Get()->plan.job;
    }
    job_ = jobs_["a"];
  }
  static QuotaTable Seats(uint64_t limit) {
    QuotaTable table;
    table.others.seats = limit;
    return table;
  }
  static QuotaTable InFlight(uint64_t limit) {
    QuotaTable table;
    table.others.in_flight_bytes = limit;
    return table;
  }
  AttachAnswer AskOf(const std::string& name, uint32_t slot, uint64_t incarnation,
                     uint32_t world = 2) {
    AttachCall call = SeatCall(slot, incarnation);
    call.spec.name = name;
    call.spec.variable_world = true;
    call.spec.world = world;
    return Ask(call);
  }
  Amounts Used(uint32_t server) {
    Settle(server);
    return cluster_->QuotasOf(server)->UseOf(kDefaultTenant).used;
  }
  // Fails the test after a minute.
  void WaitForSeats(uint32_t server, uint64_t seats) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (Used(server).seats != seats && std::chrono::steady_clock::now() < end) {
    }
    EXPECT_EQ(Used(server).seats, seats) << "server " << server;
  }
  // Likewise, until server 1 has the second epoch of job a.
  void WaitForRecord() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (EpochOfA() < 2 && std::chrono::steady_clock::now() < end) Settle(1);
    EXPECT_EQ(EpochOfA(), 2u);
  }
  uint32_t EpochOfA() { return cluster_->Record(1, job_).epoch.epoch; }
  // A server gives back room that the next epoch does not use, after its answers.
  void ExpectSeats(uint64_t seats) {
    for (const uint32_t id : {0u, 1u}) {
      WaitForSeats(id, seats);
      EXPECT_EQ(Used(id).in_flight_bytes, seats * kCredit) << "server " << id;
    }
  }
  // Waits until the job is in its second epoch at both servers: a trainer that is refused is told
  // so before.
  void AwaitChange(const std::string& name) {
    for (const uint32_t id : {0u, 1u}) {
      while (cluster_->Record(id, jobs_[name]).epoch.epoch < 2) Settle(id);
    }
  }
  // Both jobs ask for a third trainer, and neither continues before both homes have sealed. Returns
  // the answers to the two trainers once both changes are over.
  std::map<std::string, absl::Status> GrowBoth() {
    cluster_->Keep("seal", 1);
    AttachAnswer a = AskOf("a", 2, 900, 3);
    cluster_->WaitForKept(1);
    AttachAnswer b = AskOf("b", 2, 900, 3);
    cluster_->WaitForKept(2);
    cluster_->KeepNoMore();
    for (int kept = 0; kept < 2; ++kept) cluster_->Release();
    const std::map<std::string, absl::Status> told = {{"a", a.Get().status()},
                                                      {"b", b.Get().status()}};
    for (const char* name : {"a", "b"}) AwaitChange(name);
    return told;
  }

  // As a home would ask server 1; fails the test when that does not seal.
  SealAnswer SealPeer(const std::string& name, uint32_t world) {
    Answer<absl::StatusOr<SealAnswer>> sealed;
    cluster_->At(1)->apis().shares->Seal({.job = jobs_[name], .epoch = 1, .world = world},
                                         sealed.Setter());
    EXPECT_TRUE(sealed.Get().ok()) << sealed.Get().status();
    return sealed.Get().value_or(SealAnswer());
  }

  std::map<std::string, uint64_t> jobs_;
};

TEST_F(WorldQuotasTest, OfTwoJobsThatGrowAtOnceIntoRoomForOneTheSecondIsRefused) {
  const struct {
    QuotaTable limits;
    const char* text;
  } cases[] = {{Seats(5), "uses 5 of 5 seats that it may use at server 0, and this takes 1 more"},
               {InFlight(5 * kCredit), "uses 20480 of 20480 bytes in flight"}};
  for (const auto& [limits, text] : cases) {
    ASSERT_NO_FATAL_FAILURE(MakeTwo(limits, {}));
    const auto told = GrowBoth();
    EXPECT_TRUE(told.at("a").ok()) << told.at("a");
    EXPECT_EQ(ReasonOf(told.at("b")), Reason::kOverQuota) << told.at("b");
    EXPECT_THAT(std::string(told.at("b").message()), HasSubstr(text));
    EXPECT_EQ(FieldsOf(told.at("b")).slot, 2);
    ExpectSeats(5);
  }
}

TEST_F(WorldQuotasTest, APeersQuotaIsKeptAndTheHomesUnusedGrantIsReleased) {
  ASSERT_NO_FATAL_FAILURE(MakeTwo({}, Seats(5)));
  const auto told = GrowBoth();
  // Each job has a strand of its own, so the peer may seal either of them first.
  EXPECT_NE(told.at("a").ok(), told.at("b").ok()) << told.at("a") << told.at("b");
  const absl::Status refused = told.at(told.at("a").ok() ? "b" : "a");
  EXPECT_EQ(ReasonOf(refused), Reason::kOverQuota) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("uses 5 of 5 seats"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at server 1"));
  EXPECT_EQ(FieldsOf(refused).server, 1);
  ExpectSeats(5);
}

TEST_F(WorldQuotasTest, MemoryThatIsGrantedToOneJobIsGrantedToNoOther) {
  ASSERT_NO_FATAL_FAILURE(MakeTwo({}, {}));
  const uint64_t four = Used(0).dram_bytes;
  ASSERT_TRUE(AskOf("a", 2, 900, 3).Get().ok());
  ExpectSeats(5);
  const uint64_t five = Used(0).dram_bytes;
  ASSERT_GT(five, four);
  QuotaTable limits;
  limits.others.dram_bytes = five;
  ASSERT_NO_FATAL_FAILURE(MakeTwo(limits, {}));
  const auto told = GrowBoth();
  EXPECT_TRUE(told.at("a").ok()) << told.at("a");
  EXPECT_EQ(ReasonOf(told.at("b")), Reason::kOverQuota) << told.at("b");
  EXPECT_THAT(std::string(told.at("b").message()),
              HasSubstr(absl::StrCat("uses ", five, " of ", five, " bytes of memory")));
  ExpectSeats(5);
  EXPECT_EQ(Used(0).dram_bytes, five);
}

TEST_F(WorldQuotasTest, AWorldGrowsIntoTheRoomOfItsTenantsJobsThatHaveEnded) {
  ASSERT_NO_FATAL_FAILURE(MakeTwo(Seats(4), Seats(4)));
  // A running job keeps its room.
  EXPECT_EQ(ReasonOf(AskOf("a", 2, 900, 3).Get().status()), Reason::kOverQuota);
  const uint64_t other = jobs_["b"];
  for (const uint32_t id : {0u, 1u}) {
    const auto engine = cluster_->Engine(id, other);
    engine->Fail(absl::AbortedError("the end"));
    Answer<JobStatus> ended;
    engine->Status(ended.Setter());
    EXPECT_EQ(ended.Get().state, "failed");
  }
  ExpectSeats(4);  // Freed at the directory after the end: the room stays its own until needed.
  const auto grown = AskOf("a", 2, 901, 3).Get();
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(grown->plan.epoch.world(), 3u);
  EXPECT_EQ(cluster_->Engine(0, other), nullptr);
  ExpectSeats(3);
}

// --- Changes that are given up ------------------------------------------------------------------

TEST_F(WorldQuotasTest, AChangeThatAPeerCannotFollowGivesBackWhatWasGranted) {
  ASSERT_NO_FATAL_FAILURE(MakeTwo(Seats(5), Seats(5)));
  const Amounts before = Used(0);
  cluster_->SetRule([](const std::string& call, uint32_t) {
    return call == "seal" ? absl::UnavailableError("away") : absl::OkStatus();
  });
  EXPECT_FALSE(AskOf("a", 2, 900, 3).Get().ok());
  ExpectSeats(4);  // With the next seal, which wants no more than there are.
  EXPECT_EQ(Used(0), before);
  cluster_->SetRule(nullptr);
  ASSERT_TRUE(AskOf("b", 2, 900, 3).Get().ok());
  AwaitChange("a");
  ExpectSeats(5);
}

TEST_F(WorldQuotasTest, AHomeThatIsKilledWithinAChangeLeavesNothingOfItAtAnyServer) {
  ASSERT_NO_FATAL_FAILURE(MakeTwo({}, Seats(5)));
  const Amounts before = Used(1);
  cluster_->Keep("seal", 1);
  AttachAnswer lost = AskOf("a", 2, 900, 3);
  cluster_->WaitForKept(1);
  EXPECT_EQ(Used(0).seats, 5u);
  // The peer seals, and its answer finds no home any more.
  EXPECT_EQ(SealPeer("a", 3).world_max, 3u);
  EXPECT_EQ(Used(1).seats, 5u);
  cluster_->KeepNoMore();
  cluster_->Restart(0);
  // A change once begun comes to its end.
  WaitForRecord();
  ExpectSeats(4);
  EXPECT_EQ(Used(1), before);
}

TEST_F(WorldQuotasTest, ARoomIsKeptForARecordThatTheKilledHomeHasWritten) {
  ASSERT_NO_FATAL_FAILURE(MakeTwo({}, Seats(5)));
  cluster_->Keep("adopt", 1);
  AttachAnswer lost = AskOf("a", 2, 900, 3);
  cluster_->WaitForKept(1);
  cluster_->KeepNoMore();
  cluster_->Stop(0);
  const SealAnswer other = SealPeer("b", 3);
  EXPECT_EQ(other.world_max, 2u);
  EXPECT_EQ(ReasonOf(other.refusal), Reason::kOverQuota);
  cluster_->Start(0);
  WaitForRecord();
  ExpectSeats(5);
}

TEST_F(WorldQuotasTest, AJobThatIsDeletedGivesBackWhatItsNextEpochWasGranted) {
  ASSERT_NO_FATAL_FAILURE(MakeTwo({}, Seats(5)));
  cluster_->Keep("seal", 1);
  AttachAnswer a = AskOf("a", 2, 900, 3);
  cluster_->WaitForKept(1);
  EXPECT_EQ(Used(0).seats, 5u);
  cluster_->KeepNoMore();
  ASSERT_TRUE(Delete("a", /*force=*/true).ok());
  cluster_->Release();
  EXPECT_FALSE(a.Get().ok());
  ExpectSeats(2);
}

TEST_F(WorldQuotasTest, AJobThatEndsGivesBackWhatItsNextEpochWasGranted) {
  ASSERT_NO_FATAL_FAILURE(MakeTwo({}, {}));
  const Amounts before = Used(1);
  EXPECT_EQ(SealPeer("a", 4).world_max, 4u);
  EXPECT_EQ(Used(1).seats, 6u);
  cluster_->Engine(1, job_)->Fail(absl::AbortedError("the end"));
  WaitForSeats(1, 4);
  EXPECT_EQ(Used(1), before);
}

TEST_F(WorldQuotasTest, ALayoutThatIsSentOnceMoreKeepsTheRoomOfTheRecord) {
  ASSERT_NO_FATAL_FAILURE(MakeTwo({}, {}));
  const JobPlan plan = cluster_->Record(1, job_);
  EXPECT_EQ(SealPeer("a", 3).world_max, 3u);
  Answer<absl::Status> again;
  cluster_->At(1)->apis().shares->ExtendJob(plan, again.Setter());
  EXPECT_TRUE(again.Get().ok()) << again.Get();
  EXPECT_EQ(Used(1).seats, 5u);
}

// --- Seals that repeat, and old homes ------------------------------------------------------------

TEST_F(WorldQuotasTest, TheSameSealAgainIsGrantedTheSameAlsoBelowALowerQuota) {
  ASSERT_NO_FATAL_FAILURE(MakeTwo({}, Seats(6)));
  const auto seal = [this](uint32_t world) { return SealPeer("a", world); };
  EXPECT_EQ(seal(0).world_max, 4u) << "an older home wants to know what there is";
  EXPECT_EQ(Used(1).seats, 4u);
  EXPECT_EQ(seal(3).world_max, 3u);
  EXPECT_TRUE(seal(3).refusal.ok());
  EXPECT_EQ(Used(1).seats, 5u);
  cluster_->QuotasOf(1)->SetLimits(Seats(3));
  EXPECT_EQ(seal(3).world_max, 3u);
  EXPECT_EQ(Used(1).seats, 5u);
  const SealAnswer more = seal(5);
  EXPECT_EQ(more.world_max, 3u);
  EXPECT_THAT(std::string(more.refusal.message()), HasSubstr("uses 5 of 3 seats"));
  EXPECT_THAT(std::string(more.refusal.message()), HasSubstr("takes 2 more"));
  EXPECT_EQ(seal(2).world_max, 2u);
  EXPECT_EQ(Used(1).seats, 4u);
}

TEST_F(WorldQuotasTest, ATrainerThatComesAfterTheSealWaitsForTheNextEpoch) {
  ASSERT_NO_FATAL_FAILURE(MakeTwo({}, {}));
  cluster_->Keep("seal", 1);
  AttachAnswer two = AskOf("a", 2, 900, 4);
  cluster_->WaitForKept(1);
  AttachAnswer three = AskOf("a", 3, 901, 4);
  SettleSeats();
  cluster_->KeepNoMore();
  cluster_->Release();
  ASSERT_TRUE(two.Get().ok()) << two.Get().status();
  EXPECT_EQ(two.Get()->plan.epoch.world(), 3u);
  ASSERT_TRUE(three.Get().ok()) << three.Get().status();
  EXPECT_EQ(three.Get()->plan.epoch.world(), 4u);
  ExpectSeats(6);
}

}  // namespace
}  // namespace ballast::server::testing
