// A server whose data directory comes back empty: it says which jobs it lacks, whichever of them it
// is, and all is well again when the right directory is back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/directory/durable_trainers.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::DurableDirectories;
using ::testing::HasSubstr;
using testing::State;
using testing::Trainers;

// The row of the job at server `id`; its state is empty where there is none.
JobStatus RowOf(DurableDirectories* cluster, uint32_t id) {
  Answer<std::vector<JobStatus>> jobs;
  cluster->At(id)->apis().jobs->Status(jobs.Setter());
  for (const JobStatus& job : jobs.Get()) {
    if (job.name == "job") return job;
  }
  return {};
}

void WaitForDamaged(DurableDirectories* cluster, uint32_t id, double jobs) {
  while (cluster->Metrics(id)->damaged_jobs()->value() != jobs)
    cluster->PassTime(id, std::chrono::milliseconds(10));
}

// Starts server `id` on an empty disk, and later on its own again.
void WithEmptyDisk(DurableDirectories* cluster, uint32_t id, const std::function<void()>& then) {
  cluster->Stop(id);
  cluster->Disk(id)->Unmount();
  cluster->Start(id);
  cluster->At(1 - id)->PeerLost(id, "another process answers");
  then();
  cluster->Stop(id);
  cluster->Disk(id)->Mount();
  cluster->Start(id);
  cluster->At(1 - id)->PeerLost(id, "another process answers");
}

TEST(RollCall, NamesTheJobsOfAnEmptyDirectoryAndForgetsThemWhenTheRightOneIsBack) {
  for (const bool rests : {false, true}) {
    for (const uint32_t id : {0u, 1u}) {
      SCOPED_TRACE(::testing::Message() << "server " << id << ", rests: " << rests);
      DurableDirectories cluster(2);
      Trainers job(&cluster, 0, "job");
      ASSERT_TRUE(job.Attach(100).ok());
      ASSERT_TRUE(job.RunRounds(3).ok());
      const State state = job.FetchState();
      if (rests) job.Leave();
      WithEmptyDisk(&cluster, id, [&] {
        WaitForDamaged(&cluster, id, 1);
        const JobStatus row = RowOf(&cluster, id);
        EXPECT_EQ(row.state, "damaged");
        EXPECT_THAT(row.error, HasSubstr("lacks the files of job \"job\""));
        EXPECT_EQ(cluster.Metrics(1 - id)->damaged_jobs()->value(), 0);
        const absl::Status why = cluster.At(id)->apis().lookup->WhyNot(job.plan().job, {});
        EXPECT_EQ(ReasonOf(why), Reason::kUnknownJob) << "trainers wait: " << why;
        EXPECT_THAT(std::string(why.message()), HasSubstr("start server"));
      });
      EXPECT_NE(RowOf(&cluster, id).state, "damaged");
      job.End();
      const absl::Status back = job.Attach(600);
      ASSERT_TRUE(back.ok()) << back;
      EXPECT_TRUE(job.FetchState() == state);
    }
  }
}

}  // namespace
}  // namespace ballast::server
