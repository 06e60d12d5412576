// The metric families of a state server; see metrics.h.
// Thread safety: maps under one mutex, values are atomics.
#include "common/metrics/metrics.h"

#include <utility>
#include <vector>

#include "common/metrics/declarations.h"
#include "common/metrics/process.h"

namespace ballast {
namespace {

constexpr size_t kMaxLabelValues = 64;

// Rounds take from about a millisecond (small models on loopback) to minutes (NVMe tier).
std::vector<double> RoundBoundsSeconds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
}

}  // namespace

void JobMetrics::MarkCommit() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  last_round_commit_timestamp_s.Set(std::chrono::duration<double>(now).count());
}

ServerMetrics::ServerMetrics(const BuildInfo& build) {
  DeclareMetrics(&registry_);
  AddProcessMetrics(&registry_);
  const auto one = std::make_shared<Gauge>();
  one->Set(1.0);
  registry_.Add("ballast_build_info",
                {{"version", build.version}, {"revision", build.revision}, {"isa", build.isa}},
                one);
  const std::array<const char*, 4> phases = {"collect", "vote", "step", "stream"};
  for (size_t i = 0; i < phases.size(); ++i) {
    round_durations_[i] = std::make_shared<Histogram>(RoundBoundsSeconds());
    registry_.Add("ballast_round_duration_seconds", {{"phase", phases[i]}}, round_durations_[i]);
  }
  const std::array<const char*, 2> tiers = {"dram", "nvme"};
  for (size_t i = 0; i < tiers.size(); ++i) {
    state_bytes_[i] = std::make_shared<Gauge>();
    registry_.Add("ballast_state_bytes", {{"tier", tiers[i]}}, state_bytes_[i]);
  }
  registry_.Add("ballast_push_duplicates_total", {}, push_duplicates_);
  registry_.Add("ballast_push_conflicts_total", {}, push_conflicts_);
}

std::shared_ptr<JobMetrics> ServerMetrics::Job(absl::string_view run) {
  MutexLock lock(&mu_);
  std::shared_ptr<JobMetrics>& job = jobs_[std::string(run)];
  if (job == nullptr) {
    job = std::make_shared<JobMetrics>();
    AddJobSeries(std::string(run), job);
  }
  return job;
}

void ServerMetrics::AddJobSeries(const std::string& run, const std::shared_ptr<JobMetrics>& job) {
  // Each series is a pointer into the job's struct that shares the struct's ownership.
  const auto counter = [&](const char* family, MetricLabels labels, const Counter* value) {
    registry_.Add(family, std::move(labels), std::shared_ptr<const Counter>(job, value));
  };
  const auto gauge = [&](const char* family, MetricLabels labels, const Gauge* value) {
    registry_.Add(family, std::move(labels), std::shared_ptr<const Gauge>(job, value));
  };
  const char* const rounds = "ballast_rounds_total";
  counter(rounds, {{"run", run}, {"result", "committed"}}, &job->rounds_committed);
  counter(rounds, {{"run", run}, {"result", "skipped_overflow"}}, &job->rounds_skipped_overflow);
  counter(rounds, {{"run", run}, {"result", "halted"}}, &job->rounds_halted);
  counter(rounds, {{"run", run}, {"result", "aborted"}}, &job->rounds_aborted);
  counter("ballast_push_bytes_total", {{"run", run}}, &job->push_bytes);
  counter("ballast_copied_bytes_total", {{"run", run}}, &job->copied_bytes);
  counter("ballast_pull_bytes_total", {{"run", run}}, &job->pull_bytes);
  gauge("ballast_last_round_commit_timestamp_seconds", {{"run", run}},
        &job->last_round_commit_timestamp_s);
  gauge("ballast_grad_norm", {{"run", run}}, &job->grad_norm);
  const char* const trainers = "ballast_trainers";
  gauge(trainers, {{"run", run}, {"state", "active"}}, &job->trainers_active);
  gauge(trainers, {{"run", run}, {"state", "unresponsive"}}, &job->trainers_unresponsive);
  gauge(trainers, {{"run", run}, {"state", "left"}}, &job->trainers_left);
}

void ServerMetrics::RemoveJob(absl::string_view run) {
  MutexLock lock(&mu_);
  if (jobs_.erase(std::string(run)) > 0) registry_.RemoveSeries("run", run);
}

Counter* ServerMetrics::frames_rejected(absl::string_view reason) {
  MutexLock lock(&mu_);
  return Resolve("ballast_frames_rejected_total", "reason", reason, &frames_rejected_);
}

Counter* ServerMetrics::checksum_errors(absl::string_view where) {
  MutexLock lock(&mu_);
  return Resolve("ballast_checksum_errors_total", "where", where, &checksum_errors_);
}

Counter* ServerMetrics::Resolve(absl::string_view family, absl::string_view label,
                                absl::string_view value, CountersByLabel* counters) {
  auto found = counters->find(std::string(value));
  if (found != counters->end()) return found->second.get();
  const std::string kept = counters->size() < kMaxLabelValues ? std::string(value) : "other";
  std::shared_ptr<Counter>& counter = (*counters)[kept];
  if (counter == nullptr) {
    counter = std::make_shared<Counter>();
    registry_.Add(family, {{std::string(label), kept}}, counter);
  }
  return counter.get();
}

}  // namespace ballast
