// StateCaptures: the state of a round for a snapshot, at one server, one at a time.
//
//   idle -Hold-> asking the log -held-> HELD -Capture-> WAITING for the round -begun-> CAPTURING
//   CAPTURING -done-> idle;   Release or the end of the job -> idle
//
// The strand holds the state, which takes no time. A separate thread brings the state to the round
// and hands it on. Rounds continue meanwhile, and the thread gives way to them.
// Comes from: SnapshotShare, RoundDriver (rounds that open, the end). Goes to: StateHolds,
// CaptureRun. Thread safety: CaptureCalls from any thread, the rest on the job's strand; a
// CaptureRun is on its executor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/threads/executor.h"
#include "common/threads/executor_source.h"
#include "server/durability/round_log.h"
#include "server/engine/initial_weights.h"
#include "server/engine/round_control.h"
#include "server/engine/round_engine.h"
#include "server/optim/dispatch.h"
#include "server/recovery/capture.h"
#include "server/round/job_strand.h"
#include "server/round/round_fsm.h"
#include "server/round/waiters.h"

namespace ballast::server {

class StateCaptures final : public CaptureCalls {
 public:
  struct Deps {
    JobStrand* strand = nullptr;
    const RoundControl* rounds = nullptr;
    const RoundFsm* fsm = nullptr;
    const InitialWeights* initial = nullptr;
    Waiters* waiters = nullptr;
    const optim::KernelTable* kernels = nullptr;
    ExecutorSource* executors = nullptr;  // makes the thread of captures
    const Clock* clock = nullptr;         // by which they rest
    uint32_t server = 0;                  // this server's id, for error texts
  };
  // All objects in `deps` outlive this.
  explicit StateCaptures(const Deps& deps) : deps_(deps), fsm_(deps.fsm) {}
  // Ends a capture's tasks before the objects that they use.
  ~StateCaptures();
  StateCaptures(const StateCaptures&) = delete;
  StateCaptures& operator=(const StateCaptures&) = delete;

  void HoldState(Held done) override;
  void CaptureState(uint64_t round, TakeExtent take, Captured done) override;
  void ReleaseState() override;

  // A round has begun, perhaps the one that a capture waits for.
  void OnRound();

  // The job ends with `why`: breaks off the capture under way, and waits for its end. Another
  // engine may open the log's files afterwards.
  void End(const absl::Status& why);

 private:
  struct CaptureRequest {
    uint64_t round = 0;
    TakeExtent take;
    Captured done;
  };

  // Once all received initial weights are durable: the log's thread must find them in the files.
  void HoldWhenWritten(const Held& done);
  // `there`: no initial weights are missing before the first round.
  void Hold(bool there, const Held& done);
  void OnHeld(const HeldState& held, const absl::Status& status, const Held& done);
  void Start(CaptureRequest request);
  void Release();
  // The error of a hold or capture broken off by the job's end or a Release.
  absl::Status GivenUp() const;

  const Deps deps_;
  const RoundFsm* const fsm_;

  std::shared_ptr<StateHolds> log_;        // from Hold until a capture has it
  std::optional<HeldState> held_;          // once the log has said so
  uint32_t layout_version_ = 0;            // of the held state
  bool release_wanted_ = false;            // while the log is asked to hold
  std::optional<CaptureRequest> request_;  // waits for its round
  std::shared_ptr<CaptureRun> capturing_;  // null: none is under way
  bool paced_ = true;                      // false after a capture that the log had no room for
  absl::Status ended_;                     // why the job has ended; OK: it has not
  std::shared_ptr<Executor> thread_;       // made at the first use
};

}  // namespace ballast::server
