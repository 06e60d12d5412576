// CaptureDesk: the state of a round for a snapshot, at one server, one at a time.
//
//   idle -Hold-> asking the log -held-> HELD -Capture-> WAITING for the round -begun-> CAPTURING
//   CAPTURING -done-> idle;   Release or the end of the job -> idle
//
// The strand holds the state, which takes no time. A separate thread brings the state to the round
// and hands it on. Rounds continue meanwhile, and the thread gives way to them.
// Comes from: Engine (snapshots), RoundDriver (rounds that open, the end). Goes to: StateHolds,
// CaptureRun. Thread safety: on the job's strand; a CaptureRun on its executor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/threads/executor.h"
#include "common/threads/executor_source.h"
#include "server/durability/round_log.h"
#include "server/optim/dispatch.h"
#include "server/recovery/capture.h"
#include "server/round/job_strand.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

class CaptureDesk {
 public:
  using Held = std::function<void(absl::StatusOr<uint64_t> round)>;
  using Captured = std::function<void(absl::StatusOr<CapturedRound>)>;

  // All arguments outlive this. `executors` makes the thread of captures, which rest by `clock`;
  // `server` is this server's id, for error texts.
  CaptureDesk(JobStrand* strand, const RoundFsm* fsm, const optim::KernelTable* kernels,
              ExecutorSource* executors, const Clock* clock, uint32_t server)
      : strand_(strand),
        fsm_(fsm),
        kernels_(kernels),
        executors_(executors),
        clock_(clock),
        server_(server) {}
  // Ends a capture's tasks before the objects that they use.
  ~CaptureDesk();
  CaptureDesk(const CaptureDesk&) = delete;
  CaptureDesk& operator=(const CaptureDesk&) = delete;

  // As RoundEngine's HoldState, CaptureState and ReleaseState. `there`: no initial weights are
  // missing before the first round, and all received ones are durable.
  void Hold(const std::shared_ptr<StateHolds>& log, bool there, const Held& done);
  void Capture(uint64_t round, TakeExtent take, Captured done);
  void Release();

  // A round has begun, perhaps the one that a capture waits for.
  void OnRound();

  // The job ends with `why`: breaks off the capture under way, and waits for its end. Another
  // engine may open the log's files afterwards.
  void End(const absl::Status& why);

 private:
  struct Order {
    uint64_t round = 0;
    TakeExtent take;
    Captured done;
  };

  void OnHeld(const HeldState& held, const absl::Status& status, const Held& done);
  void Start(Order order);
  // The error of a hold or capture broken off by the job's end or a Release.
  absl::Status GivenUp() const;

  JobStrand* const strand_;
  const RoundFsm* const fsm_;
  const optim::KernelTable* const kernels_;
  ExecutorSource* const executors_;
  const Clock* const clock_;
  const uint32_t server_;

  std::shared_ptr<StateHolds> log_;        // from Hold until a capture has it
  std::optional<HeldState> held_;          // once the log has said so
  uint32_t layout_version_ = 0;            // of the held state
  bool release_wanted_ = false;            // while the log is asked to hold
  std::optional<Order> order_;             // waits for its round
  std::shared_ptr<CaptureRun> capturing_;  // null: none is under way
  bool paced_ = true;                      // false after a capture that the log had no room for
  absl::Status ended_;                     // why the job has ended; OK: it has not
  std::shared_ptr<Executor> thread_;       // made at the first use
};

}  // namespace ballast::server
