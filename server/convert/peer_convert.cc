#include "server/convert/peer_convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"
#include "proto/convert/status_convert.h"

namespace ballast::server {
namespace {

void Write(const RolledJob& job, v1::RolledJob* out) {
  out->set_job(job.job);
  out->set_name(job.name.name);
  out->set_tenant(TenantToProto(job.name.tenant));
  out->mutable_servers()->Assign(job.servers.begin(), job.servers.end());
  out->set_begun(job.begun);
}

absl::StatusOr<RolledJob> Read(const v1::RolledJob& job) {
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
    BALLAST_ASSIGN_OR_RETURN(RolledJob one, Read(job));
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace

// --- Jobs and epochs ----------------------------------------------------------------------------

v1::PeerSeal ToProto(const SealCall& call) {
  v1::PeerSeal out;
  out.set_job(call.job);
  out.set_epoch(call.epoch);
  out.set_world(call.world);
  return out;
}

absl::StatusOr<SealCall> FromProto(const v1::PeerSeal& seal) {
  return SealCall{.job = seal.job(), .epoch = seal.epoch(), .world = seal.world()};
}

v1::PeerSealed ToProto(const SealAnswer& answer) {
  v1::PeerSealed sealed;
  sealed.set_version(answer.version);
  sealed.set_prepared(answer.prepared);
  sealed.set_init_missing(answer.init_missing);
  sealed.set_world_max(answer.world_max);
  if (!answer.refusal.ok()) *sealed.mutable_refusal() = DetailOf(answer.refusal);
  return sealed;
}

absl::StatusOr<SealAnswer> FromProto(const v1::PeerSealed& sealed) {
  SealAnswer answer{sealed.version(), sealed.prepared(), sealed.init_missing()};
  if (sealed.world_max() != 0) answer.world_max = sealed.world_max();
  if (sealed.has_refusal()) answer.refusal = FromDetail(sealed.refusal());
  return answer;
}

v1::PeerDropJob DropToProto(uint64_t job) {
  v1::PeerDropJob out;
  out.set_job(job);
  return out;
}

absl::StatusOr<uint64_t> FromProto(const v1::PeerDropJob& drop) { return drop.job(); }

v1::PeerJobs ToProto(const std::vector<uint64_t>& jobs) {
  v1::PeerJobs out;
  out.mutable_jobs()->Add(jobs.begin(), jobs.end());
  return out;
}

absl::StatusOr<std::vector<uint64_t>> FromProto(const v1::PeerJobs& jobs) {
  return std::vector<uint64_t>(jobs.jobs().begin(), jobs.jobs().end());
}

// --- Rolls --------------------------------------------------------------------------------------

v1::PeerRoll ToProto(const JobRoll& roll) {
  v1::PeerRoll out;
  out.set_server(roll.server);
  for (const RolledJob& job : roll.jobs) Write(job, out.add_jobs());
  return out;
}

absl::StatusOr<JobRoll> FromProto(const v1::PeerRoll& roll) {
  JobRoll out{.server = roll.server()};
  BALLAST_ASSIGN_OR_RETURN(out.jobs, AllFromProto(roll.jobs()));
  return out;
}

v1::PeerRollReply ToProto(const RollAnswer& answer) {
  v1::PeerRollReply out;
  for (const RolledJob& job : answer.lacking) Write(job, out.add_lacking());
  out.mutable_unknown()->Assign(answer.unknown.begin(), answer.unknown.end());
  return out;
}

absl::StatusOr<RollAnswer> FromProto(const v1::PeerRollReply& reply) {
  RollAnswer out;
  BALLAST_ASSIGN_OR_RETURN(out.lacking, AllFromProto(reply.lacking()));
  out.unknown.assign(reply.unknown().begin(), reply.unknown().end());
  return out;
}

// --- Snapshots ----------------------------------------------------------------------------------

v1::PeerSnapshot ToProto(const SnapshotCall& call) {
  v1::PeerSnapshot message;
  message.set_job(call.job);
  message.set_snapshot(call.snapshot);
  message.set_step(static_cast<v1::SnapshotStep>(call.step));
  message.set_round(call.round);
  message.set_tenant(TenantToProto(call.tenant));
  return message;
}

absl::StatusOr<SnapshotCall> FromProto(const v1::PeerSnapshot& message) {
  if (message.step() == v1::SNAPSHOT_STEP_UNSPECIFIED ||
      !v1::SnapshotStep_IsValid(message.step())) {
    return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
                         absl::StrCat("a snapshot has no step ", static_cast<int>(message.step())));
  }
  SnapshotCall call;
  call.job = message.job();
  call.snapshot = message.snapshot();
  call.step = static_cast<SnapshotCall::Step>(message.step());
  call.round = message.round();
  BALLAST_ASSIGN_OR_RETURN(call.tenant, TenantFromProto(message.tenant()));
  return call;
}

v1::PeerSnapshotReply ToProto(const SnapshotAnswer& answer) {
  v1::PeerSnapshotReply reply;
  reply.set_round(answer.round);
  return reply;
}

absl::StatusOr<SnapshotAnswer> FromProto(const v1::PeerSnapshotReply& reply) {
  return SnapshotAnswer{.round = reply.round(), .before = {}};
}

// --- Jobs out of files, and back ----------------------------------------------------------------

v1::PeerRestoreJob ToProto(const RestoreOrder& order) {
  v1::PeerRestoreJob message;
  *message.mutable_job() = PeerJobToProto(order.plan);
  message.set_snapshot(order.snapshot);
  message.set_share(order.share);
  return message;
}

absl::StatusOr<RestoreOrder> FromProto(const v1::PeerRestoreJob& message) {
  RestoreOrder order;
  BALLAST_ASSIGN_OR_RETURN(order.plan, PeerJobFromProto(message.job()));
  order.snapshot = message.snapshot();
  order.share = message.share();
  return order;
}

v1::PeerRestored CopiedToProto(const std::string& copied) {
  v1::PeerRestored reply;
  reply.set_copied(copied);
  return reply;
}

absl::StatusOr<std::string> FromProto(const v1::PeerRestored& reply) { return reply.copied(); }

v1::PeerExport ToProto(const ExportPart& part) {
  v1::PeerExport message;
  message.set_snapshot(part.snapshot);
  message.set_name(part.name);
  message.set_dtype(static_cast<v1::DType>(part.options.dtype));
  message.set_state(part.options.state);
  message.set_shard(part.shard);
  message.set_shards(part.options.shards);
  message.set_format(static_cast<v1::ExportFormat>(part.options.format));
  message.set_torch_optimizer(part.options.torch_optimizer);
  message.set_tenant(TenantToProto(part.tenant));
  return message;
}

absl::StatusOr<ExportPart> FromProto(const v1::PeerExport& message) {
  ExportPart part;
  part.snapshot = message.snapshot();
  part.name = message.name();
  BALLAST_ASSIGN_OR_RETURN(part.options.dtype, WeightDType(message.dtype()));
  part.options.state = message.state();
  part.shard = message.shard();
  part.options.shards = message.shards();
  BALLAST_ASSIGN_OR_RETURN(part.options.format, FormatFromProto(message.format()));
  part.options.torch_optimizer = message.torch_optimizer();
  BALLAST_ASSIGN_OR_RETURN(part.tenant, TenantFromProto(message.tenant()));
  return part;
}

v1::PeerImportJob ToProto(const ImportOrder& order) {
  v1::PeerImportJob message;
  *message.mutable_job() = PeerJobToProto(order.plan);
  message.set_from(order.from);
  message.set_state(order.state);
  return message;
}

absl::StatusOr<ImportOrder> FromProto(const v1::PeerImportJob& message) {
  ImportOrder order;
  BALLAST_ASSIGN_OR_RETURN(order.plan, PeerJobFromProto(message.job()));
  order.from = message.from();
  order.state = message.state();
  return order;
}

absl::StatusOr<DType> WeightDType(v1::DType dtype) {
  if (v1::DType_IsValid(dtype)) return static_cast<DType>(dtype);
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
                       absl::StrCat("weights have no dtype ", static_cast<int>(dtype)));
}

absl::StatusOr<ExportFormat> FormatFromProto(v1::ExportFormat format) {
  if (v1::ExportFormat_IsValid(format)) return static_cast<ExportFormat>(format);
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
                       absl::StrCat("this server knows no export format ", static_cast<int>(format),
                                    "; it knows 0 and 1"));
}

}  // namespace ballast::server
