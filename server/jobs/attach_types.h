// A trainer's attach call to a job's home, as plain values.
// Comes from: server/service. Goes to: HomeJobs, the doors. Thread safety: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/rendezvous/rendezvous_types.h"
#include "common/security/caller.h"
#include "server/round/round_types.h"

namespace ballast::server {

struct AttachCall {
  JobSpec spec;
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  InitMode init = InitMode::kEqual;
  std::vector<uint32_t> tensor_crc32c;  // empty for broadcast
  std::chrono::milliseconds wait{0};    // 0: server default
  Resume resume = Resume::kNever;
  uint32_t min_world = 1;  // of a variable world; at most spec.world
  uint64_t call = 0;       // unique per call at this server, for AttachCancelled
  Caller caller;

  QualifiedName name() const { return caller.Own(spec.name); }
};

struct ServerAddress {
  uint32_t id = 0;
  std::string address;
};

struct AttachResult {
  JobPlan plan;  // spec of the whole job, epoch, owners
  std::vector<ServerAddress> servers;
  uint32_t window_extents = 0;
  bool resumed = false;  // the job was there before this process came
  SeatState state;
};

// A trainer's part in making a communicator among the trainers of a job.
struct RendezvousCall {
  uint64_t job = 0;
  rendezvous::Call call;
  Caller caller;
};

struct ExtendCall {
  uint64_t job = 0;
  uint32_t epoch = 0;
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  uint32_t base_layout_version = 0;
  uint32_t group_count = 0;  // after the extension
  std::vector<TensorSpec> tensors;
  InitMode init = InitMode::kEqual;
  std::vector<uint32_t> tensor_crc32c;
  uint64_t round = 0;                    // the first with the new groups
  std::vector<uint32_t> schedule_group;  // of the new groups; see PolicySpec
  Caller caller;
};

}  // namespace ballast::server
