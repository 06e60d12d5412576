// FrameAdmission: the path of one frame through a server. The FSM admits the frame, its bytes are
// copied to their place and checksummed in one pass, and the FSM records their arrival. Refused or
// damaged frames end here. Comes from: RoundDriver (frames). Goes to: Contributions,
// InitialWeights, SlotSinks (refusals). Thread safety: on the job's strand.
#pragma once

#include "absl/status/statusor.h"
#include "common/bytes/payload.h"
#include "common/metrics/metrics.h"
#include "server/engine/initial_weights.h"
#include "server/engine/slot_sinks.h"
#include "server/extents/contributions.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

class FrameAdmission {
 public:
  // All pointers outlive this. `metrics` may be null.
  FrameAdmission(const RoundFsm* fsm, Contributions* contributions, InitialWeights* initial,
                 const SlotSinks* sinks, ServerMetrics* metrics)
      : fsm_(fsm),
        contributions_(contributions),
        initial_(initial),
        sinks_(sinks),
        metrics_(metrics) {}

  // Whether the frame is admitted and its bytes are in place, so that FrameInput{frame} is due
  // next. Else its trainer has received the refusal. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<bool> Take(const FrameHeader& frame, const Payload& payload);

 private:
  // Copies the bytes of an admitted frame to their place, and returns the checksum of identity and
  // payload. Bytes of a damaged frame count as absent.
  absl::StatusOr<uint32_t> Land(const FrameHeader& frame, const Payload& payload);
  void Refuse(const FrameHeader& frame, const FrameRefused& refused) const;

  const RoundFsm* const fsm_;
  Contributions* const contributions_;
  InitialWeights* const initial_;
  const SlotSinks* const sinks_;
  ServerMetrics* const metrics_;
};

}  // namespace ballast::server
