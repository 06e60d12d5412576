// Messages of the Peer service <-> calls between servers. Both ways of a message stand next to each
// other: a new field is two lines here.
// Comes from: peer_client, peer_service. Goes to: the interfaces of server/jobs/peer_calls.h.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/v1/peer.pb.h"
#include "server/convert/plan_convert.h"
#include "server/jobs/peer_calls.h"

namespace ballast::server {

inline v1::PeerJob ToProto(const JobPlan& plan) { return PeerJobToProto(plan); }
inline absl::StatusOr<JobPlan> FromProto(const v1::PeerJob& job) { return PeerJobFromProto(job); }

v1::PeerSeal ToProto(const SealCall& call);
absl::StatusOr<SealCall> FromProto(const v1::PeerSeal& seal);
v1::PeerSealed ToProto(const SealAnswer& answer);
// A server without the newer field world_max has room for any world.
absl::StatusOr<SealAnswer> FromProto(const v1::PeerSealed& sealed);

v1::PeerDropJob DropToProto(uint64_t job);
absl::StatusOr<uint64_t> FromProto(const v1::PeerDropJob& drop);
v1::PeerJobs ToProto(const std::vector<uint64_t>& jobs);
absl::StatusOr<std::vector<uint64_t>> FromProto(const v1::PeerJobs& jobs);

v1::PeerRoll ToProto(const JobRoll& roll);
// Errors of both: INVALID_ARGUMENT: an invalid name or tenant; BAD_FRAME if the servers are not
// ascending.
absl::StatusOr<JobRoll> FromProto(const v1::PeerRoll& roll);
v1::PeerRollReply ToProto(const RollAnswer& answer);
absl::StatusOr<RollAnswer> FromProto(const v1::PeerRollReply& reply);

v1::PeerSnapshot ToProto(const SnapshotCall& call);
// Errors of this and the next two calls: INVALID_ARGUMENT BAD_ARGUMENT for an unknown number; an
// invalid tenant; those of PeerJobFromProto.
absl::StatusOr<SnapshotCall> FromProto(const v1::PeerSnapshot& message);
// The round before stays at the server that captured it.
v1::PeerSnapshotReply ToProto(const SnapshotAnswer& answer);
absl::StatusOr<SnapshotAnswer> FromProto(const v1::PeerSnapshotReply& reply);

v1::PeerRestoreJob ToProto(const RestoreOrder& order);
absl::StatusOr<RestoreOrder> FromProto(const v1::PeerRestoreJob& message);
// RestoredJob::copied.
v1::PeerRestored CopiedToProto(const std::string& copied);
absl::StatusOr<std::string> FromProto(const v1::PeerRestored& reply);

v1::PeerExport ToProto(const ExportPart& part);
absl::StatusOr<ExportPart> FromProto(const v1::PeerExport& message);
v1::PeerImportJob ToProto(const ImportOrder& order);
absl::StatusOr<ImportOrder> FromProto(const v1::PeerImportJob& message);

// The dtype of exported weights; kNoDType: each tensor's own. INVALID_ARGUMENT BAD_ARGUMENT for
// an unknown number.
absl::StatusOr<DType> WeightDType(v1::DType dtype);
// INVALID_ARGUMENT BAD_ARGUMENT: a number unknown to this build.
absl::StatusOr<ExportFormat> FormatFromProto(v1::ExportFormat format);

}  // namespace ballast::server
