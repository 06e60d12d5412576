// What all servers of a cluster say of themselves, put together from one of them on.
// Comes from: the cluster commands. Goes to: the servers' Admin service. Thread safety: pure
// functions but for AskCluster, which waits for the servers.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ballast/v1/admin.pb.h"
#include "tools/ctl/options.h"

namespace ballast::tools {

struct ClusterView {
  struct Silent {
    std::string endpoint;
    absl::Status status;
  };
  std::vector<v1::StatusReply> servers;  // that answered, ascending id
  std::vector<Silent> silent;
};

// Asks the endpoints of the options, and the peers that they name.
ClusterView AskCluster(const Options& options, const v1::StatusRequest& request);

// One line on stderr for each silent server. Returns the exit code: 0 when there is none.
int SayWhoIsSilent(const ClusterView& view, const Options& options);

// A trainer of a job as all servers together see it: the worst of its states, and the work it owes.
struct TrainerView {
  uint32_t slot = 0;
  std::string state;
  uint64_t owed_extents = 0;
  std::vector<uint32_t> owed_to;  // server ids
};
std::vector<TrainerView> TrainersOf(const ClusterView& view, const std::string& job);

// A job's pace by the rounds that a server remembers. In a stall it falls towards 0.
struct Pace {
  size_t rounds = 0;
  double rounds_per_s = 0;  // 0 with fewer than two
  double collect_s = 0;     // means
  double vote_s = 0;
  double step_s = 0;
  double pushed_bytes_per_s = 0;
};
Pace PaceOf(const v1::JobStatus& job);

}  // namespace ballast::tools
