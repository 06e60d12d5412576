#include "server/operator/snapshot_desk.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"

namespace ballast::server {
namespace {

constexpr int kTries = 3;
constexpr std::chrono::seconds kRetryDelay(1);
constexpr LongWork::Thread kSnapshotThread = LongWork::Thread::kSnapshots;

// Whether another try may succeed: rounds wanted the room, or the job came to rest meanwhile.
bool MayBeTriedAgain(const absl::Status& why) {
  return absl::IsAborted(why) || ReasonOf(why) == Reason::kJobFinished;
}

}  // namespace

// --- Taking one ---------------------------------------------------------------------------------

void SnapshotDesk::Create(const QualifiedName& job, const std::string& name, uint32_t keep,
                          const Done& done) {
  absl::Status status = parts_.files->CheckHome();
  if (status.ok()) status = CheckSnapshotName(name);
  status.ok() ? Take(job, name, keep, kTries, done) : done(status);
}

void SnapshotDesk::TakePassing(const QualifiedName& job, const Done& done) {
  Take(job, std::string(kPassingSnapshotName), /*keep=*/0, kTries, done);
}

void SnapshotDesk::Take(const QualifiedName& job, const std::string& name, uint32_t keep, int tries,
                        const Done& done) {
  if (const absl::Status status = parts_.files->CheckHome(); !status.ok()) return done(status);
  const absl::StatusOr<JobPlan> plan = parts_.names->WholeJob(job);
  if (!plan.ok()) return done(plan.status());
  const uint64_t id = plan->job;
  if (!taking_.insert(id).second) {
    return done(ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kJobBusy,
        absl::StrCat("another snapshot of job \"", job.name, "\" is being taken; wait for it"),
        {.job = job.name}));
  }
  const auto taken = [=, this](const absl::StatusOr<SnapshotInfo>& info) {
    taking_.erase(id);
    if (!MayBeTriedAgain(info.status()) || tries == 1) return done(info);
    parts_.strand->PostAfter(kRetryDelay, [=, this] { Take(job, name, keep, tries - 1, done); });
  };
  std::make_shared<SnapshotTaking>(parts_, share_, SnapshotTaking::Order{*plan, name, keep}, taken)
      ->Start();
}

absl::Status SnapshotDesk::HeldAtRest(const JobPlan& plan) const {
  if (parts_.jobs->Runs(plan.job) || taking_.count(plan.job) == 0) return absl::OkStatus();
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                       absl::StrCat("a snapshot of job \"", plan.spec.name, "\", which rests, is ",
                                    "being taken; call again when it is there"),
                       {.job = plan.spec.name});
}

// --- Those there are ----------------------------------------------------------------------------

void SnapshotDesk::List(const SnapshotFilter& filter, const ListDone& done) {
  if (const absl::Status status = parts_.files->CheckHome(); !status.ok()) return done(status);
  parts_.work->Run(
      kSnapshotThread, [this, filter] { return ListFiles(filter); }, done);
}

absl::StatusOr<std::vector<SnapshotInfo>> SnapshotDesk::ListFiles(
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

void SnapshotDesk::Apply(const QualifiedName& job, const std::string& name, const Use& use,
                         const Done& done) {
  if (const absl::Status status = parts_.files->CheckHome(); !status.ok()) return done(status);
  const auto carry = [=, this](const Halt& halt) -> absl::StatusOr<SnapshotInfo> {
    BALLAST_ASSIGN_OR_RETURN(const auto manifest,
                             parts_.files->store(job.tenant).Find(job.name, name));
    BALLAST_RETURN_IF_ERROR(use(manifest, halt));
    return parts_.files->InfoOf(manifest);
  };
  parts_.work->CarryOut(kSnapshotThread, {}, carry, done);
}

void SnapshotDesk::Verify(const QualifiedName& job, const std::string& name, const Done& done) {
  const auto verify = [this](const SnapshotManifest& manifest, const Halt& halt) -> absl::Status {
    BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, parts_.files->PlanOf(manifest));
    return parts_.files->store(manifest.tenant).Verify(manifest, plan, [&] {
      return halt.status();
    });
  };
  Apply(job, name, verify, done);
}

void SnapshotDesk::Delete(const QualifiedName& job, const std::string& name, const Done& done) {
  const auto remove = [this](const SnapshotManifest& manifest, const Halt&) {
    return parts_.files->Remove(manifest.tenant, manifest.id);
  };
  Apply(job, name, remove, done);
}

}  // namespace ballast::server
