#include "server/service/admin_service.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/reason.h"
#include "common/base/recent_log.h"
#include "proto/convert/methods.h"
#include "server/convert/convert.h"
#include "server/service/tenant_choice.h"
#include "server/stream/unary_call.h"

namespace ballast::server {

namespace {

// `count` of the events, and faults of files.
void AddForAdmins(uint32_t count, const ServerFacts& facts, v1::StatusReply* reply) {
  for (const std::string& fault : facts.file_faults) reply->add_file_faults(fault);
  if (count == 0) return;
  const std::vector<LogRecord> records = ProcessLog().All();
  for (size_t i = records.size() - std::min<size_t>(records.size(), count); i < records.size();
       ++i) {
    v1::Event* added = reply->add_events();
    added->set_time_us(records[i].time_us);
    added->set_severity(records[i].severity);
    added->set_text(records[i].text);
  }
}

// Facts that all tenants share.
void AddServer(const ServerFacts& facts, const OperatorDoor& door, v1::StatusReply* reply) {
  reply->set_resident_bytes(static_cast<uint64_t>(facts.resident_bytes));
  reply->set_explained_bytes(facts.explained_bytes);
  reply->set_jobs_max(facts.jobs_max);
  reply->set_memory_used_bytes(door.memory_used_bytes());
  reply->set_memory_budget_bytes(door.memory_budget_bytes());
  for (const auto& work : door.ListWorks()) ToProto(*work, reply->add_works());
}

void AddDisk(const DiskState& disk, v1::StatusReply* reply) {
  v1::DiskStatus* added = reply->add_disks();
  added->set_directory(disk.directory);
  added->set_answers(disk.answers);
  added->set_free_bytes(static_cast<uint64_t>(disk.free_bytes));
  added->set_size_bytes(static_cast<uint64_t>(disk.size_bytes));
  added->set_waits_ns(static_cast<uint64_t>(disk.waits.count()));
}

// Jobs that count for limits.max_jobs.
uint32_t UnderWay(const std::vector<JobStatus>& jobs) {
  return static_cast<uint32_t>(std::count_if(jobs.begin(), jobs.end(), [](const JobStatus& job) {
    return job.state == "attaching" || job.state == "running";
  }));
}

}  // namespace

void CollectStatus(const DirectoryHolder& directory, const ServerFacts& facts,
                   const v1::StatusRequest& request, const Caller& caller,
                   std::function<void(v1::StatusReply)> done) {
  v1::StatusReply reply;
  reply.set_id(facts.id);
  reply.set_version(facts.version);
  reply.set_address(facts.address);
  reply.set_isa(facts.isa);
  reply.set_instead(facts.instead);
  const bool whole = !caller.secured || caller.identity.role == Role::kAdmin;
  if (whole) AddForAdmins(request.events(), facts, &reply);
  reply.set_up_ns(static_cast<uint64_t>(facts.up.count()));
  for (const PeerState& peer : facts.peers) {
    v1::PeerStatus* added = reply.add_peers();
    added->set_id(peer.id);
    added->set_address(peer.address);
    added->set_reachable(peer.reachable);
    if (whole) added->set_admin(peer.admin);
  }
  for (const DiskState& disk : facts.disks) AddDisk(disk, &reply);
  for (const std::string& problem : facts.cluster_problems) reply.add_cluster_problems(problem);
  const auto door = directory.operators();
  if (!door.ok()) {
    done(std::move(reply));
    return;
  }
  reply.set_serving(facts.instead.empty());
  if (whole) AddServer(facts, **door, &reply);
  (*door)->Status([reply = std::move(reply), rounds = request.rounds(), caller,
                   done = std::move(done)](const std::vector<JobStatus>& jobs) mutable {
    if (reply.jobs_max() > 0) reply.set_jobs_under_way(UnderWay(jobs));
    for (const JobStatus& job : jobs) {
      if (caller.Sees(job.tenant)) ToProto(job, rounds, reply.add_jobs());
    }
    done(std::move(reply));
  });
}

namespace {

void ListJobs(const std::shared_ptr<OperatorDoor>& door, const std::shared_ptr<UnaryCall>& call,
              const v1::ListJobsRequest& request) {
  const auto tenant = TenantOfList(call->caller(), request.tenant());
  if (!tenant.ok()) return call->Fail(tenant.status());
  door->ListJobs([call, tenant = *tenant](const absl::StatusOr<DurableJobs>& jobs) {
    if (!jobs.ok()) return call->Fail(jobs.status());
    v1::ListJobsReply reply;
    for (const DurableJob& job : *jobs) {
      if (job.tenant == tenant.value_or(job.tenant)) ToProto(job, reply.add_jobs());
    }
    call->Reply(reply);
  });
}

void ListTenants(const std::shared_ptr<OperatorDoor>& door, const std::shared_ptr<UnaryCall>& call,
                 const v1::ListTenantsRequest&) {
  const Caller& caller = call->caller();
  const bool all = !caller.secured || caller.identity.role == Role::kAdmin;
  v1::ListTenantsReply reply;
  for (const TenantUse& use :
       all ? door->TenantUses() : std::vector<TenantUse>{door->TenantUseOf(caller.tenant())}) {
    ToProto(use, reply.add_tenants());
  }
  call->Reply(reply);
}

void DeleteJob(const std::shared_ptr<OperatorDoor>& door, const std::shared_ptr<UnaryCall>& call,
               const v1::DeleteJobRequest& request, const std::string& tenant) {
  const Caller& caller = call->caller();
  if (request.force() && caller.secured && caller.identity.role == Role::kTrainer) {
    return call->Fail(ReasonedError(absl::StatusCode::kPermissionDenied, Reason::kNotPermitted,
                                    "a trainer deletes no job with force, while trainers are "
                                    "attached to it; that takes an operator"));
  }
  const auto deleted = [call](const absl::Status& status) {
    if (!status.ok()) return call->Fail(status);
    call->Reply(v1::DeleteJobReply());
  };
  door->DeleteJob({tenant, request.name()}, request.force(), deleted);
}

void RetryJob(const std::shared_ptr<OperatorDoor>& door, const std::shared_ptr<UnaryCall>& call,
              const v1::RetryJobRequest& request, const std::string& tenant) {
  door->RetryJob({tenant, request.name()}, [call](const absl::StatusOr<bool>& opened) {
    if (!opened.ok()) return call->Fail(opened.status());
    v1::RetryJobReply reply;
    reply.set_opened(*opened);
    call->Reply(reply);
  });
}

uint64_t MillisecondsSince(absl::Time began) {
  return static_cast<uint64_t>(
      std::max<int64_t>(absl::ToInt64Milliseconds(absl::Now() - began), 0));
}

using SnapshotDone = std::function<void(absl::StatusOr<SnapshotInfo>)>;

SnapshotDone ReplyWith(const std::shared_ptr<UnaryCall>& call) {
  return [call](const absl::StatusOr<SnapshotInfo>& snapshot) {
    if (!snapshot.ok()) return call->Fail(snapshot.status());
    v1::SnapshotReply reply;
    ToProto(*snapshot, reply.mutable_snapshot());
    call->Reply(reply);
  };
}

void CreateSnapshot(const std::shared_ptr<OperatorDoor>& door,
                    const std::shared_ptr<UnaryCall>& call, const v1::SnapshotRequest& request,
                    const std::string& tenant) {
  door->CreateSnapshot({tenant, request.job()}, request.name(), request.keep(), ReplyWith(call));
}

void VerifySnapshot(const std::shared_ptr<OperatorDoor>& door,
                    const std::shared_ptr<UnaryCall>& call, const v1::SnapshotRequest& request,
                    const std::string& tenant) {
  door->VerifySnapshot({tenant, request.job()}, request.name(), ReplyWith(call));
}

void DeleteSnapshot(const std::shared_ptr<OperatorDoor>& door,
                    const std::shared_ptr<UnaryCall>& call, const v1::SnapshotRequest& request,
                    const std::string& tenant) {
  door->DeleteSnapshot({tenant, request.job()}, request.name(), ReplyWith(call));
}

void ListSnapshots(const std::shared_ptr<OperatorDoor>& door,
                   const std::shared_ptr<UnaryCall>& call,
                   const v1::ListSnapshotsRequest& request) {
  const auto tenant = TenantOfList(call->caller(), request.tenant());
  if (!tenant.ok()) return call->Fail(tenant.status());
  door->ListSnapshots({*tenant, request.job()},
                      [call](const absl::StatusOr<std::vector<SnapshotInfo>>& snapshots) {
                        if (!snapshots.ok()) return call->Fail(snapshots.status());
                        v1::ListSnapshotsReply reply;
                        for (const SnapshotInfo& snapshot : *snapshots)
                          ToProto(snapshot, reply.add_snapshots());
                        call->Reply(reply);
                      });
}

void RestoreSnapshot(const std::shared_ptr<OperatorDoor>& door,
                     const std::shared_ptr<UnaryCall>& call,
                     const v1::RestoreSnapshotRequest& request, const std::string& tenant) {
  RestoreCall restore;
  restore.tenant = tenant;
  restore.job = request.job();
  restore.snapshot = request.name();
  restore.as = request.as();
  restore.world = request.world();
  restore.share = request.share();
  door->RestoreSnapshot(restore, [call](const absl::StatusOr<RestoredJob>& restored) {
    if (!restored.ok()) return call->Fail(restored.status());
    v1::RestoreSnapshotReply reply;
    ToProto(restored->job, reply.mutable_job());
    reply.set_copied(restored->copied);
    call->Reply(reply);
  });
}

void Export(const std::shared_ptr<OperatorDoor>& door, const std::shared_ptr<UnaryCall>& call,
            const v1::ExportRequest& request, const std::string& tenant) {
  const absl::StatusOr<DType> dtype = WeightDType(request.dtype());
  if (!dtype.ok()) return call->Fail(dtype.status());
  const absl::StatusOr<ExportFormat> format = FormatFromProto(request.format());
  if (!format.ok()) return call->Fail(format.status());
  const bool universal = *format == ExportFormat::kUniversal;
  const ExportCall what{.tenant = tenant,
                        .job = request.job(),
                        .snapshot = request.snapshot(),
                        .name = request.name(),
                        .dtype = *dtype,
                        .state = request.state() && !universal,
                        .consolidated = request.consolidated(),
                        .format = *format,
                        .torch_optimizer = request.torch_optimizer()};
  door->Export(what, [call, request, began = absl::Now()](const absl::StatusOr<ExportInfo>& info) {
    if (!info.ok()) return call->Fail(info.status());
    v1::ExportReply reply;
    reply.set_job(request.job());
    reply.set_name(request.name());
    reply.set_directory(info->directory);
    reply.set_round(info->round);
    reply.set_bytes(info->bytes);
    reply.set_files(info->files);
    reply.set_tensors(info->tensors);
    reply.set_parameters(info->parameters);
    reply.set_state(request.state() || request.format() != v1::EXPORT_FORMAT_SAFETENSORS);
    reply.set_milliseconds(MillisecondsSince(began));
    call->Reply(reply);
  });
}

void Import(const std::shared_ptr<OperatorDoor>& door, const std::shared_ptr<UnaryCall>& call,
            const v1::ImportRequest& request, const std::string& tenant) {
  const ImportCall what{tenant, request.from(), request.as(), request.world()};
  door->Import(what, [call, began = absl::Now()](const absl::StatusOr<ImportInfo>& info) {
    if (!info.ok()) return call->Fail(info.status());
    v1::ImportReply reply;
    ToProto(info->job, reply.mutable_job());
    reply.set_state(info->state);
    reply.set_bytes(info->bytes);
    reply.set_milliseconds(MillisecondsSince(began));
    call->Reply(reply);
  });
}

constexpr size_t kAuditedNameBytesMax = 128;

// The job named in a line of the audit log.
const std::string& AuditedJob(const v1::DeleteJobRequest& request) { return request.name(); }
const std::string& AuditedJob(const v1::RetryJobRequest& request) { return request.name(); }
const std::string& AuditedJob(const v1::ImportRequest& request) { return request.as(); }
template <typename Request>
const std::string& AuditedJob(const Request& request) {
  return request.job();
}

// A method that parses its request and passes it to the operators' door.
template <typename Request>
void AddListMethod(MethodRegistry* server, const char* name, const DirectoryHolder* holder,
                   void (*method)(const std::shared_ptr<OperatorDoor>&,
                                  const std::shared_ptr<UnaryCall>&, const Request&)) {
  server->AddMethod(name, UnaryCall::Factory([holder, method](auto call, const auto& bytes) {
                      Request request;
                      if (!call->Parse(bytes, &request)) return;
                      const auto door = holder->operators();
                      if (!door.ok()) return call->Fail(door.status());
                      method(*door, call, request);
                    }));
}

// Likewise, for a method about one tenant's objects.
template <typename Request>
void AddMethod(MethodRegistry* server, const char* name, const DirectoryHolder* holder,
               void (*method)(const std::shared_ptr<OperatorDoor>&,
                              const std::shared_ptr<UnaryCall>&, const Request&,
                              const std::string& tenant)) {
  server->AddMethod(name, UnaryCall::Factory([holder, method](auto call, const auto& bytes) {
                      Request request;
                      if (!call->Parse(bytes, &request)) return;
                      const absl::StatusOr<std::string> tenant =
                          TenantOfCall(call->caller(), request.tenant());
                      if (!tenant.ok()) return call->Fail(tenant.status());
                      // The name was not checked yet.
                      const std::string job = AuditedJob(request).substr(0, kAuditedNameBytesMax);
                      call->SetAuditedJob(QualifiedName{*tenant, job}.Text());
                      const auto door = holder->operators();
                      if (!door.ok()) return call->Fail(door.status());
                      method(*door, call, request, *tenant);
                    }));
}

}  // namespace

void AddAdminMethods(MethodRegistry* server, const DirectoryHolder* directory,
                     std::function<ServerFacts()> facts) {
  server->AddMethod(
      method::kAdminStatus, UnaryCall::Factory([directory, facts](auto call, const auto& bytes) {
        v1::StatusRequest request;
        if (!call->Parse(bytes, &request)) return;
        CollectStatus(*directory, facts(), request, call->caller(), [call](v1::StatusReply reply) {
          for (v1::JobStatus& job : *reply.mutable_jobs()) {
            job.set_error(call->places().Outward(job.error()));
          }
          call->Reply(reply);
        });
      }));
  AddListMethod(server, method::kAdminListJobs, directory, &ListJobs);
  AddMethod(server, method::kAdminDeleteJob, directory, &DeleteJob);
  AddMethod(server, method::kAdminRetryJob, directory, &RetryJob);
  AddMethod(server, method::kAdminCreateSnapshot, directory, &CreateSnapshot);
  AddListMethod(server, method::kAdminListSnapshots, directory, &ListSnapshots);
  AddMethod(server, method::kAdminVerifySnapshot, directory, &VerifySnapshot);
  AddMethod(server, method::kAdminDeleteSnapshot, directory, &DeleteSnapshot);
  AddMethod(server, method::kAdminRestoreSnapshot, directory, &RestoreSnapshot);
  AddMethod(server, method::kAdminExport, directory, &Export);
  AddMethod(server, method::kAdminImport, directory, &Import);
  AddListMethod(server, method::kAdminListTenants, directory, &ListTenants);
}

void AddReloadMethod(MethodRegistry* server, Executor* executor,
                     std::function<std::vector<FileOutcome>()> reload) {
  server->AddMethod(method::kAdminReload,
                    UnaryCall::Factory([executor, reload](auto call, const auto& bytes) {
                      v1::ReloadRequest request;
                      if (!call->Parse(bytes, &request)) return;
                      executor->Post([call, reload] {
                        v1::ReloadReply reply;
                        for (const FileOutcome& file : reload()) {
                          v1::ReloadedFile* added = reply.add_files();
                          added->set_setting(file.setting);
                          added->set_path(file.path);
                          added->set_error(std::string(file.status.message()));
                        }
                        call->Reply(reply);
                      });
                    }));
}

}  // namespace ballast::server
