// Messages of the Admin service <-> operators' requests, and their view of jobs and snapshots.
// Comes from: admin_service. Goes to: the interfaces of server/operator/operator_calls.h.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/admin.pb.h"
#include "server/jobs/works.h"
#include "server/operator/operator_calls.h"
#include "server/quota/tenant_ledger.h"

namespace ballast::server {

// Requests, about objects of `tenant`. Errors: INVALID_ARGUMENT BAD_ARGUMENT for an unknown number.
absl::StatusOr<DeleteJobCall> FromProto(const v1::DeleteJobRequest& request,
                                        const std::string& tenant);
absl::StatusOr<QualifiedName> FromProto(const v1::RetryJobRequest& request,
                                        const std::string& tenant);
absl::StatusOr<SnapshotRequest> FromProto(const v1::SnapshotRequest& request,
                                          const std::string& tenant);
absl::StatusOr<RestoreCall> FromProto(const v1::RestoreSnapshotRequest& request,
                                      const std::string& tenant);
absl::StatusOr<ExportCall> FromProto(const v1::ExportRequest& request, const std::string& tenant);
absl::StatusOr<ImportCall> FromProto(const v1::ImportRequest& request, const std::string& tenant);

v1::SnapshotReply ReplyOf(const SnapshotInfo& snapshot);
v1::RestoreSnapshotReply ReplyOf(const RestoredJob& restored);
v1::ExportReply ReplyOf(const ExportInfo& info);
v1::ImportReply ReplyOf(const ImportInfo& info);

// Includes the last `rounds` of its finished rounds.
void ToProto(const JobStatus& job, uint32_t rounds, v1::JobStatus* out);
void ToProto(const DurableJob& job, v1::DurableJob* out);
void ToProto(const SnapshotInfo& snapshot, v1::Snapshot* out);
void ToProto(const Work& work, v1::Work* out);
void ToProto(const TenantUse& use, v1::Tenant* out);

}  // namespace ballast::server
