// The metric families of a state server; see metrics.h.
// Thread safety: maps under one mutex, values are atomics.
#include "common/metrics/metrics.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/metrics/declarations.h"
#include "common/metrics/process.h"

namespace ballast {
namespace {

constexpr size_t kMaxLabelValues = 64;

// Rounds take from about a millisecond (small models on loopback) to minutes (NVMe tier).
std::vector<double> RoundBoundsSeconds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600};
}

// A disk with a power-safe cache flushes in 50 microseconds, a full one in seconds.
std::vector<double> DiskBoundsSeconds() {
  return {0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
          0.05,    0.1,    0.25,    0.5,    1,     2.5,    5,     10};
}

double UnixSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

void JobMetrics::MarkCommit() { last_round_commit_timestamp_s.Set(UnixSeconds()); }

template <typename Value, typename... Arguments>
std::shared_ptr<Value> ServerMetrics::Make(absl::string_view family, MetricLabels labels,
                                           Arguments&&... arguments) {
  auto value = std::make_shared<Value>(std::forward<Arguments>(arguments)...);
  registry_.Add(family, std::move(labels), std::shared_ptr<const Value>(value));
  return value;
}

ServerMetrics::ServerMetrics(const BuildInfo& build) {
  DeclareMetrics(&registry_);
  AddProcessMetrics(&registry_);
  Make<Gauge>("ballast_build_info",
              {{"version", build.version}, {"revision", build.revision}, {"isa", build.isa}})
      ->Set(1.0);
  const std::array<const char*, 4> phases = {"collect", "vote", "step", "stream"};
  for (size_t i = 0; i < phases.size(); ++i) {
    round_durations_[i] = Make<Histogram>("ballast_round_duration_seconds", {{"phase", phases[i]}},
                                          RoundBoundsSeconds());
  }
  const std::array<const char*, 2> tiers = {"dram", "nvme"};
  for (size_t i = 0; i < tiers.size(); ++i) {
    state_bytes_[i] = Make<Gauge>("ballast_state_bytes", {{"tier", tiers[i]}});
  }
  AddDiskSeries();
  serving_ = Make<Gauge>("ballast_serving", {});
  damaged_jobs_ = Make<Gauge>("ballast_damaged_jobs", {});
  jobs_under_way_ = Make<Gauge>("ballast_jobs_under_way", {});
  push_duplicates_ = Make<Counter>("ballast_push_duplicates_total", {});
  push_conflicts_ = Make<Counter>("ballast_push_conflicts_total", {});
  // From the start: a counter that begins with its first event has no increase then.
  for (const char* where : {"push", "log", "image"}) checksum_errors(where);
}

void ServerMetrics::AddDiskSeries() {
  dram_capacity_ = Make<Gauge>("ballast_tier_capacity_bytes", {{"tier", "dram"}});
  memory_planned_ = Make<Gauge>("ballast_memory_planned_bytes", {});
  memory_budget_ = Make<Gauge>("ballast_memory_budget_bytes", {});
  log_append_ = Make<Histogram>("ballast_log_append_duration_seconds", {}, DiskBoundsSeconds());
  log_flush_ = Make<Histogram>("ballast_log_flush_duration_seconds", {}, DiskBoundsSeconds());
  const std::array<const char*, 2> ops = {"read", "write"};
  const std::array<const char*, 2> phases = {"open", "load"};
  for (size_t i = 0; i < ops.size(); ++i) {
    image_io_[i] =
        Make<Histogram>("ballast_image_io_duration_seconds", {{"op", ops[i]}}, DiskBoundsSeconds());
    recovery_duration_[i] =
        Make<Gauge>("ballast_recovery_duration_seconds", {{"phase", phases[i]}});
  }
  recovery_replayed_rounds_ = Make<Counter>("ballast_recovery_replayed_rounds_total", {});
}

void ServerMetrics::AddRecovery(RecoveryPhase phase, std::chrono::nanoseconds duration) {
  recovery_duration_[static_cast<size_t>(phase)]->Add(
      std::chrono::duration<double>(duration).count());
}

void ServerMetrics::MarkSnapshot(const QualifiedName& run) { MarkSnapshot(run, UnixSeconds()); }

void ServerMetrics::MarkSnapshot(const QualifiedName& run, double unix_s) {
  MutexLock lock(&mu_);
  double& newest = newest_snapshots_[run];
  newest = std::max(newest, unix_s);
  const auto job = jobs_.find(run);
  if (job != jobs_.end()) job->second->last_snapshot_timestamp_s.Set(newest);
}

std::shared_ptr<JobMetrics> ServerMetrics::Job(const QualifiedName& run) {
  lookups_.fetch_add(1, std::memory_order_relaxed);
  MutexLock lock(&mu_);
  std::shared_ptr<JobMetrics>& job = jobs_[run];
  if (job == nullptr) {
    job = std::make_shared<JobMetrics>();
    const auto newest = newest_snapshots_.find(run);
    if (newest != newest_snapshots_.end()) job->last_snapshot_timestamp_s.Set(newest->second);
    AddJobSeries(run, job);
  }
  return job;
}

namespace {

MetricLabels LabelsOf(const QualifiedName& run) {
  return {{"tenant", run.tenant}, {"run", run.name}};
}

// Adds series of one job. Each is a pointer into the job's struct that shares the struct's
// ownership.
struct SeriesOfJob {
  MetricRegistry* registry;
  MetricLabels own;
  std::shared_ptr<JobMetrics> job;

  template <typename Value>
  void operator()(const char* family, MetricLabels more, const Value* value) const {
    more.insert(more.begin(), own.begin(), own.end());
    registry->Add(family, std::move(more), std::shared_ptr<const Value>(job, value));
  }
};

}  // namespace

void ServerMetrics::AddJobSeries(const QualifiedName& run, const std::shared_ptr<JobMetrics>& job) {
  const SeriesOfJob add{&registry_, LabelsOf(run), job};
  const char* const rounds = "ballast_rounds_total";
  add(rounds, {{"result", "committed"}}, &job->rounds_committed);
  add(rounds, {{"result", "skipped_overflow"}}, &job->rounds_skipped_overflow);
  add(rounds, {{"result", "halted"}}, &job->rounds_halted);
  add(rounds, {{"result", "aborted"}}, &job->rounds_aborted);
  add("ballast_push_bytes_total", {}, &job->push_bytes);
  add("ballast_copied_bytes_total", {}, &job->copied_bytes);
  add("ballast_pull_bytes_total", {}, &job->pull_bytes);
  add("ballast_loss_scale", {}, &job->loss_scale);
  const std::array<const char*, 4> phases = {"idle", "collect", "vote", "step"};
  for (size_t i = 0; i < phases.size(); ++i) {
    add("ballast_round_phase", {{"phase", phases[i]}}, &job->open_phase[i]);
  }
  registry_.AddCallback("ballast_credit_wait_seconds_total", add.own,
                        [job] { return static_cast<double>(job->credit_wait_ns.value()) * 1e-9; });
  add("ballast_log_bytes_total", {}, &job->log_bytes);
  add("ballast_log_unflushed_bytes", {}, &job->log_unflushed_bytes);
  add("ballast_log_free_bytes", {}, &job->log_free_bytes);
  add("ballast_log_short_of_room", {}, &job->log_short_of_room);
  add("ballast_image_writes_total", {}, &job->image_writes);
  add("ballast_image_write_bytes_total", {}, &job->image_write_bytes);
  add("ballast_last_snapshot_timestamp_seconds", {}, &job->last_snapshot_timestamp_s);
  add("ballast_last_round_commit_timestamp_seconds", {}, &job->last_round_commit_timestamp_s);
  add("ballast_grad_norm", {}, &job->grad_norm);
  const char* const trainers = "ballast_trainers";
  add(trainers, {{"state", "active"}}, &job->trainers_active);
  add(trainers, {{"state", "unresponsive"}}, &job->trainers_unresponsive);
  add(trainers, {{"state", "left"}}, &job->trainers_left);
}

void ServerMetrics::RemoveJob(const QualifiedName& run) {
  MutexLock lock(&mu_);
  if (jobs_.erase(run) > 0) registry_.RemoveSeries(LabelsOf(run));
}

Counter* ServerMetrics::frames_rejected(absl::string_view reason) {
  MutexLock lock(&mu_);
  return Resolve("ballast_frames_rejected_total", "reason", reason, &frames_rejected_);
}

Counter* ServerMetrics::frames_rejected(Reason reason) {
  const size_t index = static_cast<size_t>(reason);
  if (index >= rejected_by_reason_.size()) return frames_rejected(ReasonName(reason));
  std::atomic<Counter*>& known = rejected_by_reason_[index];
  Counter* counter = known.load(std::memory_order_acquire);
  if (counter == nullptr) {
    counter = frames_rejected(ReasonName(reason));
    // With the counter's value: other threads see it without the lock.
    known.store(counter, std::memory_order_release);
  }
  return counter;
}

Counter* ServerMetrics::checksum_errors(absl::string_view where) {
  MutexLock lock(&mu_);
  return Resolve("ballast_checksum_errors_total", "where", where, &checksum_errors_);
}

Counter* ServerMetrics::admissions_refused(absl::string_view reason) {
  MutexLock lock(&mu_);
  return Resolve("ballast_admissions_refused_total", "reason", reason, &admissions_refused_);
}

Counter* ServerMetrics::calls_refused(absl::string_view reason) {
  MutexLock lock(&mu_);
  return Resolve("ballast_calls_refused_total", "reason", reason, &calls_refused_);
}

Counter* ServerMetrics::Resolve(absl::string_view family, absl::string_view label,
                                absl::string_view value, CountersByLabel* counters) {
  lookups_.fetch_add(1, std::memory_order_relaxed);
  auto found = counters->find(std::string(value));
  if (found != counters->end()) return found->second.get();
  const std::string kept = counters->size() < kMaxLabelValues ? std::string(value) : "other";
  std::shared_ptr<Counter>& counter = (*counters)[kept];
  if (counter == nullptr) counter = Make<Counter>(family, {{std::string(label), kept}});
  return counter.get();
}

}  // namespace ballast
