// Durable jobs that grow: the grown plan is on every server's disk before a trainer hears of it,
// and a growth that cannot be is one that never was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/server/directory/durable_cluster.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::AttachAnswer;
using testing::DurableDirectories;
using ::testing::HasSubstr;
using testing::RecordingSink;
using testing::SeatCall;

using ExtendAnswer = Answer<absl::StatusOr<JobPlan>>;

class GrowthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    AttachAnswer zero, one;
    cluster_.At(0)->apis().trainers->Attach(SeatCall(0, 100), zero.Setter());
    cluster_.At(0)->apis().trainers->Attach(SeatCall(1, 101), one.Setter());
    const auto made = one.Get();
    ASSERT_TRUE(made.ok()) << made.status();
    job_ = made->plan.job;
    RunFirstRound(made->plan);
  }

  // Both trainers at every server: initial weights and gradients, each byte of which is 1.
  void RunFirstRound(const JobPlan& plan) {
    plan_ = plan;
    for (const uint32_t server : plan.servers) {
      for (const uint32_t slot : {0u, 1u}) sinks_.push_back(OpenStream(server, slot));
    }
    Send(plan, FrameKind::kInit, 0, 1);
    RunRound(1);
  }
  void RunRound(uint64_t round) {
    for (const uint32_t slot : {0u, 1u}) {
      for (const uint32_t server : plan_.servers) {
        cluster_.Engine(server, job_)->Begin(slot, testing::MakeBegin(round));
      }
      Send(plan_, FrameKind::kGradient, slot, round);
    }
    for (const auto& sink : sinks_) ASSERT_TRUE(sink->Wait(round).ok());
  }
  void Send(const JobPlan& plan, FrameKind kind, uint32_t slot, uint64_t round) {
    const Layout layout = *LayoutOfSpec(plan.spec);
    for (uint32_t e = 0; e < layout.extents().size(); ++e) {
      for (const ChunkRange& range : ChunkRanges(layout, e, testing::kChunk, {})) {
        const std::string bytes(range.length_bytes, '\1');
        FrameHeader header = testing::MakeFrame(plan, kind, slot, round, e, range);
        header.incarnation = 100 + slot;
        header.crc32c = Crc32c(bytes.data(), bytes.size(), IdentityCrc(header));
        cluster_.Engine(plan.owner[e], job_)->Frame(header, Payload::FromString(bytes));
      }
    }
  }
  std::shared_ptr<RecordingSink> OpenStream(uint32_t server, uint32_t slot) {
    return cluster_.OpenStream(server, job_, {.slot = slot, .incarnation = 100 + slot, .epoch = 1});
  }

  ExtendCall Growth(uint32_t slot, int64_t elements = 200, uint64_t round = 2) const {
    ExtendCall call;
    call.job = job_;
    call.epoch = 1;
    call.slot = slot;
    call.incarnation = 100 + slot;
    call.base_layout_version = 1;
    call.group_count = 2;
    call.tensors = {{"late", {elements}, DType::kF32, 1, {}}};
    call.tensor_crc32c = {3};
    call.round = round;
    return call;
  }
  ExtendAnswer Ask(const ExtendCall& call) {
    ExtendAnswer answer;
    cluster_.At(0)->apis().trainers->Extend(call, answer.Setter());
    return answer;
  }
  absl::StatusOr<JobPlan> GrowBoth(int64_t elements = 200, uint64_t round = 2) {
    ExtendAnswer zero = Ask(Growth(0, elements, round));
    const absl::StatusOr<JobPlan> one = Ask(Growth(1, elements, round)).Get();
    const absl::StatusOr<JobPlan> other = zero.Get();
    EXPECT_EQ(one.status(), other.status());
    return one;
  }
  Amounts Used(uint32_t id) {
    Answer<std::vector<JobStatus>> jobs;
    cluster_.At(id)->apis().jobs->Status(jobs.Setter());
    jobs.Get();
    return cluster_.QuotasOf(id)->UseOf(kDefaultTenant).used;
  }
  // The old files are freed after the answer to the growth.
  void ExpectDiskUsed(uint32_t id, uint64_t bytes) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (Used(id).disk_bytes != bytes && std::chrono::steady_clock::now() < end) {
    }
    EXPECT_EQ(Used(id).disk_bytes, bytes) << id;
  }
  // Server 1 has no disk for the growth that server 0 has made its files for.
  void GrowInVain() {
    cluster_.Disk(1)->SetCapacity(4096);
    EXPECT_EQ(ReasonOf(GrowBoth().status()), Reason::kOverBudget);
    cluster_.Disk(1)->SetCapacity(uint64_t{1} << 30);
    EXPECT_EQ(FilesNamed("/layout-2/slots"), 1u);
  }
  void ExpectLayout(uint32_t version, uint64_t late = 200) {
    for (const uint32_t id : {0u, 1u}) {
      EXPECT_EQ(cluster_.Record(id, job_).layout_version, version) << "server " << id;
      Answer<JobStatus> snapshot;
      cluster_.Engine(id, job_)->Status(snapshot.Setter());
      EXPECT_EQ(snapshot.Get().parameters, version == 1 ? 340u : 340u + late) << "server " << id;
    }
  }
  // Files of both servers' disks, without the manifests.
  size_t FilesNamed(const std::string& part) {
    size_t count = 0;
    for (const uint32_t id : {0u, 1u}) {
      for (const std::string& path : cluster_.Disk(id)->Paths()) {
        count += path.find(part) != std::string::npos;
      }
    }
    return count;
  }

  DurableDirectories cluster_{2};
  uint64_t job_ = 0;
  JobPlan plan_;                                       // before it grows
  std::vector<std::shared_ptr<RecordingSink>> sinks_;  // of its streams
};

TEST_F(GrowthTest, TheWindowGrowsToWhatTheJobHasRoomFor) {
  const uint32_t before = cluster_.Engine(1, job_)->window_extents();
  ASSERT_TRUE(GrowBoth(5000).ok());
  for (const uint32_t id : {0u, 1u}) {
    Answer<JobStatus> snapshot;
    cluster_.Engine(id, job_)->Status(snapshot.Setter());
    const uint32_t owned = snapshot.Get().owned_extents;
    ASSERT_GT(owned, before);
    EXPECT_EQ(cluster_.Engine(id, job_)->window_extents(), owned) << "server " << id;
  }
}

TEST_F(GrowthTest, IsOnEveryDiskWhenTheTrainersHearOfItAndThereAfterARestart) {
  const absl::StatusOr<JobPlan> plan = GrowBoth();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout_version, 2u);
  EXPECT_FALSE(plan->growing);
  ExpectLayout(2);
  EXPECT_EQ(FilesNamed("/layout-2/slots"), 2u);
  EXPECT_EQ(FilesNamed("/slots"), 2u) << "the old ones are gone";
  for (const uint32_t id : {0u, 1u}) cluster_.Restart(id);
  ExpectLayout(2);
}

TEST_F(GrowthTest, AskedForAgainIsAnsweredAsBefore) {
  ASSERT_TRUE(GrowBoth().ok());
  const absl::StatusOr<JobPlan> again = Ask(Growth(1)).Get();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->layout_version, 2u);
}

TEST_F(GrowthTest, IsRefusedBeforeARoundInWhichTensorsTakePartForTheFirstTime) {
  ExtendCall early = Growth(0);
  early.round = 1;
  EXPECT_EQ(ReasonOf(Ask(early).Get().status()), Reason::kUnsupported);
  ASSERT_TRUE(GrowBoth().ok());
  ExtendCall again = Growth(0);
  again.base_layout_version = 2;
  again.group_count = 3;
  again.tensors = {{"later", {5}, DType::kF32, 2, {}}};
  EXPECT_EQ(ReasonOf(Ask(again).Get().status()), Reason::kUnsupported);
  ExpectLayout(2);
}

TEST_F(GrowthTest, ADiskThatIsTooSmallAnywhereLeavesTheJobAsItWas) {
  cluster_.Disk(1)->SetCapacity(4096);
  const absl::StatusOr<JobPlan> refused = GrowBoth();
  EXPECT_EQ(ReasonOf(refused.status()), Reason::kOverBudget) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("bytes of disk"));
  ExpectLayout(1);
  cluster_.Disk(1)->SetCapacity(uint64_t{1} << 30);
  ASSERT_TRUE(GrowBoth().ok()) << "the job continues, and may grow when there is room";
  ExpectLayout(2);
}

TEST_F(GrowthTest,
       AGrowthAboveTheQuotaAtOneServerLeavesTheJobAsItWasAndALaterOneIsCountedToTheByte) {
  for (uint64_t Amounts::*resource : {&Amounts::disk_bytes, &Amounts::dram_bytes}) {
    const Amounts before = Used(1);
    QuotaTable table;
    table.others.*resource = before.*resource;
    cluster_.QuotasOf(1)->SetLimits(table);
    const absl::Status refused = GrowBoth(5000).status();
    EXPECT_EQ(ReasonOf(refused), Reason::kOverQuota) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("at server 1"));
    ExpectLayout(1);
    EXPECT_EQ(Used(1), before);
    cluster_.QuotasOf(1)->SetLimits({});
  }
  ASSERT_TRUE(GrowBoth(5000).ok());
  ExpectLayout(2, 5000);
  for (const bool restarted : {false, true}) {
    for (const uint32_t id : {0u, 1u}) {
      if (restarted) cluster_.Restart(id);
      const JobPlan plan = cluster_.Record(id, job_);
      const uint64_t disk = testing::MakeStore(cluster_.Disk(id), id)->DiskBytes(plan, id);
      ExpectDiskUsed(id, disk);
      EXPECT_EQ(Used(id).jobs, 1u);
      EXPECT_EQ(Used(id).seats, 2u);
      EXPECT_EQ(Used(id).dram_bytes, cluster_.At(id)->apis().jobs->Load().memory_used_bytes);
    }
  }
}

TEST_F(GrowthTest, AtItsQuotaATenantGrowsIntoTheMemoryOfItsJobsThatHaveEnded) {
  AttachAnswer other;
  AttachCall call = SeatCall(0, 100);
  call.spec.name = "other";
  call.spec.durability = Durability::kNone;
  call.spec.world = 1;
  cluster_.At(0)->apis().trainers->Attach(call, other.Setter());
  const auto made = other.Get();
  ASSERT_TRUE(made.ok()) << made.status();
  const auto engine = cluster_.Engine(1, made->plan.job);
  const Amounts both = Used(1);
  QuotaTable table;
  table.others.dram_bytes = both.dram_bytes + 1000;
  cluster_.QuotasOf(1)->SetLimits(table);
  // A running job keeps its room.
  EXPECT_EQ(ReasonOf(GrowBoth().status()), Reason::kOverQuota);
  EXPECT_EQ(Used(1), both);
  engine->Fail(absl::AbortedError("the end"));
  Answer<JobStatus> ended;
  engine->Status(ended.Setter());
  EXPECT_EQ(ended.Get().state, "failed");
  EXPECT_EQ(Used(1), both);  // Freed at the directory after the end.
  const auto grown = GrowBoth();
  EXPECT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(cluster_.Engine(1, made->plan.job), nullptr);
  EXPECT_EQ(Used(1).jobs, both.jobs - 1);
}

TEST_F(GrowthTest, FilesOfAnAttemptInVainAreNotThoseOfAnotherGrowth) {
  GrowInVain();
  ASSERT_TRUE(GrowBoth(5000).ok());
  for (const uint32_t id : {0u, 1u}) cluster_.Restart(id);
  ExpectLayout(2, 5000);
}

TEST_F(GrowthTest, FilesOfAnAttemptInVainAreNotThoseOfALaterRound) {
  GrowInVain();
  RunRound(2);
  ASSERT_TRUE(GrowBoth(200, /*round=*/3).ok());
  for (const uint32_t id : {0u, 1u}) cluster_.Restart(id);
  ExpectLayout(2);
}

TEST_F(GrowthTest, RoomThatWasMadeInVainIsClearedAwayAtTheNextStart) {
  cluster_.SetRule([](const std::string& call, uint32_t) {
    return call == "extend" ? absl::ResourceExhaustedError("no room") : absl::OkStatus();
  });
  EXPECT_FALSE(GrowBoth().ok());
  EXPECT_EQ(FilesNamed("/layout-2/slots"), 1u);
  cluster_.Restart(0);
  EXPECT_EQ(FilesNamed("/layout-2/"), 0u);
  ExpectLayout(1);
}

TEST_F(GrowthTest, AServerThatIsAwayAfterTheHomeHasGrownIsWaitedFor) {
  auto calls = std::make_shared<std::atomic<int>>(0);
  cluster_.SetRule([calls](const std::string& call, uint32_t) {
    // The first makes room; the next three do not come through.
    return call == "extend" && calls->fetch_add(1) >= 1 && calls->load() <= 4
               ? absl::UnavailableError("not now")
               : absl::OkStatus();
  });
  const absl::StatusOr<JobPlan> plan = GrowBoth();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GE(calls->load(), 5);
  ExpectLayout(2);
}

TEST_F(GrowthTest, AHomeThatGoesDownInBetweenSeesItThrough) {
  auto calls = std::make_shared<std::atomic<int>>(0);
  cluster_.SetRule([calls](const std::string& call, uint32_t) {
    return call == "extend" && calls->fetch_add(1) >= 1 ? absl::UnavailableError("not now")
                                                        : absl::OkStatus();
  });
  ExtendAnswer zero = Ask(Growth(0)), one = Ask(Growth(1));
  while (calls->load() < 2) std::this_thread::yield();
  EXPECT_EQ(cluster_.Record(0, job_).layout_version, 2u);
  EXPECT_EQ(cluster_.Record(1, job_).layout_version, 1u);
  EXPECT_FALSE(one.Has());
  cluster_.SetRule(nullptr);
  cluster_.Restart(1);  // It forgets the room it had made.
  cluster_.Restart(0);
  const absl::StatusOr<JobPlan> again = Ask(Growth(1)).Get();
  ASSERT_TRUE(again.ok()) << again.status();
  ExpectLayout(2);
}

TEST_F(GrowthTest, ALeftoverOfATrainerCannotGrowTheJobNorEndIt) {
  ExtendCall leftover = Growth(0);
  leftover.incarnation = 5;
  EXPECT_EQ(ReasonOf(Ask(leftover).Get().status()), Reason::kWrongIncarnation);
  ASSERT_TRUE(GrowBoth().ok());
}

}  // namespace
}  // namespace ballast::server
