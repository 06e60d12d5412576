#include "server/operator/snapshotter.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"

namespace ballast::server {
namespace {

constexpr int kTries = 3;
constexpr std::chrono::seconds kRetryDelay(1);
constexpr BackgroundTasks::Thread kSnapshotThread = BackgroundTasks::Thread::kSnapshots;

// Whether another try may succeed: rounds wanted the room, or the job came to rest meanwhile.
bool MayBeTriedAgain(const absl::Status& why) {
  return absl::IsAborted(why) || ReasonOf(why) == Reason::kJobFinished;
}

}  // namespace

// --- Taking one ---------------------------------------------------------------------------------

void Snapshotter::CreateSnapshot(SnapshotRequest request, Done done) {
  parts_.strand->Post([this, request = std::move(request), done = std::move(done)] {
    absl::Status status = parts_.files->CheckHome();
    if (status.ok()) status = CheckSnapshotName(request.name);
    status.ok() ? Take(request, kTries, done) : done(status);
  });
}

void Snapshotter::TakePassing(const QualifiedName& job, const Done& done) {
  Take({.job = job, .name = std::string(kPassingSnapshotName)}, kTries, done);
}

void Snapshotter::Take(const SnapshotRequest& request, int tries, const Done& done) {
  if (const absl::Status status = parts_.files->CheckHome(); !status.ok()) return done(status);
  const absl::StatusOr<JobPlan> plan = parts_.names->WholeJob(request.job);
  if (!plan.ok()) return done(plan.status());
  const uint64_t id = plan->job;
  if (!parts_.resting->BeginSnapshot(id)) {
    return done(ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobBusy,
                              absl::StrCat("another snapshot of job \"", request.job.name,
                                           "\" is being taken; wait for it"),
                              {.job = request.job.name}));
  }
  const auto taken = [=, this](const absl::StatusOr<SnapshotInfo>& info) {
    parts_.resting->EndSnapshot(id);
    if (!MayBeTriedAgain(info.status()) || tries == 1) return done(info);
    parts_.strand->PostAfter(kRetryDelay, [=, this] { Take(request, tries - 1, done); });
  };
  std::make_shared<SnapshotTaking>(parts_, share_, SnapshotTaking::Task{request, *plan}, taken)
      ->Start();
}

// --- Those there are ----------------------------------------------------------------------------

void Snapshotter::ListSnapshots(SnapshotFilter filter, ListDone done) {
  parts_.strand->Post([this, filter = std::move(filter), done = std::move(done)] {
    if (const absl::Status status = parts_.files->CheckHome(); !status.ok()) return done(status);
    parts_.work->Run(
        kSnapshotThread, [this, filter] { return ListFiles(filter); }, done);
  });
}

absl::StatusOr<std::vector<SnapshotInfo>> Snapshotter::ListFiles(
    const SnapshotFilter& filter) const {
  std::vector<std::string> tenants = {filter.tenant.value_or("")};
  if (!filter.tenant.has_value()) {
    BALLAST_ASSIGN_OR_RETURN(tenants, parts_.files->Tenants());
  }
  std::vector<SnapshotInfo> infos;
  for (const std::string& tenant : tenants) {
    BALLAST_ASSIGN_OR_RETURN(const auto all, parts_.files->store(tenant).List());
    for (const SnapshotManifest& manifest : all) {
      if (!filter.job.empty() && manifest.job != filter.job) continue;
      const absl::StatusOr<SnapshotInfo> info = parts_.files->InfoOf(manifest);
      if (info.ok()) infos.push_back(*info);
    }
  }
  std::stable_sort(infos.begin(), infos.end(), [](const SnapshotInfo& a, const SnapshotInfo& b) {
    return a.created_s < b.created_s;
  });
  return infos;
}

void Snapshotter::Apply(const SnapshotRequest& request, const Use& use, const Done& done) {
  if (const absl::Status status = parts_.files->CheckHome(); !status.ok()) return done(status);
  const auto carry = [=, this](const CancelToken& cancel) -> absl::StatusOr<SnapshotInfo> {
    BALLAST_ASSIGN_OR_RETURN(
        const auto manifest,
        parts_.files->store(request.job.tenant).Find(request.job.name, request.name));
    BALLAST_RETURN_IF_ERROR(use(manifest, cancel));
    return parts_.files->InfoOf(manifest);
  };
  parts_.work->CarryOut(kSnapshotThread, {}, carry, done);
}

void Snapshotter::VerifySnapshot(SnapshotRequest request, Done done) {
  const auto verify = [this](const SnapshotManifest& manifest,
                             const CancelToken& cancel) -> absl::Status {
    BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, parts_.files->PlanOf(manifest));
    return parts_.files->store(manifest.tenant).Verify(manifest, plan, [&] {
      return cancel.status();
    });
  };
  parts_.strand->Post([=, this] { Apply(request, verify, done); });
}

void Snapshotter::DeleteSnapshot(SnapshotRequest request, Done done) {
  const auto remove = [this](const SnapshotManifest& manifest, const CancelToken&) {
    return parts_.files->Remove(manifest.tenant, manifest.id);
  };
  parts_.strand->Post([=, this] { Apply(request, remove, done); });
}

}  // namespace ballast::server
