// RestingJobFiles: open files of resting jobs, for snapshots of them. No engine is needed: the
// files are opened as they are, and a thread for the disk brings them to the round. The home lets
// nothing wake such a job meanwhile. A home that was started again has forgotten the snapshot; then
// its open files are closed.
// Comes from: SnapshotShare. Goes to: RestingState, the parts of snapshots.
// Thread safety: owned by the directory's strand.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "server/jobs/background_tasks.h"
#include "server/jobs/job_store.h"
#include "server/jobs/this_server.h"
#include "server/recovery/resting_state.h"

namespace ballast::server {

class RestingJobFiles {
 public:
  using HoldDone = std::function<void(absl::StatusOr<uint64_t> round)>;
  using CaptureDone = std::function<void(absl::StatusOr<CapturedRound>)>;
  // Writes the states of a job, at a round, to a part; on a thread for the disk.
  using Capture = std::function<absl::StatusOr<CapturedRound>(RestingState*,
                                                              const std::atomic<bool>& cancelled)>;

  // All outlive the object; `store` is not null when Hold is called.
  RestingJobFiles(const ThisServer* self, JobStore* store, BackgroundTasks* work, simd::Isa isa)
      : self_(self), store_(store), work_(work), isa_(isa) {}

  // Whether files of the job are open for a snapshot.
  bool Has(uint64_t job) const { return holds_.count(job) != 0; }
  // Opens the files of a job for snapshot `snapshot`, and returns the first undecided round here.
  // Errors: ABORTED when the snapshot is given up; NOT_FOUND UNKNOWN_JOB; those of JobStore and
  // RestingState.
  void Hold(uint64_t job, uint64_t snapshot, const HoldDone& done);
  // Runs `capture` on the files that Hold has opened, and closes them. Errors: ABORTED when they
  // are not open for this snapshot; those of `capture`.
  void Take(uint64_t job, uint64_t snapshot, const Capture& capture, const CaptureDone& done);
  // Gives up the snapshot of the job. Whether its files are closed; if not, they will be soon.
  bool Release(uint64_t job);
  // As Release; UNAVAILABLE RECOVERING until its files are closed.
  absl::Status LetGo(const JobPlan& plan);
  // Interrupts all work, for a server that stops.
  void CancelAll();

 private:
  struct Held {
    uint64_t snapshot = 0;
    std::shared_ptr<std::atomic<bool>> cancelled;
    std::shared_ptr<RestingState> state;  // null until it is opened
    bool busy = true;                     // a thread for the disk uses its files
  };
  using Opened = absl::StatusOr<std::shared_ptr<RestingState>>;

  Opened Open(uint64_t job) const;
  void OnOpened(uint64_t job, const Opened& state, const HoldDone& done);

  const ThisServer* const self_;
  JobStore* const store_;
  BackgroundTasks* const work_;
  const simd::Isa isa_;
  std::map<uint64_t, Held> holds_;  // by job
};

}  // namespace ballast::server
