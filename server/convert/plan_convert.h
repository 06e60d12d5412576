// A job's plan, its epoch and its tenant <-> the messages that all services share.
// Comes from: the converters of the services, the records on disk. Goes to: server/round.
// All external input is checked for values that the types cannot hold: enum numbers, lengths that
// must agree with each other. Limits of a job are ValidateJobSpec's.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/control.pb.h"
#include "ballast/v1/peer.pb.h"
#include "server/jobs/job_records.h"
#include "server/round/round_types.h"

namespace ballast::server {

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
// A plan as the records on disk have it: this message.
PlanCodec MakePlanCodec();

}  // namespace ballast::server
