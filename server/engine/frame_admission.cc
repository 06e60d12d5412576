#include "server/engine/frame_admission.h"

#include <optional>
#include <string>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/mutant.h"

namespace ballast::server {

// A damaged frame is refused as damaged even where the FSM refuses it for something else, which may
// be the damage.
absl::StatusOr<bool> FrameAdmission::Take(const FrameHeader& frame, const Payload& payload) {
  std::optional<FrameRefused> refused = fsm_->RefusalOf(frame);
  const absl::StatusOr<uint32_t> crc =
      refused.has_value() ? FrameCrc(frame, payload) : Land(frame, payload);
  if (!crc.ok()) return crc.status();
  const absl::Status intact = CheckFrameCrc(frame, *crc);
  if (!intact.ok() && !BALLAST_MUTANT(kNoChecksum)) {
    if (metrics_ != nullptr) metrics_->checksum_errors("push")->Add();
    refused = FrameRefused{Reason::kBadChecksum, frame.round, frame.extent, frame.offset_bytes,
                           std::string(intact.message())};
  }
  const bool again = refused.has_value() && refused->reason == Reason::kDuplicate;
  if (BALLAST_MUTANT(kCountPushes) && again && frame.kind == FrameKind::kGradient) {
    (void)contributions_->Store(fsm_->layout(), frame,
                                Payload::FromString(std::string(payload.bytes(), '\x40')));
  }
  if (refused.has_value()) Refuse(frame, *refused);
  return !refused.has_value();
}

absl::StatusOr<uint32_t> FrameAdmission::Land(const FrameHeader& frame, const Payload& payload) {
  BALLAST_CHECK(payload.bytes() == frame.length_bytes);
  if (frame.kind == FrameKind::kGradient) {
    return contributions_->Store(fsm_->layout(), frame, payload);
  }
  const uint32_t crc = FrameCrc(frame, payload);
  if (crc == frame.crc32c || BALLAST_MUTANT(kNoChecksum)) {
    BALLAST_RETURN_IF_ERROR(initial_->Put(frame, payload));
  }
  return crc;
}

void FrameAdmission::Refuse(const FrameHeader& frame, const FrameRefused& refused) const {
  if (metrics_ != nullptr) {
    if (refused.reason == Reason::kDuplicate) metrics_->push_duplicates()->Add();
    if (refused.reason == Reason::kConflict) metrics_->push_conflicts()->Add();
    metrics_->frames_rejected(refused.reason)->Add();
  }
  if (refused.reason == Reason::kConflict) {
    BALLAST_LOG(ERROR, LogField("run", fsm_->plan().spec.name), LogField("round", refused.round),
                LogField("slot", frame.slot))
        << refused.message;
  }
  // A frame of another process or epoch comes from an ended stream; the slot's present stream has
  // sent nothing wrong.
  const EpochRecord& epoch = fsm_->plan().epoch;
  const bool own = frame.epoch == epoch.epoch && epoch.Holds(frame.slot, frame.incarnation);
  if (own && sinks_->Has(frame.slot)) sinks_->Sink(frame.slot)->OnRefused(refused);
}

}  // namespace ballast::server
