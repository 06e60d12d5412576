// Messages of the Control service <-> calls of trainers to the home of their job.
// Comes from: control_service, trainer_stream. Goes to: TrainerApi.
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "ballast/v1/control.pb.h"
#include "server/jobs/trainer_calls.h"

namespace ballast::server {

// Errors of both: INVALID_ARGUMENT BAD_SPEC naming the field.
absl::StatusOr<AttachCall> AttachFromProto(const v1::AttachRequest& request);
absl::StatusOr<ExtendCall> ExtendFromProto(const v1::ExtendRequest& request);

// The terms returned by Attach in addition to the plan.
struct TransportTerms {
  uint32_t chunk_bytes = 0;
  uint64_t credit_bytes = 0;
  uint32_t heartbeat_ms = 0;
  uint32_t report_after_ms = 0;
};
v1::AttachReply AttachToProto(const AttachResult& result, const TransportTerms& terms,
                              uint32_t protocol);
// `window_extents`: 0 if it is not known.
v1::ExtendReply ExtendToProto(const JobPlan& plan, uint32_t window_extents);

// Errors: INVALID_ARGUMENT BAD_FRAME: an unknown act or phase. Times above a day become a day.
absl::StatusOr<RendezvousCall> RendezvousFromProto(const v1::RendezvousRequest& request);
v1::RendezvousReply RendezvousToProto(const rendezvous::Reply& reply);
absl::StatusOr<Doing> DoingFromProto(const v1::Doing& doing);

}  // namespace ballast::server
