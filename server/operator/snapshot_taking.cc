#include "server/operator/snapshot_taking.h"

#include <algorithm>
#include <ctime>
#include <tuple>
#include <vector>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/faults/mutant.h"

namespace ballast::server {
namespace {

constexpr BackgroundTasks::Thread kTakingThread = BackgroundTasks::Thread::kSnapshots;

}  // namespace

void SnapshotTaking::Start() {
  const auto self = shared_from_this();
  parts_.work->Run(
      kTakingThread, [self] { return self->Begin(); },
      [self](const absl::Status& begun) { begun.ok() ? self->Hold() : self->done_(begun); });
}

absl::Status SnapshotTaking::Begin() {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(task_.plan.spec));
  for (const uint32_t server : task_.plan.servers) {
    bytes_ += SnapshotStore::PartBytes(task_.plan, layout, server);
  }
  // The records, which it gets last, make the manifest only larger.
  return parts_.files->Begin(id_, task_.plan, task_.request.name,
                             bytes_ + EncodeManifest(Manifest()).size());
}

void SnapshotTaking::AtAll(SnapshotCall::Step step, std::function<void(absl::Status)> then) {
  SnapshotCall call{step, task_.plan.job, id_, round_, task_.plan.tenant};
  const auto self = shared_from_this();
  const auto answers =
      std::make_shared<WhenAll>(task_.plan.servers.size(), parts_.strand->Bind(std::move(then)));
  const auto add = [self, step, answers](const absl::StatusOr<SnapshotAnswer>& answer) {
    if (answer.ok() && step == SnapshotCall::Step::kHold) {
      self->round_ = std::max(self->round_, answer->round);
    }
    answers->Add(answer.status());
  };
  const auto here = [self, add](const absl::StatusOr<SnapshotAnswer>& answer) {
    if (answer.ok()) self->before_ = answer->before;
    add(answer);
  };
  for (const uint32_t server : task_.plan.servers) {
    if (server == parts_.self->id()) {
      share_->Snapshot(call, parts_.strand->Bind(here));
    } else {
      parts_.peers->Snapshot(server, call, parts_.strand->Bind(add));
      if (BALLAST_MUTANT(kSnapshotOfTwoRounds)) ++call.round;
    }
  }
}

void SnapshotTaking::Hold() {
  AtAll(SnapshotCall::Step::kHold, [self = shared_from_this()](const absl::Status& status) {
    status.ok() ? self->Capture() : self->GiveUp(status);
  });
}

void SnapshotTaking::Capture() {
  AtAll(SnapshotCall::Step::kCapture, [self = shared_from_this()](const absl::Status& status) {
    status.ok() ? self->Commit() : self->GiveUp(status);
  });
}

void SnapshotTaking::Commit() {
  const auto self = shared_from_this();
  parts_.work->Run(
      kTakingThread, [self] { return self->CommitFiles(); },
      [self](const absl::StatusOr<SnapshotInfo>& info) {
        if (!info.ok()) return self->GiveUp(info.status());
        BALLAST_LOG(INFO, LogField("run", info->job), LogField("round", info->round))
            << "snapshot \"" << info->name << "\" taken, " << info->bytes << " bytes in "
            << self->store().Directory(info->id);
        self->Mark(*info);
        self->done_(info);
      });
}

// An export's passing snapshot is gone when the export ends: it is none that a job can return to.
void SnapshotTaking::Mark(const SnapshotInfo& info) const {
  if (parts_.metrics == nullptr || info.name == kPassingSnapshotName) return;
  parts_.metrics->MarkSnapshot({info.tenant, info.job});
}

SnapshotManifest SnapshotTaking::Manifest() const {
  SnapshotManifest manifest;
  manifest.id = id_;
  manifest.name = task_.request.name;
  manifest.tenant = task_.plan.tenant;
  manifest.job = task_.plan.spec.name;
  manifest.created_s = static_cast<uint64_t>(std::time(nullptr));
  manifest.round = round_;
  manifest.bytes = bytes_;
  manifest.plan = parts_.files->codec().encode(task_.plan);
  manifest.prepared = before_.prepared;
  manifest.decision = before_.decision;
  return manifest;
}

absl::StatusOr<SnapshotInfo> SnapshotTaking::CommitFiles() {
  const SnapshotManifest manifest = Manifest();
  BALLAST_RETURN_IF_ERROR(parts_.files->Commit(manifest));
  if (task_.request.keep != 0) DropOldest();
  return parts_.files->InfoOf(manifest);
}

// A snapshot that cannot be removed stays listed. Snapshots of earlier jobs of this name are older
// than those of this job, whatever the clocks say; of one job, the earlier round is older.
void SnapshotTaking::DropOldest() const {
  const absl::StatusOr<std::vector<SnapshotManifest>> all = store().List();
  if (!all.ok()) return;
  std::vector<std::pair<std::tuple<bool, uint64_t, uint64_t>, uint64_t>> others;  // and ids
  for (const SnapshotManifest& one : *all) {
    if (one.job != task_.plan.spec.name || one.id == id_) continue;
    const absl::StatusOr<JobPlan> plan = parts_.files->PlanOf(one);
    const bool ours = plan.ok() && plan->job == task_.plan.job;
    others.push_back({{ours, ours ? one.round : 0, one.created_s}, one.id});
  }
  std::sort(others.begin(), others.end());
  for (size_t i = 0; i + task_.request.keep < others.size() + 1; ++i) {
    const absl::Status removed = parts_.files->Remove(task_.plan.tenant, others[i].second);
    if (!removed.ok()) BALLAST_LOG(WARN, LogField("run", task_.plan.spec.name)) << removed;
  }
}

void SnapshotTaking::GiveUp(const absl::Status& why) {
  AtAll(SnapshotCall::Step::kRelease, [self = shared_from_this(), why](const absl::Status&) {
    const auto remove = [self] {
      return self->parts_.files->Remove(self->task_.plan.tenant, self->id_);
    };
    self->parts_.work->Run(kTakingThread, remove, [self, why](const absl::Status& removed) {
      if (!removed.ok()) BALLAST_LOG(WARN) << removed;
      self->done_(why);
    });
  });
}

}  // namespace ballast::server
