// An operator's calls from a program: durable jobs, snapshots and forks.
// Comes from: the Python module, programs. Goes to: the jobs' home, found through any server.
// C++17-clean. Thread safety: immutable after its construction; any thread may call.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/error.h"
#include "ballast/security.h"

namespace ballast::client {

struct AdminOptions : Servers {
  // How long a call is retried while no server can be reached, or servers are starting.
  std::chrono::milliseconds patience{0};
  double time_scale = 1;  // stretches how long a server may take to answer (sanitizer runs)
  // Called about ten times a second, on the call's thread; true ends the call with CANCELLED. May
  // be empty.
  std::function<bool()> should_stop;
};

// A job on the servers' disks.
struct DurableJob {
  std::string name;
  uint64_t job_id = 0;
  std::string state;  // "running", or "resting": without trainers
  uint32_t world = 0;
  uint64_t round = 0;  // the next
  uint64_t parameters = 0;
  uint32_t open_streams = 0;  // of attached trainers
  uint64_t disk_bytes = 0;    // of all its servers
};

struct Snapshot {
  std::string job;
  std::string name;
  uint64_t round = 0;      // the first one of a job made from it
  uint64_t created_s = 0;  // since 1970, UTC
  uint64_t bytes = 0;      // on disk
  uint64_t parameters = 0;
  uint32_t world = 0;
};

struct RestoreOptions {
  std::string job;
  std::string snapshot;  // of that job
  std::string as;        // name of the new job
  uint32_t world = 0;    // of the new job; 0: as it was
  // A fork: the new job starts from the snapshot's files, linked instead of copied where possible.
  bool share = false;
};

// Each call blocks until the servers have answered. Errors of all calls: those of the server, with
// their reason; UNAVAILABLE UNREACHABLE when no server has answered within `patience`; CANCELLED
// CLOSED when should_stop returned true; INVALID_ARGUMENT BAD_ARGUMENT without endpoints.
// A call retried after a broken connection may find its own first attempt done: then Restore
// returns NAME_IN_USE, and a deletion NOT_FOUND.
class Admin {
 public:
  explicit Admin(AdminOptions options) : options_(std::move(options)) {}

  // All durable jobs of the servers, by name.
  absl::StatusOr<std::vector<DurableJob>> Jobs() const;
  // Removes a job from the disks of all servers; its snapshots stay. FAILED_PRECONDITION JOB_BUSY
  // while trainers are attached, unless `force`; NOT_FOUND UNKNOWN_JOB.
  absl::Status DeleteJob(const std::string& job, bool force) const;

  // Snapshots of a job, oldest first; of all jobs when `job` is empty. An unknown job has none.
  absl::StatusOr<std::vector<Snapshot>> Snapshots(const std::string& job) const;
  // NOT_FOUND UNKNOWN_JOB when no snapshot has that name.
  absl::Status DeleteSnapshot(const std::string& job, const std::string& snapshot) const;
  // Makes a job that rests until trainers attach with Resume::kMust. ALREADY_EXISTS NAME_IN_USE;
  // NOT_FOUND UNKNOWN_JOB; RESOURCE_EXHAUSTED OVER_BUDGET.
  absl::StatusOr<DurableJob> Restore(const RestoreOptions& options) const;

 private:
  AdminOptions options_;
};

}  // namespace ballast::client
