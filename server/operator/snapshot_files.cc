#include "server/operator/snapshot_files.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "server/operator/job_description.h"

namespace ballast::server {
namespace {

// An operator may copy a snapshot to another tenant.
Holding Held(const std::string& tenant, uint64_t id) {
  return {Holding::Kind::kSnapshot, id, tenant};
}

}  // namespace

absl::Status SnapshotFiles::Check() const {
  if (kept_.store != nullptr) return kept_.refused;
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
                       absl::StrCat("server ", self_->id(), " keeps no snapshots, because it has ",
                                    "no storage.data_dir and no storage.snapshot_dir"),
                       {.server = static_cast<int>(self_->id())});
}

absl::Status SnapshotFiles::CheckHome() const {
  BALLAST_RETURN_IF_ERROR(self_->CheckHome());
  return Check();
}

absl::Status SnapshotFiles::Begin(uint64_t id, const JobPlan& plan, const std::string& name,
                                  uint64_t bytes) const {
  Quotas* const quotas = self_->config().quotas.get();
  BALLAST_RETURN_IF_ERROR(quotas->Take(Held(plan.tenant, id), plan.tenant, {.disk_bytes = bytes}));
  const absl::Status begun = store(plan.tenant).Begin(id, plan.spec.name, name, bytes);
  if (!begun.ok()) quotas->Give(Held(plan.tenant, id));
  return begun;
}

absl::Status SnapshotFiles::Commit(const SnapshotManifest& manifest) const {
  const uint64_t bytes = manifest.bytes + EncodeManifest(manifest).size();
  BALLAST_RETURN_IF_ERROR(self_->config().quotas->Take(Held(manifest.tenant, manifest.id),
                                                       manifest.tenant, {.disk_bytes = bytes}));
  return store(manifest.tenant).Commit(manifest);
}

absl::Status SnapshotFiles::Remove(const std::string& tenant, uint64_t id) const {
  SnapshotStore theirs = store(tenant);
  const absl::Status removed = theirs.Remove(id);
  // A complete snapshot counts as before, and so does an unreadable one.
  if (!removed.ok() && !absl::IsNotFound(theirs.Find(id).status())) return removed;
  const absl::StatusOr<uint64_t> left = removed.ok() ? uint64_t{0} : theirs.BytesOnDisk(id);
  if (!left.ok()) return removed;
  Quotas* const quotas = self_->config().quotas.get();
  if (*left > 0) {
    quotas->Note(Held(tenant, id), tenant, {.disk_bytes = *left});
  } else {
    quotas->Give(Held(tenant, id));
  }
  return removed;
}

absl::Status SnapshotFiles::Count() const {
  if (!self_->IsHome() || !keeps() || !kept_.refused.ok()) return absl::OkStatus();
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> tenants, Tenants());
  for (const std::string& tenant : tenants) {
    BALLAST_ASSIGN_OR_RETURN(const std::vector<SnapshotManifest> all, store(tenant).List());
    for (const SnapshotManifest& one : all) {
      // For an unreadable snapshot, the size in its manifest.
      const uint64_t bytes = store(tenant).BytesOnDisk(one.id).value_or(one.bytes);
      self_->config().quotas->Note(Held(tenant, one.id), tenant, {.disk_bytes = bytes});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SnapshotManifest> SnapshotFiles::Shared(const std::string& tenant,
                                                       uint64_t id) const {
  const SnapshotStore theirs = store(tenant);
  absl::StatusOr<SnapshotManifest> manifest = theirs.Find(id);
  if (!absl::IsNotFound(manifest.status())) return manifest;
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
      absl::StrCat(
          "server ", self_->id(), " does not see snapshot ", theirs.Directory(id),
          ", which the home has found: it was deleted ",
          "meanwhile, or storage.snapshot_dir is not one directory that all servers share"),
      {.server = static_cast<int>(self_->id())});
}

absl::StatusOr<JobPlan> SnapshotFiles::PlanOf(const SnapshotManifest& manifest) const {
  absl::StatusOr<JobPlan> plan = kept_.codec.decode(manifest.plan);
  if (plan.ok()) plan->tenant = manifest.tenant;
  return plan;
}

absl::StatusOr<SnapshotInfo> SnapshotFiles::InfoOf(const SnapshotManifest& manifest) const {
  BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, PlanOf(manifest));
  return SnapshotInfo{.id = manifest.id,
                      .tenant = manifest.tenant,
                      .job = manifest.job,
                      .name = manifest.name,
                      .round = manifest.round,
                      .created_s = manifest.created_s,
                      .bytes = manifest.bytes,
                      .parameters = ParametersOf(plan.spec),
                      .world = plan.spec.world,
                      .servers = plan.servers};
}

}  // namespace ballast::server
