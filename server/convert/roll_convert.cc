// The durable jobs compared between two servers; see convert.h.
#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"
#include "server/convert/convert.h"

namespace ballast::server {
namespace {

void ToProto(const RolledJob& job, v1::RolledJob* out) {
  out->set_job(job.job);
  out->set_name(job.name.name);
  out->set_tenant(TenantToProto(job.name.tenant));
  out->mutable_servers()->Assign(job.servers.begin(), job.servers.end());
  out->set_begun(job.begun);
}

absl::StatusOr<RolledJob> FromProto(const v1::RolledJob& job) {
  RolledJob out{.job = job.job(), .begun = job.begun()};
  BALLAST_RETURN_IF_ERROR(ValidateName("job name", job.name()));
  out.name.name = job.name();
  BALLAST_ASSIGN_OR_RETURN(out.name.tenant, TenantFromProto(job.tenant()));
  out.servers.assign(job.servers().begin(), job.servers().end());
  const auto descent = std::adjacent_find(out.servers.begin(), out.servers.end(),
                                          [](uint32_t a, uint32_t b) { return a >= b; });
  if (!out.servers.empty() && descent == out.servers.end()) return out;
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadFrame,
                       "the servers of a job in a roll are not ascending", {.job = job.name()});
}

absl::StatusOr<std::vector<RolledJob>> AllFromProto(
    const google::protobuf::RepeatedPtrField<v1::RolledJob>& jobs) {
  std::vector<RolledJob> out;
  for (const v1::RolledJob& job : jobs) {
    BALLAST_ASSIGN_OR_RETURN(RolledJob one, FromProto(job));
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace

v1::PeerRoll RollToProto(const JobRoll& roll) {
  v1::PeerRoll out;
  out.set_server(roll.server);
  for (const RolledJob& job : roll.jobs) ToProto(job, out.add_jobs());
  return out;
}

absl::StatusOr<JobRoll> RollFromProto(const v1::PeerRoll& roll) {
  JobRoll out{.server = roll.server()};
  BALLAST_ASSIGN_OR_RETURN(out.jobs, AllFromProto(roll.jobs()));
  return out;
}

v1::PeerRollReply RollAnswerToProto(const RollAnswer& answer) {
  v1::PeerRollReply out;
  for (const RolledJob& job : answer.lacking) ToProto(job, out.add_lacking());
  out.mutable_unknown()->Assign(answer.unknown.begin(), answer.unknown.end());
  return out;
}

absl::StatusOr<RollAnswer> RollAnswerFromProto(const v1::PeerRollReply& reply) {
  RollAnswer out;
  BALLAST_ASSIGN_OR_RETURN(out.lacking, AllFromProto(reply.lacking()));
  out.unknown.assign(reply.unknown().begin(), reply.unknown().end());
  return out;
}

}  // namespace ballast::server
