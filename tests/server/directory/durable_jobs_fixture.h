// A durable job of two trainers on some servers, with the requests and checks of its tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/server/directory/durable_cluster.h"

namespace ballast::server::testing {

constexpr uint64_t kFirst = 100;  // + slot: the processes that made the job

class DurableJobsTest : public ::testing::Test {
 protected:
  // Two trainers make the job on `servers` servers.
  void Make(uint32_t servers, const DurableDirectories::Options& options = {}) {
    cluster_ = std::make_unique<DurableDirectories>(servers, options);
    const auto made = AttachWorld(kFirst);
    ASSERT_TRUE(made.ok()) << made.status();
    job_ = made->plan.job;
    EXPECT_EQ(made->plan.epoch.epoch, 1u);
    EXPECT_FALSE(made->resumed);
  }
  absl::StatusOr<AttachResult> AttachWorld(uint64_t first, Resume resume = Resume::kAuto) {
    AttachAnswer zero, one;
    cluster_->At(0)->apis().trainers->Attach(SeatCall(0, first, resume), zero.Setter());
    cluster_->At(0)->apis().trainers->Attach(SeatCall(1, first + 1, resume), one.Setter());
    const auto other = one.Get();
    return other.ok() ? zero.Get() : other;
  }
  AttachAnswer Ask(uint32_t slot, uint64_t incarnation, Resume resume = Resume::kAuto) {
    return Ask(SeatCall(slot, incarnation, resume));
  }
  AttachAnswer Ask(const AttachCall& call) {
    AttachAnswer answer;
    cluster_->At(0)->apis().trainers->Attach(call, answer.Setter());
    return answer;
  }
  // Everything the directory was given before has been taken in.
  void Settle(uint32_t server) {
    Answer<std::vector<JobStatus>> jobs;
    cluster_->At(server)->apis().jobs->Status(jobs.Setter());
    jobs.Get();
  }
  // As Settle, and those who asked for seats have been told of, or wait for, the streams.
  void SettleSeats() {
    Settle(0);
    Answer<JobStatus> snapshot;
    cluster_->Engine(0, job_)->Status(snapshot.Setter());
    snapshot.Get();
    Settle(0);
  }
  std::shared_ptr<RecordingSink> OpenStream(uint32_t server, uint32_t slot, uint64_t incarnation,
                                            uint32_t epoch = 1) {
    return cluster_->OpenStream(server, job_,
                                {.slot = slot, .incarnation = incarnation, .epoch = epoch});
  }
  // Both trainers leave every server, and the job's end is known.
  void Finish(uint32_t servers) {
    for (uint32_t id = 0; id < servers; ++id) {
      const std::shared_ptr<RoundEngine> engine = cluster_->Engine(id, job_);
      for (const uint32_t slot : {0u, 1u}) {
        OpenStream(id, slot, kFirst + slot);
        engine->trainers().Leave(slot, kFirst + slot);
      }
      Answer<JobStatus> snapshot;
      engine->Status(snapshot.Setter());
      EXPECT_EQ(snapshot.Get().state, "finished");
      Settle(id);
      EXPECT_TRUE(cluster_->Record(id, job_).resting);
    }
  }
  absl::StatusOr<DurableJobs> List(uint32_t server) {
    Answer<absl::StatusOr<DurableJobs>> jobs;
    cluster_->At(server)->apis().jobs->ListJobs(jobs.Setter());
    return jobs.Get();
  }
  absl::Status Delete(const std::string& name, bool force = false) {
    Answer<absl::Status> deleted;
    cluster_->At(0)->apis().jobs->DeleteJob({{.name = name}, force}, deleted.Setter());
    return deleted.Get();
  }
  absl::StatusOr<SealAnswer> Seal(uint32_t server, uint32_t epoch) {
    Answer<absl::StatusOr<SealAnswer>> sealed;
    cluster_->At(server)->apis().shares->Seal({.job = job_, .epoch = epoch}, sealed.Setter());
    return sealed.Get();
  }
  void ExpectEpochEverywhere(uint32_t servers, const EpochRecord& epoch) {
    for (uint32_t id = 0; id < servers; ++id) {
      const JobPlan plan = cluster_->Record(id, job_);
      EXPECT_EQ(plan.epoch.epoch, epoch.epoch) << "server " << id;
      EXPECT_EQ(plan.epoch.start_round, epoch.start_round) << "server " << id;
      EXPECT_EQ(plan.sealed_epoch, 0u) << "server " << id;
      ASSERT_EQ(plan.epoch.members.size(), epoch.members.size());
      for (size_t slot = 0; slot < epoch.members.size(); ++slot) {
        EXPECT_EQ(plan.epoch.members[slot].incarnation, epoch.members[slot].incarnation);
      }
    }
  }

  std::unique_ptr<DurableDirectories> cluster_;
  uint64_t job_ = 0;
};

}  // namespace ballast::server::testing
