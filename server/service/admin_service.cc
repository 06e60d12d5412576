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
#include "server/convert/admin_convert.h"
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
void AddServer(const ServerFacts& facts, const ServerLoad& load, v1::StatusReply* reply) {
  reply->set_resident_bytes(static_cast<uint64_t>(facts.resident_bytes));
  reply->set_explained_bytes(facts.explained_bytes);
  reply->set_jobs_max(facts.jobs_max);
  reply->set_memory_used_bytes(load.memory_used_bytes);
  reply->set_memory_budget_bytes(load.memory_budget_bytes);
  for (const auto& work : load.works) ToProto(*work, reply->add_works());
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
  const auto jobs = directory.Get(&JobApis::jobs);
  if (!jobs.ok()) {
    done(std::move(reply));
    return;
  }
  reply.set_serving(facts.instead.empty());
  if (whole) AddServer(facts, (*jobs)->Load(), &reply);
  (*jobs)->Status([reply = std::move(reply), rounds = request.rounds(), caller,
                   done = std::move(done)](const std::vector<JobStatus>& all) mutable {
    if (reply.jobs_max() > 0) reply.set_jobs_under_way(UnderWay(all));
    for (const JobStatus& job : all) {
      if (caller.Sees(job.tenant)) ToProto(job, rounds, reply.add_jobs());
    }
    done(std::move(reply));
  });
}

namespace {

using Call = std::shared_ptr<UnaryCall>;

void ListJobs(const std::shared_ptr<JobsApi>& jobs, const Call& call,
              const v1::ListJobsRequest& request) {
  const auto tenant = TenantOfList(call->caller(), request.tenant());
  if (!tenant.ok()) return call->Fail(tenant.status());
  jobs->ListJobs([call, tenant = *tenant](const absl::StatusOr<DurableJobs>& all) {
    if (!all.ok()) return call->Fail(all.status());
    v1::ListJobsReply reply;
    for (const DurableJob& job : *all) {
      if (job.tenant == tenant.value_or(job.tenant)) ToProto(job, reply.add_jobs());
    }
    call->Reply(reply);
  });
}

void ListTenants(const std::shared_ptr<const Quotas>& quotas, const Call& call,
                 const v1::ListTenantsRequest&) {
  const Caller& caller = call->caller();
  const bool all = !caller.secured || caller.identity.role == Role::kAdmin;
  v1::ListTenantsReply reply;
  for (const TenantUse& use :
       all ? quotas->Uses() : std::vector<TenantUse>{quotas->UseOf(caller.tenant())}) {
    ToProto(use, reply.add_tenants());
  }
  call->Reply(reply);
}

void ListSnapshots(const std::shared_ptr<SnapshotApi>& snapshots, const Call& call,
                   const v1::ListSnapshotsRequest& request) {
  const auto tenant = TenantOfList(call->caller(), request.tenant());
  if (!tenant.ok()) return call->Fail(tenant.status());
  snapshots->ListSnapshots({*tenant, request.job()},
                           [call](const absl::StatusOr<std::vector<SnapshotInfo>>& all) {
                             if (!all.ok()) return call->Fail(all.status());
                             v1::ListSnapshotsReply reply;
                             for (const SnapshotInfo& snapshot : *all) {
                               ToProto(snapshot, reply.add_snapshots());
                             }
                             call->Reply(reply);
                           });
}

// Whether the role of the caller allows this request; the method itself is allowed to its role.
template <typename Request>
absl::Status CheckRole(const Caller&, const Request&) {
  return absl::OkStatus();
}
absl::Status CheckRole(const Caller& caller, const v1::DeleteJobRequest& request) {
  if (!request.force() || !caller.secured || caller.identity.role != Role::kTrainer) {
    return absl::OkStatus();
  }
  return ReasonedError(absl::StatusCode::kPermissionDenied, Reason::kNotPermitted,
                       "a trainer deletes no job with force, while trainers are "
                       "attached to it; that takes an operator");
}

uint64_t MillisecondsSince(absl::Time began) {
  return static_cast<uint64_t>(
      std::max<int64_t>(absl::ToInt64Milliseconds(absl::Now() - began), 0));
}

v1::RetryJobReply ReplyOf(bool opened) {
  v1::RetryJobReply reply;
  reply.set_opened(opened);
  return reply;
}

void Answer(const Call& call, absl::Time, const absl::Status& status) {
  status.ok() ? call->Reply(v1::DeleteJobReply()) : call->Fail(status);
}
template <typename T>
void Answer(const Call& call, absl::Time began, const absl::StatusOr<T>& answer) {
  if (!answer.ok()) return call->Fail(answer.status());
  auto reply = ReplyOf(*answer);
  if constexpr (requires { reply.milliseconds(); })
    reply.set_milliseconds(MillisecondsSince(began));
  call->Reply(reply);
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

class AdminMethods {
 public:
  AdminMethods(MethodRegistry* server, const DirectoryHolder* directory)
      : server_(server), directory_(directory) {}

  // A method that answers with a list: `handler` chooses from it.
  template <typename Api, typename Request>
  void AddList(const char* name, Api* JobApis::*api,
               void (*handler)(const std::shared_ptr<Api>&, const Call&, const Request&)) {
    server_->AddMethod(name, UnaryCall::Factory([directory = directory_, api, handler](
                                                    auto call, const auto& bytes) {
                         Request request;
                         if (!call->Parse(bytes, &request)) return;
                         const auto part = directory->Get(api);
                         part.ok() ? handler(*part, call, request) : call->Fail(part.status());
                       }));
  }

  // A method about one tenant's objects: FromProto of its request goes to `method`, and ReplyOf the
  // answer back.
  template <typename Request, typename Api, typename Value, typename Result>
  void Add(const char* name, Api* JobApis::*api,
           void (Api::*method)(Value, std::function<void(Result)>)) {
    server_->AddMethod(
        name, UnaryCall::Factory([directory = directory_, api, method](const Call& call,
                                                                       const auto& bytes) {
          Request request;
          if (!call->Parse(bytes, &request)) return;
          const absl::StatusOr<std::string> tenant = TenantOfCall(call->caller(), request.tenant());
          if (!tenant.ok()) return call->Fail(tenant.status());
          // The name was not checked yet.
          const std::string job = AuditedJob(request).substr(0, kAuditedNameBytesMax);
          call->SetAuditedJob(QualifiedName{*tenant, job}.Text());
          const auto part = directory->Get(api);
          if (!part.ok()) return call->Fail(part.status());
          const absl::Status allowed = CheckRole(call->caller(), request);
          if (!allowed.ok()) return call->Fail(allowed);
          const absl::StatusOr<Value> value = FromProto(request, *tenant);
          if (!value.ok()) return call->Fail(value.status());
          ((**part).*method)(*value, [call, began = absl::Now()](const Result& result) {
            Answer(call, began, result);
          });
        }));
  }

 private:
  MethodRegistry* const server_;
  const DirectoryHolder* const directory_;
};

}  // namespace

void AddAdminMethods(MethodRegistry* server, const DirectoryHolder* directory,
                     std::function<ServerFacts()> facts) {
  server->AddMethod(
      method::kAdminStatus, UnaryCall::Factory([directory, facts](auto call, const auto& bytes) {
        v1::StatusRequest request;
        if (!call->Parse(bytes, &request)) return;
        CollectStatus(*directory, facts(), request, call->caller(), [call](v1::StatusReply reply) {
          for (v1::JobStatus& job : *reply.mutable_jobs()) {
            job.set_error(call->directory_names().Outward(job.error()));
          }
          call->Reply(reply);
        });
      }));
  AdminMethods m(server, directory);
  m.AddList(method::kAdminListJobs, &JobApis::jobs, &ListJobs);
  m.AddList(method::kAdminListSnapshots, &JobApis::snapshots, &ListSnapshots);
  m.AddList(method::kAdminListTenants, &JobApis::quotas, &ListTenants);
  m.Add<v1::DeleteJobRequest>(method::kAdminDeleteJob, &JobApis::jobs, &JobsApi::DeleteJob);
  m.Add<v1::RetryJobRequest>(method::kAdminRetryJob, &JobApis::jobs, &JobsApi::RetryJob);
  m.Add<v1::SnapshotRequest>(method::kAdminCreateSnapshot, &JobApis::snapshots,
                             &SnapshotApi::CreateSnapshot);
  m.Add<v1::SnapshotRequest>(method::kAdminVerifySnapshot, &JobApis::snapshots,
                             &SnapshotApi::VerifySnapshot);
  m.Add<v1::SnapshotRequest>(method::kAdminDeleteSnapshot, &JobApis::snapshots,
                             &SnapshotApi::DeleteSnapshot);
  m.Add<v1::RestoreSnapshotRequest>(method::kAdminRestoreSnapshot, &JobApis::restores,
                                    &RestoreApi::RestoreSnapshot);
  m.Add<v1::ExportRequest>(method::kAdminExport, &JobApis::exports, &ExportApi::Export);
  m.Add<v1::ImportRequest>(method::kAdminImport, &JobApis::imports, &ImportApi::Import);
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
