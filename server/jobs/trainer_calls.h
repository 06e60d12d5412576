// Calls of trainers to the home of their job, as plain values, and the interface that answers them.
// Comes from: server/service. Goes to: HomeJobs. Thread safety: plain values; the interface says
// its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rendezvous/doing.h"
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

// A trainer's report of its present activity.
struct DoingReport {
  uint64_t job = 0;
  Member rank;
  Doing doing;
};

using AttachDone = std::function<void(absl::StatusOr<AttachResult>)>;
using ExtendDone = std::function<void(absl::StatusOr<JobPlan>)>;
using RendezvousDone = std::function<void(absl::StatusOr<rendezvous::Reply>)>;

// Trainers' calls at the home. Elsewhere FAILED_PRECONDITION NOT_HOME; message and detail carry the
// home's address. Every method may be called from any thread; callbacks run on the directory's
// strand.
class TrainerApi {
 public:
  virtual ~TrainerApi() = default;
  // Answers when every slot has attached, or with the typed errors of client.h's Attach.
  virtual void Attach(AttachCall call, AttachDone done) = 0;
  // The caller of the pending Attach with this AttachCall::call hung up. A later call of the same
  // trainer keeps the seat.
  virtual void AttachCancelled(const QualifiedName& job, uint32_t slot, uint64_t call) = 0;
  // Answers when every slot has asked and every server has the new groups, or with the typed errors
  // of client.h's AddGroup.
  virtual void Extend(ExtendCall call, ExtendDone done) = 0;
  // Answers when the caller's condition holds, or after the call's wait, or with the typed errors
  // of the client's rendezvous.h.
  virtual void Rendezvous(RendezvousCall call, RendezvousDone done) = 0;
  // Has no effect where the rank holds no seat, or where this is not the home.
  virtual void Heard(DoingReport report) = 0;
};

}  // namespace ballast::server
