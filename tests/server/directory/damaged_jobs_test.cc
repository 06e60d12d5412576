// Durable jobs whose files one server lacks or cannot read: that job is damaged there, says so to
// everybody who asks, and comes back with its files. All other jobs of the server run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "common/text/names.h"
#include "tests/server/directory/durable_trainers.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::DurableDirectories;
using testing::DurableDisk;
using ::testing::HasSubstr;
using testing::State;
using testing::Trainers;

using Undo = std::function<void()>;
// Does something to the job's files in `directory`, and says how it is put right.
using Harm = std::function<Undo(DurableDisk* disk, const std::string& directory)>;

Undo MoveAside(DurableDisk* disk, const std::string& path) {
  EXPECT_TRUE(disk->Rename(path, "/aside").ok()) << path;
  return [disk, path] { EXPECT_TRUE(disk->Rename("/aside", path).ok()); };
}

// Turns a bit around in some bytes of the file.
Undo Flip(DurableDisk* disk, const std::string& path, std::vector<uint64_t> offsets) {
  const auto flip = [disk, path, offsets] {
    for (const uint64_t at : offsets) EXPECT_TRUE(disk->FlipBit(path, at, 3).ok()) << path;
  };
  flip();
  return flip;
}

std::vector<uint64_t> EachOf(uint64_t begin, uint64_t end, uint64_t step) {
  std::vector<uint64_t> offsets;
  for (uint64_t at = begin; at < end; at += step) offsets.push_back(at);
  return offsets;
}

std::vector<std::pair<std::string, Harm>> Harms() {
  return {
      {"directory missing",
       [](DurableDisk* disk, const std::string& directory) { return MoveAside(disk, directory); }},
      {"images missing",
       [](DurableDisk* disk, const std::string& directory) {
         return MoveAside(disk, directory + "/slots");
       }},
      {"log missing",
       [](DurableDisk* disk, const std::string& directory) {
         return MoveAside(disk, directory + "/log-000");
       }},
      {"bad header of the log",
       [](DurableDisk* disk, const std::string& directory) {
         return Flip(disk, directory + "/log-000", EachOf(0, 64, 1));
       }},
      {"bad header of the images",
       [](DurableDisk* disk, const std::string& directory) {
         return Flip(disk, directory + "/slots", EachOf(0, 64, 1));
       }},
      {"damage in the middle of the log",
       [](DurableDisk* disk, const std::string& directory) {
         return Flip(disk, directory + "/log-000", {3 * 4096 + 20});
       }},
      {"files that may not be read",
       [](DurableDisk* disk, const std::string& directory) -> Undo {
         disk->FailNext(MemoryDisk::Operation::kOpen, directory + "/slots", EACCES);
         return [] {};
       }},
  };
}

std::string DirectoryOf(const Trainers& job) {
  return testing::JobDirectoryOf(JobIdText(job.plan().job));
}

absl::StatusOr<bool> Retry(DurableDirectories* cluster, uint32_t id, const std::string& name) {
  Answer<absl::StatusOr<bool>> answer;
  cluster->At(id)->apis().jobs->RetryJob({.name = name}, answer.Setter());
  return answer.Get();
}

std::string StateAt(DurableDirectories* cluster, uint32_t id, const std::string& name,
                    std::string* error) {
  Answer<std::vector<JobStatus>> jobs;
  cluster->At(id)->apis().jobs->Status(jobs.Setter());
  for (const JobStatus& job : jobs.Get()) {
    if (job.name != name) continue;
    *error = job.error;
    return job.state;
  }
  return "none";
}

void ExpectStateLost(const absl::Status& status, const std::string& place,
                     const std::string& what) {
  EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << what << ": " << status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << what;
  EXPECT_THAT(std::string(status.message()), HasSubstr(place)) << what;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ballastctl jobs retry job")) << what;
}

// The job is damaged at server `id`, and there alone; its trainers hear that at once.
void ExpectDamaged(DurableDirectories* cluster, uint32_t id, const Trainers& job,
                   const std::string& what) {
  EXPECT_EQ(cluster->Metrics(id)->damaged_jobs()->value(), 1) << what;
  EXPECT_EQ(cluster->Metrics(1 - id)->damaged_jobs()->value(), 0) << what;
  std::string error;
  EXPECT_EQ(StateAt(cluster, id, "job", &error), "damaged") << what;
  EXPECT_THAT(error, HasSubstr(DirectoryOf(job))) << what;
  ExpectStateLost(cluster->At(id)->apis().lookup->WhyNot(job.plan().job, {}), DirectoryOf(job),
                  what);
  Caller stranger{.secured = true};
  stranger.identity.tenant = "stranger";
  EXPECT_EQ(ReasonOf(cluster->At(id)->apis().lookup->WhyNot(job.plan().job, stranger)),
            Reason::kUnknownJob);
  ExpectStateLost(Trainers(cluster, 0, "job").Attach(500), DirectoryOf(job), what);
}

TEST(DamagedJobs, AreOpenedWhenTheirFilesAreBackAndNoOtherJobWaitsForThat) {
  for (const auto& [what, harm] : Harms()) {
    for (const uint32_t id : {0u, 1u}) {
      DurableDirectories cluster(2);
      Trainers job(&cluster, 0, "job"), other(&cluster, 0, "other");
      ASSERT_TRUE(job.Attach(100).ok());
      ASSERT_TRUE(job.RunRounds(3).ok());
      const State state = job.FetchState();
      ASSERT_TRUE(other.Attach(100).ok());
      cluster.Stop(id);
      const Undo undo = harm(cluster.Disk(id), DirectoryOf(job));
      cluster.Start(id);
      job.End();  // They have heard of it on their streams.
      ExpectDamaged(&cluster, id, job, what);
      EXPECT_TRUE(other.Attach(200).ok()) << what;
      undo();
      const auto opened = Retry(&cluster, id, "job");
      ASSERT_TRUE(opened.ok()) << what << " at " << id << ": " << opened.status();
      EXPECT_TRUE(*opened);
      EXPECT_EQ(*Retry(&cluster, id, "job"), false) << "nothing is wrong any more";
      EXPECT_EQ(cluster.Metrics(id)->damaged_jobs()->value(), 0) << what;
      const absl::Status back = job.Attach(600);
      ASSERT_TRUE(back.ok()) << what << " at " << id << ": " << back;
      EXPECT_TRUE(job.FetchState() == state) << what << " at " << id;
    }
  }
}

TEST(DamagedJobs, StayDamagedUntilTheirFilesAreBack) {
  DurableDirectories cluster(2);
  Trainers job(&cluster, 0, "job");
  ASSERT_TRUE(job.Attach(100).ok());
  cluster.Stop(0);
  MoveAside(cluster.Disk(0), DirectoryOf(job) + "/slots");
  cluster.Start(0);
  ExpectStateLost(Retry(&cluster, 0, "job").status(), DirectoryOf(job), "");
  ExpectDamaged(&cluster, 0, job, "");
  EXPECT_EQ(ReasonOf(Retry(&cluster, 0, "another").status()), Reason::kUnknownJob);
  Answer<absl::StatusOr<DurableJobs>> jobs;
  cluster.At(0)->apis().jobs->ListJobs(jobs.Setter());
  ASSERT_EQ(jobs.Get()->size(), 1u);
  EXPECT_EQ(jobs.Get()->front().state, "damaged");
}

TEST(DamagedJobs, AreDeleted) {
  for (const uint32_t id : {0u, 1u}) {
    for (const auto& [what, harm] : Harms()) {
      DurableDirectories cluster(2);
      Trainers job(&cluster, 0, "job"), other(&cluster, 0, "other");
      ASSERT_TRUE(job.Attach(100).ok() && other.Attach(100).ok());
      cluster.Stop(id);
      harm(cluster.Disk(id), DirectoryOf(job));
      cluster.Start(id);
      Answer<absl::Status> deleted;
      cluster.At(0)->apis().jobs->DeleteJob({{.name = "job"}, true}, deleted.Setter());
      ASSERT_TRUE(deleted.Get().ok()) << what << ": " << deleted.Get();
      EXPECT_EQ(cluster.Metrics(id)->damaged_jobs()->value(), 0) << what;
      EXPECT_EQ(cluster.Disk(id)->List(testing::kJobsRoot)->size(), 1u) << what;
      const uint64_t number = job.plan().job;
      EXPECT_TRUE(job.Attach(200).ok()) << what << ": the name is free";
      EXPECT_NE(job.plan().job, number);
    }
  }
}

TEST(DamagedJobs, LeaveTheirSnapshotsToBeRestored) {
  DurableDirectories cluster(1, {.snapshots = true});
  Trainers job(&cluster, 0, "job");
  ASSERT_TRUE(job.Attach(100).ok() && job.RunRounds(2).ok());
  const State state = job.FetchState();
  Answer<absl::StatusOr<SnapshotInfo>> taken, refused;
  cluster.At(0)->apis().snapshots->CreateSnapshot({{.name = "job"}, "s"}, taken.Setter());
  ASSERT_TRUE(taken.Get().ok()) << taken.Get().status();
  // Its thread for snapshots may still hold it, and must not be the one that ends it.
  const std::shared_ptr<JobDirectory> before = cluster.At(0);
  cluster.Stop(0);
  MoveAside(cluster.Disk(0), DirectoryOf(job));
  cluster.Start(0);
  const JobApis apis = cluster.At(0)->apis();
  apis.snapshots->CreateSnapshot({{.name = "job"}, "t"}, refused.Setter());
  ExpectStateLost(refused.Get().status(), DirectoryOf(job), "");
  const auto restore = [&apis](const std::string& as) {
    Answer<absl::StatusOr<RestoredJob>> restored;
    apis.restores->RestoreSnapshot({.job = "job", .snapshot = "s", .as = as}, restored.Setter());
    return restored.Get().status();
  };
  EXPECT_EQ(ReasonOf(restore("job")), Reason::kNameInUse);
  ASSERT_TRUE(restore("again").ok()) << restore("again");
  Trainers again(&cluster, 0, "again");
  ASSERT_TRUE(again.Attach(200).ok());
  EXPECT_TRUE(again.FetchState() == state);
}

// Its files are read when it is woken. Each attach reads them again.
TEST(DamagedJobs, ThatRestAreWokenWhenTheirFilesAreBack) {
  for (const bool missing : {false, true}) {
    DurableDirectories cluster(2);
    Trainers job(&cluster, 0, "job");
    ASSERT_TRUE(job.Attach(100).ok());
    job.Leave();
    for (const uint32_t id : {0u, 1u}) cluster.Restart(id);
    cluster.Stop(1);
    const Undo undo = MoveAside(cluster.Disk(1), DirectoryOf(job));
    if (!missing) {
      EXPECT_TRUE(cluster.Disk(1)->MakeDirectory(DirectoryOf(job)).ok());
    }
    cluster.Start(1);
    EXPECT_EQ(cluster.Metrics(1)->damaged_jobs()->value(), missing)
        << "a missing directory is seen at the start";
    ExpectStateLost(Trainers(&cluster, 0, "job").Attach(400), DirectoryOf(job), "");
    ExpectDamaged(&cluster, 1, job, "");
    if (!missing) {
      EXPECT_TRUE(cluster.Disk(1)->RemoveAll(DirectoryOf(job)).ok());
    }
    undo();
    const absl::Status back = job.Attach(200);
    EXPECT_TRUE(back.ok()) << back;
    EXPECT_EQ(cluster.Metrics(1)->damaged_jobs()->value(), 0);
  }
}

}  // namespace
}  // namespace ballast::server
