// ThisServer: the place of this server in its cluster, whether it stops, and the errors that follow
// from these.
// Comes from: Directory. Goes to: its parts. Thread safety: owned by the directory's strand;
// methods that do not ask whether the server stops may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/jobs/directory_config.h"

namespace ballast::server {

// The servers of the plan that cluster.peers has, ascending id: a cluster may have got others since
// the job was made.
std::vector<ServerAddress> ServersOf(const DirectoryConfig& config, const JobPlan& plan);

class ThisServer {
 public:
  explicit ThisServer(DirectoryConfig config) : config_(std::move(config)) {}

  const DirectoryConfig& config() const { return config_; }
  uint32_t id() const { return config_.self; }
  // The home of all jobs: the server with the lowest id.
  const ServerAddress& home() const { return config_.servers.front(); }
  bool IsHome() const { return home().id == config_.self; }

  bool stopping() const { return stopping_; }
  void Stop() { stopping_ = true; }

  // OK at the home, while it does not stop; else UNAVAILABLE SHUTTING_DOWN or FAILED_PRECONDITION
  // NOT_HOME.
  absl::Status CheckHome() const;
  // UNAVAILABLE SHUTTING_DOWN: the error of work interrupted by this server's stop.
  absl::Status ShuttingDown() const;
  // `status`; where it is OVER_BUDGET, with this server's id and address, because it may travel
  // through the home to a trainer or an operator. May be called from any thread.
  absl::Status WithPlace(const absl::Status& status) const;
  // UNAVAILABLE SERVER_LOST of the home.
  absl::Status HomeLost(const std::string& why) const;
  // Whether this cluster can run a job of that plan. A job keeps the servers it was made with, so
  // others may have been added since, but the home stays the same. Errors: FAILED_PRECONDITION
  // SERVER_REMOVED when cluster.peers lacks one of them, UNSUPPORTED when it has got another home.
  // May be called from any thread.
  absl::Status CheckServers(const JobPlan& plan) const;
  // NOT_FOUND UNKNOWN_JOB.
  absl::Status NoDurableJob(uint64_t job) const;

 private:
  const DirectoryConfig config_;
  bool stopping_ = false;
};

}  // namespace ballast::server
