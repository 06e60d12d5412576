// Intake: the way of one frame at a server. The FSM admits the frame, its bytes land where they
// belong while their checksum is formed, and the FSM records that they are there. Frames that are
// refused or damaged end here.
// Comes from: RoundDriver (frames). Goes to: Contributions, InitialWeights, Audience (refusals).
// Thread safety: on the job's strand.
#pragma once

#include "absl/status/statusor.h"
#include "common/base/payload.h"
#include "common/metrics/metrics.h"
#include "server/engine/audience.h"
#include "server/engine/initial_weights.h"
#include "server/extents/contributions.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

class Intake {
 public:
  // What is pointed to outlives this. `metrics` may be null.
  Intake(const RoundFsm* fsm, Contributions* contributions, InitialWeights* initial,
         const Audience* audience, ServerMetrics* metrics)
      : fsm_(fsm),
        contributions_(contributions),
        initial_(initial),
        audience_(audience),
        metrics_(metrics) {}

  // Whether the frame is admitted and its bytes have landed, so that FrameInput{frame} is due
  // next. Else its trainer has got the refusal. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<bool> Take(const FrameHeader& frame, const Payload& payload);

 private:
  // Puts the bytes of an admitted frame where they belong, and returns the checksum of identity and
  // payload. What a damaged frame leaves there counts as absent.
  absl::StatusOr<uint32_t> Land(const FrameHeader& frame, const Payload& payload);
  void Refuse(uint32_t slot, const FrameRefused& refused) const;

  const RoundFsm* const fsm_;
  Contributions* const contributions_;
  InitialWeights* const initial_;
  const Audience* const audience_;
  ServerMetrics* const metrics_;
};

}  // namespace ballast::server
