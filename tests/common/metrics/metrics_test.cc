// Tests of common/metrics/metrics.h and process.h.
#include "common/metrics/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "common/metrics/declarations.h"

namespace ballast {
namespace {

BuildInfo TestBuild() { return BuildInfo{"0.1.0", "abc", "scalar"}; }

// The sample with these labels, if a scrape would show it.
std::optional<MetricSample> Find(const ServerMetrics& metrics, const std::string& family,
                                 const MetricLabels& labels) {
  for (const MetricFamily& candidate : metrics.registry().Collect()) {
    if (candidate.name != family) continue;
    for (const MetricSample& sample : candidate.samples) {
      if (sample.labels == labels) return sample;
    }
  }
  return std::nullopt;
}

TEST(ServerMetricsTest, JobHandlesShowUpUnderTheRunLabel) {
  ServerMetrics metrics(TestBuild());
  const std::shared_ptr<JobMetrics> job = metrics.Job({.name = "gpt"});
  job->rounds_committed.Add();
  job->push_bytes.Add(1 << 20);
  job->grad_norm.Set(0.25);
  job->trainers_active.Set(2);
  EXPECT_EQ(Find(metrics, "ballast_rounds_total",
                 {{"tenant", "default"}, {"run", "gpt"}, {"result", "committed"}})
                ->value,
            1);
  EXPECT_EQ(Find(metrics, "ballast_rounds_total",
                 {{"tenant", "default"}, {"run", "gpt"}, {"result", "aborted"}})
                ->value,
            0);
  EXPECT_EQ(
      Find(metrics, "ballast_push_bytes_total", {{"tenant", "default"}, {"run", "gpt"}})->value,
      1048576);
  EXPECT_EQ(Find(metrics, "ballast_grad_norm", {{"tenant", "default"}, {"run", "gpt"}})->value,
            0.25);
  EXPECT_EQ(Find(metrics, "ballast_trainers",
                 {{"tenant", "default"}, {"run", "gpt"}, {"state", "active"}})
                ->value,
            2);
  EXPECT_EQ(metrics.Job({.name = "gpt"}), job);
}

TEST(ServerMetricsTest, CommitTimeIsUnixTime) {
  ServerMetrics metrics(TestBuild());
  const std::shared_ptr<JobMetrics> job = metrics.Job({.name = "gpt"});
  EXPECT_EQ(job->last_round_commit_timestamp_s.value(), 0.0);
  job->MarkCommit();
  EXPECT_GT(job->last_round_commit_timestamp_s.value(), 1.6e9);
}

TEST(ServerMetricsTest, AFreedJobLeavesNoSeriesAndItsHandleStaysUsable) {
  ServerMetrics metrics(TestBuild());
  const std::shared_ptr<JobMetrics> job = metrics.Job({.name = "gpt"});
  metrics.Job({.name = "other"});
  metrics.RemoveJob({.name = "gpt"});
  metrics.RemoveJob({.name = "never-seen"});
  job->rounds_committed.Add(5);
  for (const MetricFamily& family : metrics.registry().Collect()) {
    for (const MetricSample& sample : family.samples) {
      for (const auto& [name, value] : sample.labels) EXPECT_NE(value, "gpt") << family.name;
    }
  }
  EXPECT_TRUE(
      Find(metrics, "ballast_grad_norm", {{"tenant", "default"}, {"run", "other"}}).has_value());
  EXPECT_EQ(metrics.Job({.name = "gpt"})->rounds_committed.value(), 0u);
}

TEST(ServerMetricsTest, PhasesAreObservedInSeconds) {
  ServerMetrics metrics(TestBuild());
  metrics.ObserveRound(RoundPhase::kStep, std::chrono::milliseconds(250));
  const auto step = Find(metrics, "ballast_round_duration_seconds", {{"phase", "step"}});
  EXPECT_EQ(step->histogram.count, 1u);
  EXPECT_EQ(step->histogram.sum, 0.25);
  EXPECT_EQ(Find(metrics, "ballast_round_duration_seconds", {{"phase", "vote"}})->histogram.count,
            0u);
}

TEST(ServerMetricsTest, ServerWideValuesHaveTheirFamilies) {
  ServerMetrics metrics(TestBuild());
  metrics.state_bytes(StateTier::kDram)->Set(4096);
  metrics.push_duplicates()->Add(2);
  metrics.push_conflicts()->Add(3);
  metrics.checksum_errors("frame")->Add(4);
  EXPECT_EQ(Find(metrics, "ballast_state_bytes", {{"tier", "dram"}})->value, 4096);
  EXPECT_EQ(Find(metrics, "ballast_push_duplicates_total", {})->value, 2);
  EXPECT_EQ(Find(metrics, "ballast_push_conflicts_total", {})->value, 3);
  EXPECT_EQ(Find(metrics, "ballast_checksum_errors_total", {{"where", "frame"}})->value, 4);
  EXPECT_EQ(Find(metrics, "ballast_build_info",
                 {{"version", "0.1.0"}, {"revision", "abc"}, {"isa", "scalar"}})
                ->value,
            1);
}

TEST(ServerMetricsTest, EverySeriesHasTheLabelsOfItsDeclaration) {
  ServerMetrics metrics(TestBuild());
  metrics.Job({.name = "gpt"});
  metrics.frames_rejected("WRONG_EPOCH");
  metrics.checksum_errors("push");
  metrics.admissions_refused("NOT_HOME");
  metrics.calls_refused("role");
  std::map<std::string, std::string> declared;
  for (const MetricDeclaration& d : MetricDeclarations()) declared[d.name] = d.labels;
  for (const MetricFamily& family : metrics.registry().Collect()) {
    for (const MetricSample& sample : family.samples) {
      std::string labels;
      for (const auto& [name, value] : sample.labels) labels += (labels.empty() ? "" : ", ") + name;
      EXPECT_EQ(labels, declared.at(family.name)) << family.name;
    }
  }
}

TEST(ServerMetricsTest, RejectionReasonsAreBounded) {
  ServerMetrics metrics(TestBuild());
  Counter* const wrong_epoch = metrics.frames_rejected("WRONG_EPOCH");
  EXPECT_EQ(metrics.frames_rejected("WRONG_EPOCH"), wrong_epoch);
  for (int i = 0; i < 1000; ++i) metrics.frames_rejected("made-up-" + std::to_string(i))->Add();
  const Counter* const other = metrics.frames_rejected("yet another");
  EXPECT_EQ(other->value(), 1000u - 63u);
  EXPECT_EQ(Find(metrics, "ballast_frames_rejected_total", {{"reason", "other"}})->value, 937);
}

TEST(ServerMetricsTest, ReasonsOfOursAreLookedUpOnce) {
  ServerMetrics metrics(TestBuild());
  Counter* const duplicate = metrics.frames_rejected(Reason::kDuplicate);
  const uint64_t lookups = metrics.lookups();
  EXPECT_EQ(metrics.frames_rejected(Reason::kDuplicate), duplicate);
  EXPECT_EQ(metrics.lookups(), lookups);
  EXPECT_EQ(metrics.frames_rejected("DUPLICATE"), duplicate);
}

// Under the preset tsan: a counter that one thread makes is whole for the others.
TEST(ServerMetricsTest, ThreadsThatRefuseForOneReasonShareItsCounter) {
  constexpr int kThreads = 4;
  constexpr int kReasons = 64;
  ServerMetrics metrics(TestBuild());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&metrics] {
      for (int n = 0; n < kReasons; ++n) metrics.frames_rejected(static_cast<Reason>(n))->Add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  double counted = 0;
  for (const MetricFamily& family : metrics.registry().Collect()) {
    if (family.name != "ballast_frames_rejected_total") continue;
    for (const MetricSample& sample : family.samples) counted += sample.value;
  }
  EXPECT_EQ(counted, kThreads * kReasons);
}

TEST(ServerMetricsTest, AJobThatBeginsToRunHasItsNewestSnapshot) {
  ServerMetrics metrics(TestBuild());
  metrics.MarkSnapshot({.name = "gpt"}, 1000);
  metrics.MarkSnapshot({.name = "gpt"}, 3000);
  metrics.MarkSnapshot({.name = "gpt"}, 2000);
  EXPECT_EQ(metrics.Job({.name = "gpt"})->last_snapshot_timestamp_s.value(), 3000);
  EXPECT_EQ(metrics.Job({.name = "bert"})->last_snapshot_timestamp_s.value(), 0);
  metrics.RemoveJob({.name = "gpt"});
  EXPECT_EQ(metrics.Job({.name = "gpt"})->last_snapshot_timestamp_s.value(), 3000);
}

TEST(ServerMetricsTest, ASnapshotIsMarkedOnlyInAJobThatIsHere) {
  ServerMetrics metrics(TestBuild());
  metrics.MarkSnapshot({.name = "gpt"});
  EXPECT_FALSE(Find(metrics, "ballast_last_snapshot_timestamp_seconds",
                    {{"tenant", "default"}, {"run", "gpt"}})
                   .has_value());
  const auto job = metrics.Job({.name = "gpt"});
  metrics.MarkSnapshot({.name = "gpt"});
  EXPECT_GT(job->last_snapshot_timestamp_s.value(), 1.6e9);
}

TEST(ServerMetricsTest, ChecksumErrorsAreThereBeforeTheFirst) {
  const ServerMetrics metrics(TestBuild());
  for (const char* where : {"push", "log", "image"}) {
    EXPECT_EQ(Find(metrics, "ballast_checksum_errors_total", {{"where", where}})->value, 0);
  }
}

TEST(ServerMetricsTest, RecoveriesAddUp) {
  ServerMetrics metrics(TestBuild());
  metrics.AddRecovery(RecoveryPhase::kLoad, std::chrono::milliseconds(250));
  metrics.AddRecovery(RecoveryPhase::kLoad, std::chrono::milliseconds(500));
  EXPECT_EQ(Find(metrics, "ballast_recovery_duration_seconds", {{"phase", "load"}})->value, 0.75);
  EXPECT_EQ(Find(metrics, "ballast_recovery_duration_seconds", {{"phase", "open"}})->value, 0);
}

TEST(ProcessMetricsTest, ReadsThisProcess) {
  ServerMetrics metrics(TestBuild());
  EXPECT_GT(Find(metrics, "process_resident_memory_bytes", {})->value, 1e5);
  EXPECT_GT(Find(metrics, "process_virtual_memory_bytes", {})->value,
            Find(metrics, "process_resident_memory_bytes", {})->value);
  EXPECT_GT(Find(metrics, "process_cpu_seconds_total", {})->value, 0.0);
  EXPECT_GE(Find(metrics, "process_open_fds", {})->value, 3.0);
  EXPECT_GT(Find(metrics, "process_max_fds", {})->value, 3.0);
  EXPECT_GT(Find(metrics, "process_start_time_seconds", {})->value, 1.6e9);
}

}  // namespace
}  // namespace ballast
