#include "server/convert/admin_convert.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "server/convert/peer_convert.h"
#include "server/convert/plan_convert.h"

namespace ballast::server {
namespace {

const char* EndName(RoundEnd end) {
  switch (end) {
    case RoundEnd::kCommitted:
      return "committed";
    case RoundEnd::kSkipped:
      return "skipped";
    case RoundEnd::kHalted:
      return "halted";
  }
  return "unknown";
}

}  // namespace

// --- Jobs ---------------------------------------------------------------------------------------

absl::StatusOr<DeleteJobCall> FromProto(const v1::DeleteJobRequest& request,
                                        const std::string& tenant) {
  return DeleteJobCall{.name = {tenant, request.name()}, .force = request.force()};
}

absl::StatusOr<QualifiedName> FromProto(const v1::RetryJobRequest& request,
                                        const std::string& tenant) {
  return QualifiedName{tenant, request.name()};
}

void ToProto(const DurableJob& job, v1::DurableJob* out) {
  out->set_name(job.name);
  out->set_job(job.job);
  out->set_state(job.state);
  out->set_durability(static_cast<v1::Durability>(job.durability));
  out->set_world(job.world);
  out->set_epoch(job.epoch);
  out->set_round(job.round);
  out->set_parameters(job.parameters);
  out->set_tensors(job.tensors);
  out->set_groups(job.groups);
  out->mutable_servers()->Assign(job.servers.begin(), job.servers.end());
  out->set_open_streams(job.open_streams);
  out->set_disk_bytes(job.disk_bytes);
  out->set_tenant(TenantToProto(job.tenant));
}

void ToProto(const Work& work, v1::Work* out) {
  out->set_kind(work.kind);
  out->set_name(work.name);
  out->set_done_bytes(work.done_bytes);
  out->set_total_bytes(work.total_bytes);
}

void ToProto(const TenantUse& use, v1::Tenant* out) {
  out->set_tenant(use.tenant);
  for (const Resource& resource : Resources()) {
    v1::TenantResource* const added = out->add_resources();
    added->set_resource(resource.key);
    added->set_used(use.used.*resource.amount);
    const uint64_t limit = use.limits.*resource.amount;
    if (limit != kUnlimited) added->set_allowed(limit);
    added->set_bytes(resource.bytes);
  }
}

void ToProto(const JobStatus& job, uint32_t rounds, v1::JobStatus* out) {
  out->set_name(job.name);
  out->set_job(job.job);
  out->set_state(job.state);
  out->set_round(job.round);
  out->set_phase(job.phase);
  out->set_opt_step(job.opt_step);
  out->set_world(job.world);
  out->set_extents(job.extents);
  out->set_owned_extents(job.owned_extents);
  out->set_state_bytes(job.state_bytes);
  out->set_parameters(job.parameters);
  for (const SlotStatus& slot : job.slots) {
    v1::SlotStatus* added = out->add_slots();
    added->set_slot(slot.slot);
    added->set_state(slot.state);
    added->set_owed_extents(slot.owed_extents);
    added->set_first_owed(slot.first_owed);
  }
  out->set_error(job.error);
  out->mutable_votes_missing()->Assign(job.votes_missing.begin(), job.votes_missing.end());
  out->set_tier(job.tier);
  out->set_tenant(TenantToProto(job.tenant));
  const size_t first = job.rounds.size() - std::min<size_t>(job.rounds.size(), rounds);
  for (size_t i = first; i < job.rounds.size(); ++i) {
    const FinishedRound& round = job.rounds[i];
    v1::FinishedRound* added = out->add_rounds();
    added->set_round(round.round);
    added->set_end(EndName(round.end));
    added->set_age_ns(job.now_ns - round.ended_ns);
    added->set_collect_ns(round.collect_ns);
    added->set_vote_ns(round.vote_ns);
    added->set_step_ns(round.step_ns);
    added->set_pushed_bytes(round.pushed_bytes);
    added->set_grad_norm(round.grad_norm);
    added->set_last_slot(round.last_slot);
  }
}

// --- Snapshots ----------------------------------------------------------------------------------

absl::StatusOr<SnapshotRequest> FromProto(const v1::SnapshotRequest& request,
                                          const std::string& tenant) {
  return SnapshotRequest{
      .job = {tenant, request.job()}, .name = request.name(), .keep = request.keep()};
}

void ToProto(const SnapshotInfo& snapshot, v1::Snapshot* out) {
  out->set_job(snapshot.job);
  out->set_name(snapshot.name);
  out->set_id(snapshot.id);
  out->set_round(snapshot.round);
  out->set_created_s(snapshot.created_s);
  out->set_bytes(snapshot.bytes);
  out->set_parameters(snapshot.parameters);
  out->set_world(snapshot.world);
  out->mutable_servers()->Assign(snapshot.servers.begin(), snapshot.servers.end());
  out->set_tenant(TenantToProto(snapshot.tenant));
}

v1::SnapshotReply ReplyOf(const SnapshotInfo& snapshot) {
  v1::SnapshotReply reply;
  ToProto(snapshot, reply.mutable_snapshot());
  return reply;
}

absl::StatusOr<RestoreCall> FromProto(const v1::RestoreSnapshotRequest& request,
                                      const std::string& tenant) {
  RestoreCall call;
  call.tenant = tenant;
  call.job = request.job();
  call.snapshot = request.name();
  call.as = request.as();
  call.world = request.world();
  call.share = request.share();
  return call;
}

v1::RestoreSnapshotReply ReplyOf(const RestoredJob& restored) {
  v1::RestoreSnapshotReply reply;
  ToProto(restored.job, reply.mutable_job());
  reply.set_copied(restored.copied);
  return reply;
}

// --- Exports and imports ------------------------------------------------------------------------

absl::StatusOr<ExportCall> FromProto(const v1::ExportRequest& request, const std::string& tenant) {
  ExportCall call;
  BALLAST_ASSIGN_OR_RETURN(call.dtype, WeightDType(request.dtype()));
  BALLAST_ASSIGN_OR_RETURN(call.format, FormatFromProto(request.format()));
  call.tenant = tenant;
  call.job = request.job();
  call.snapshot = request.snapshot();
  call.name = request.name();
  call.state = request.state() && call.format != ExportFormat::kUniversal;
  call.consolidated = request.consolidated();
  call.torch_optimizer = request.torch_optimizer();
  return call;
}

v1::ExportReply ReplyOf(const ExportInfo& info) {
  v1::ExportReply reply;
  reply.set_job(info.job);
  reply.set_name(info.name);
  reply.set_directory(info.directory);
  reply.set_round(info.round);
  reply.set_bytes(info.bytes);
  reply.set_files(info.files);
  reply.set_tensors(info.tensors);
  reply.set_parameters(info.parameters);
  reply.set_state(info.state);
  return reply;
}

absl::StatusOr<ImportCall> FromProto(const v1::ImportRequest& request, const std::string& tenant) {
  return ImportCall{tenant, request.from(), request.as(), request.world()};
}

v1::ImportReply ReplyOf(const ImportInfo& info) {
  v1::ImportReply reply;
  ToProto(info.job, reply.mutable_job());
  reply.set_state(info.state);
  reply.set_bytes(info.bytes);
  return reply;
}

}  // namespace ballast::server
