// Every metric of a state server, by name: per job (JobMetrics) and for the whole process.
// Resolve a handle once, keep it, update it on the hot path: an update is one atomic addition.
// Comes from: server/service, server/engine, server/tier, server/durability. Goes to:
// server/admin through registry().
// Thread safety: everything here may be used from any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/base/reason.h"
#include "common/base/sync.h"
#include "common/metrics/registry.h"
#include "common/text/qualified_name.h"

namespace ballast {

// Progress of a job's open round. kIdle: no trainer has begun the next round, or the job has ended.
enum class OpenPhase { kIdle = 0, kCollect = 1, kVote = 2, kStep = 3 };

// Values of one job; the labels `tenant` and `run`, below {run}, carry its name. Plain atomics:
// hold the shared_ptr as long as you update them.
struct JobMetrics {
  // ballast_rounds_total{run,result}: each round once, by its decision; or aborted: a trainer had
  // begun it, and the job ended or changed its trainers before there was a decision. In the next
  // epoch such a round starts over.
  Counter rounds_committed;
  Counter rounds_skipped_overflow;
  Counter rounds_halted;
  Counter rounds_aborted;
  // ballast_push_bytes_total{run}: gradient payload received, duplicates included.
  Counter push_bytes;
  // ballast_copied_bytes_total{run}: received payload copied into registers or state. Over
  // push_bytes: copies per byte.
  Counter copied_bytes;
  // ballast_pull_bytes_total{run}: weight payload sent.
  Counter pull_bytes;
  // ballast_last_round_commit_timestamp_seconds{run}: Unix time; 0 before the first commit.
  Gauge last_round_commit_timestamp_s;
  // ballast_grad_norm{run}: global norm of the last decision, before clipping.
  Gauge grad_norm;
  // ballast_loss_scale{run}: for the next backward pass; 0 before the first decision.
  Gauge loss_scale;
  // ballast_round_phase{run,phase}: 1 for the phase that the job is in at this server, by
  // OpenPhase; 0 for the others.
  std::array<Gauge, 4> open_phase;
  // ballast_credit_wait_seconds_total{run}: how long streams of trainers were not read, because
  // their earlier payload was not stored yet.
  Counter credit_wait_ns;
  // The gradient log: ballast_log_bytes_total{run}, appended; ballast_log_unflushed_bytes{run};
  // ballast_log_free_bytes{run}, that can be appended before older rounds are let go;
  // ballast_log_short_of_room{run}, 1 while rounds wait for that.
  Counter log_bytes;
  Gauge log_unflushed_bytes;
  Gauge log_free_bytes;
  Gauge log_short_of_room;
  // ballast_image_writes_total{run}, ballast_image_write_bytes_total{run}: images of extents
  // written to the rolling checkpoint.
  Counter image_writes;
  Counter image_write_bytes;
  // ballast_last_snapshot_timestamp_seconds{run}: at the home, Unix time; 0 without a snapshot.
  Gauge last_snapshot_timestamp_s;
  // ballast_trainers{run,state}: the members of the epoch. active: its stream to this server is
  // open; unresponsive: it is not, and the job waits for the trainer; left: it has said Leave.
  // After the job's end only those that left are counted.
  Gauge trainers_active;
  Gauge trainers_unresponsive;
  Gauge trainers_left;

  // Sets last_round_commit_timestamp_s to the present.
  void MarkCommit();
};

// Phases of a round as ballast_round_duration_seconds{phase} knows them. kStream is observed once
// for each trainer: from the end of the step until the last weights are on their way to it.
enum class RoundPhase { kCollect = 0, kVote = 1, kStep = 2, kStream = 3 };
enum class StateTier { kDram = 0, kNvme = 1 };
// Stages of a durable job's start: open its files, which reads the log; load its state, which reads
// images and applies the rounds after them.
enum class RecoveryPhase { kOpen = 0, kLoad = 1 };
enum class ImageOp { kRead = 0, kWrite = 1 };

// What ballast_build_info shows.
struct BuildInfo {
  std::string version;   // Of the release, such as 0.1.0.
  std::string revision;  // Of the source; may be empty.
  std::string isa;       // Kernel path chosen at start, such as avx2.
};

class ServerMetrics {
 public:
  // Declares all families and the process_* callbacks.
  explicit ServerMetrics(const BuildInfo& build);
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // The metrics of job `run` (valid names), made at the first call: then its series appear.
  std::shared_ptr<JobMetrics> Job(const QualifiedName& run);
  // Removes the job's series; for when the job is freed. Handles stay usable, and a new job of
  // that name starts at zero. Unknown names are ignored.
  void RemoveJob(const QualifiedName& run);

  // ballast_round_duration_seconds{phase}; valid as long as this object.
  Histogram* round_duration(RoundPhase phase) {
    return round_durations_[static_cast<size_t>(phase)].get();
  }
  void ObserveRound(RoundPhase phase, std::chrono::nanoseconds duration) {
    round_duration(phase)->Observe(std::chrono::duration<double>(duration).count());
  }

  // ballast_state_bytes{tier}: optimizer state and weights held.
  Gauge* state_bytes(StateTier tier) { return state_bytes_[static_cast<size_t>(tier)].get(); }

  // ballast_tier_capacity_bytes{tier="dram"}: what all states in memory may take.
  Gauge* dram_capacity() { return dram_capacity_.get(); }
  // ballast_memory_planned_bytes and ballast_memory_budget_bytes: memory of the jobs by their
  // plans, and its limit.
  Gauge* memory_planned() { return memory_planned_.get(); }
  Gauge* memory_budget() { return memory_budget_.get(); }

  // ballast_log_append_duration_seconds, ballast_log_flush_duration_seconds, and
  // ballast_image_io_duration_seconds{op}.
  Histogram* log_append() { return log_append_.get(); }
  Histogram* log_flush() { return log_flush_.get(); }
  Histogram* image_io(ImageOp op) { return image_io_[static_cast<size_t>(op)].get(); }

  // ballast_recovery_duration_seconds{phase}: of all jobs since the process started.
  void AddRecovery(RecoveryPhase phase, std::chrono::nanoseconds duration);
  // ballast_recovery_replayed_rounds_total.
  Counter* recovery_replayed_rounds() { return recovery_replayed_rounds_.get(); }

  // A snapshot of job `run` was taken at `unix_s`, now without one. last_snapshot_timestamp_s is
  // the newest of them, also of a job that begins to run later.
  void MarkSnapshot(const QualifiedName& run);
  void MarkSnapshot(const QualifiedName& run, double unix_s);

  // ballast_serving: 1 while the server serves jobs, else 0.
  Gauge* serving() { return serving_.get(); }

  // ballast_damaged_jobs: those that could not be opened here.
  Gauge* damaged_jobs() { return damaged_jobs_.get(); }
  // ballast_jobs_under_way: at their home, those that have not ended.
  Gauge* jobs_under_way() { return jobs_under_way_.get(); }

  // ballast_push_duplicates_total and ballast_push_conflicts_total: frames sent again with the same
  // bytes (harmless) and with others (refused).
  Counter* push_duplicates() { return push_duplicates_.get(); }
  Counter* push_conflicts() { return push_conflicts_.get(); }

  // ballast_frames_rejected_total{reason} and ballast_checksum_errors_total{where}; valid as long
  // as this object. Takes a lock: resolve early when it matters. `reason` and `where` are words of
  // our own, never of a peer; after 64 different ones further ones count as "other".
  Counter* frames_rejected(absl::string_view reason);
  // The same for a reason of ours: only the first call for each reason takes the lock, so that a
  // flood of bad frames does not.
  Counter* frames_rejected(Reason reason);
  Counter* checksum_errors(absl::string_view where);
  // ballast_admissions_refused_total{reason}, likewise.
  Counter* admissions_refused(absl::string_view reason);
  // ballast_calls_refused_total{reason}, likewise: calls that the gate has refused.
  Counter* calls_refused(absl::string_view reason);

  // How often a value was looked up under the lock; a round does not. For tests.
  uint64_t lookups() const { return lookups_.load(std::memory_order_relaxed); }

  // For scrapes, and for rooms that add families of their own.
  MetricRegistry& registry() { return registry_; }
  const MetricRegistry& registry() const { return registry_; }

 private:
  using CountersByLabel = std::map<std::string, std::shared_ptr<Counter>>;

  // A series that this object owns.
  template <typename Value, typename... Arguments>
  std::shared_ptr<Value> Make(absl::string_view family, MetricLabels labels,
                              Arguments&&... arguments);
  void AddDiskSeries();
  void AddJobSeries(const QualifiedName& run, const std::shared_ptr<JobMetrics>& job);
  Counter* Resolve(absl::string_view family, absl::string_view label, absl::string_view value,
                   CountersByLabel* counters) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  MetricRegistry registry_;
  std::array<std::shared_ptr<Histogram>, 4> round_durations_;
  std::array<std::shared_ptr<Gauge>, 2> state_bytes_;
  std::shared_ptr<Gauge> dram_capacity_;
  std::shared_ptr<Gauge> memory_planned_;
  std::shared_ptr<Gauge> memory_budget_;
  std::shared_ptr<Histogram> log_append_;
  std::shared_ptr<Histogram> log_flush_;
  std::array<std::shared_ptr<Histogram>, 2> image_io_;
  std::array<std::shared_ptr<Gauge>, 2> recovery_duration_;
  std::shared_ptr<Counter> recovery_replayed_rounds_;
  std::shared_ptr<Gauge> serving_;
  std::shared_ptr<Gauge> damaged_jobs_;
  std::shared_ptr<Gauge> jobs_under_way_;
  std::shared_ptr<Counter> push_duplicates_;
  std::shared_ptr<Counter> push_conflicts_;

  std::array<std::atomic<Counter*>, 128> rejected_by_reason_{};
  std::atomic<uint64_t> lookups_{0};
  Mutex mu_;
  std::map<QualifiedName, std::shared_ptr<JobMetrics>> jobs_ ABSL_GUARDED_BY(mu_);
  std::map<QualifiedName, double> newest_snapshots_ ABSL_GUARDED_BY(mu_);  // Unix time, by job
  CountersByLabel frames_rejected_ ABSL_GUARDED_BY(mu_);
  CountersByLabel checksum_errors_ ABSL_GUARDED_BY(mu_);
  CountersByLabel admissions_refused_ ABSL_GUARDED_BY(mu_);
  CountersByLabel calls_refused_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast
