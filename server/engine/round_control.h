// RoundControl: the calls from the parts of an engine to its driver, which alone steps the FSM.
// Comes from: TrainerSessions, PlanChanges, StateCaptures, StateSender, Sweep. Goes to:
// RoundDriver. Thread safety: on the job's strand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "server/durability/round_log.h"
#include "server/round/job_plan.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

class RoundControl {
 public:
  // Steps the FSM and carries out its effects in order.
  virtual void Feed(const Input& input) = 0;
  virtual void CarryOut(const Effects& effects) = 0;
  // Fails the job after the effects in progress.
  virtual void FailLater(const absl::Status& status) = 0;
  // After a failed write or flush nothing may be assumed about the file: the process ends, and its
  // next start continues from the durable state.
  virtual void StorageFailed(const absl::Status& status) = 0;

  // The FSM goes to the epoch of `plan`, whose `effects` are still to be carried out, and all that
  // belonged to the epoch before is dropped. Errors: RoundFsm::Adopt's; then nothing has changed.
  virtual absl::Status EnterEpoch(const JobPlan& plan, uint32_t window_extents,
                                  Effects* effects) = 0;
  // The job has grown to `plan`, and continues with `log`, that of its grown files. Errors:
  // RESOURCE_EXHAUSTED, RoundFsm::Extend's.
  virtual absl::Status TakeGrown(const JobPlan& plan, uint32_t window_extents,
                                 std::shared_ptr<RoundLog> log) = 0;

  virtual const std::shared_ptr<RoundLog>& log() const = 0;
  // Decision of the newest decided round; empty before the first.
  virtual const std::optional<DecisionRecord>& last_decision() const = 0;
  // Why the job has ended; OK: it has not.
  virtual const absl::Status& failure() const = 0;

 protected:
  ~RoundControl() = default;
};

}  // namespace ballast::server
