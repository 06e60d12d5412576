// Messages of the wire <-> the types of server/round and of the job directory.
// Comes from: control_service, peer_service, trainer_stream. Goes to: RoundEngine, the doors.
// All external input is checked for values that the types cannot hold: enum numbers, lengths that
// must agree with each other. Limits of a job are ValidateJobSpec's.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/v1/admin.pb.h"
#include "ballast/v1/control.pb.h"
#include "ballast/v1/data.pb.h"
#include "ballast/v1/peer.pb.h"
#include "proto/convert/frame_codec.h"
#include "server/jobs/attach_types.h"
#include "server/jobs/peer_calls.h"
#include "server/jobs/works.h"
#include "server/operator/operator_calls.h"
#include "server/quota/tenant_ledger.h"
#include "server/round/round_types.h"

namespace ballast::server {

// Control. Errors: INVALID_ARGUMENT BAD_SPEC naming the field.
absl::StatusOr<AttachCall> AttachFromProto(const v1::AttachRequest& request);
absl::StatusOr<ExtendCall> ExtendFromProto(const v1::ExtendRequest& request);

// Errors: INVALID_ARGUMENT BAD_FRAME: an unknown act or phase. Times above a day become a day.
absl::StatusOr<RendezvousCall> RendezvousFromProto(const v1::RendezvousRequest& request);
v1::RendezvousReply RendezvousToProto(const rendezvous::Reply& reply);
absl::StatusOr<Doing> DoingFromProto(const v1::Doing& doing);

// The terms returned by Attach in addition to the plan.
struct TransportTerms {
  uint32_t chunk_bytes = 0;
  uint64_t credit_bytes = 0;
  uint32_t heartbeat_ms = 0;
  uint32_t report_after_ms = 0;
};
// Overwrites `out`.
void ToProto(const PolicyReport& policy, v1::Policy* out);
v1::AttachReply AttachToProto(const AttachResult& result, const TransportTerms& terms,
                              uint32_t protocol);
// `window_extents`: 0 if it is not known.
v1::ExtendReply ExtendToProto(const JobPlan& plan, uint32_t window_extents);

void ToProto(const EpochRecord& epoch, v1::EpochRecord* out);
// Errors: INVALID_ARGUMENT BAD_FRAME: groups other than 0, 1, 2..., slots not ascending, any
// divisor but a positive number.
absl::StatusOr<EpochRecord> EpochFromProto(const v1::EpochRecord& epoch);

// A tenant in the form used by messages: empty for "default".
std::string TenantToProto(const std::string& tenant);
// INVALID_ARGUMENT if the text is neither empty nor a valid name.
absl::StatusOr<std::string> TenantFromProto(const std::string& tenant);

v1::PeerJob PeerJobToProto(const JobPlan& plan);
// Errors: BAD_SPEC of the job's spec; BAD_FRAME of the rest: no servers, servers not ascending, an
// owner not among them, members or contributors out of order.
absl::StatusOr<JobPlan> PeerJobFromProto(const v1::PeerJob& job);
v1::PeerSealed SealedToProto(const SealAnswer& answer);
// A server without the newer field PeerSealed.world_max has room for any world.
SealAnswer SealedFromProto(const v1::PeerSealed& sealed);

v1::PeerRoll RollToProto(const JobRoll& roll);
// Errors of both: INVALID_ARGUMENT: an invalid name or tenant; BAD_FRAME if the servers are not
// ascending.
absl::StatusOr<JobRoll> RollFromProto(const v1::PeerRoll& roll);
v1::PeerRollReply RollAnswerToProto(const RollAnswer& answer);
absl::StatusOr<RollAnswer> RollAnswerFromProto(const v1::PeerRollReply& reply);

// Data, client to server. `presence` of the result has 8 bits per byte received, the last ones
// padding: only the job knows how many tensors there are. Errors: INVALID_ARGUMENT BAD_FRAME for
// more than `presence_bytes_max` bytes of presence.
absl::StatusOr<RoundBegin> BeginFromProto(const v1::RoundBegin& begin, size_t presence_bytes_max);

// Data, server to client.
void ToProto(const RoundDone& done, v1::RoundDone* out);
void ToProto(const FrameRefused& refused, v1::FrameRefused* out);
void ToProto(const StateInfo& info, v1::StateInfo* out);
void ToProto(const TrainerNews& news, v1::TrainerNews* out);

// Admin.
// Includes the last `rounds` of its finished rounds.
void ToProto(const JobStatus& job, uint32_t rounds, v1::JobStatus* out);
void ToProto(const DurableJob& job, v1::DurableJob* out);
void ToProto(const SnapshotInfo& snapshot, v1::Snapshot* out);
void ToProto(const Work& work, v1::Work* out);
void ToProto(const TenantUse& use, v1::Tenant* out);
// The dtype of exported weights; kNoDType: each tensor's own. INVALID_ARGUMENT BAD_ARGUMENT for
// an unknown number.
absl::StatusOr<DType> WeightDType(v1::DType dtype);
// INVALID_ARGUMENT BAD_ARGUMENT: a number unknown to this build.
absl::StatusOr<ExportFormat> FormatFromProto(v1::ExportFormat format);

}  // namespace ballast::server
