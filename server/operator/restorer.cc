#include "server/operator/restorer.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "server/snapshot/snapshot_reader.h"

namespace ballast::server {
namespace {

constexpr BackgroundTasks::Thread kRestoreThread = BackgroundTasks::Thread::kSnapshots;

// A server's vote on the round before the new job's first.
PreparedRecord VoteOf(const SnapshotManifest& manifest, const JobPlan& plan, uint32_t self) {
  PreparedRecord prepared = manifest.prepared;
  prepared.vote.server = self;
  if (self != plan.servers.front()) prepared.user_state.clear();
  std::erase_if(prepared.user_state,
                [&](const auto& state) { return state.first >= plan.spec.world; });
  return prepared;
}

// For the log here, and for the operator that asked for a fork.
std::string CopiedBecause(uint32_t self, const JobPlan& plan, const absl::Status& why) {
  const std::string text =
      absl::StrCat("server ", self, " copies the state of job \"", plan.spec.name,
                   "\" because it cannot share the files of ", "the snapshot: ", why.message());
  BALLAST_LOG(WARN, LogField("run", plan.spec.name)) << text;
  return text;
}

}  // namespace

// --- At the home --------------------------------------------------------------------------------

void Restorer::RestoreSnapshot(RestoreCall call, Done then) {
  parts_.strand->Post([this, call = std::move(call), then = std::move(then)] {
    const Done done = parts_.work->UnderWay(then);
    absl::Status status = parts_.files->CheckHome();
    if (status.ok()) status = maker_->TakeName(call.made());
    if (!status.ok()) return done(status);
    parts_.work->Run(
        kRestoreThread, [this, call] { return OrderOf(call); },
        [=, this](const absl::StatusOr<RestoreOrder>& order) {
          if (order.ok()) return MakeAtAll(*order, done);
          maker_->DropName(call.made());
          done(order.status());
        });
  });
}

absl::StatusOr<RestoreOrder> Restorer::OrderOf(const RestoreCall& call) const {
  BALLAST_ASSIGN_OR_RETURN(const auto manifest,
                           parts_.files->store(call.tenant).Find(call.job, call.snapshot));
  BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, maker_->Plan(call.made(), call.world, manifest));
  BALLAST_RETURN_IF_ERROR(maker_->MarkOrdered(plan));
  return RestoreOrder{plan, manifest.id, call.share};
}

void Restorer::MakeAtAll(const RestoreOrder& order, const Done& done) {
  const auto copied = std::make_shared<std::string>();  // On the strand.
  const auto at_server = [=, this](uint32_t server, const std::function<void(absl::Status)>& made) {
    const auto add = parts_.strand->Bind([=](const absl::StatusOr<std::string>& theirs) {
      if (theirs.ok() && copied->empty()) *copied = *theirs;
      made(theirs.status());
    });
    const bool here = server == parts_.self->id();
    here ? RestoreJob(order, add) : parts_.peers->RestoreJob(server, order, add);
  };
  maker_->Make(order.plan, at_server, [=](const absl::StatusOr<DurableJob>& job) {
    job.ok() ? done(RestoredJob{*job, *copied}) : done(job.status());
  });
}

// --- At every server ----------------------------------------------------------------------------

void Restorer::RestoreJob(RestoreOrder order, ShareDone done) {
  parts_.strand->Run([this, order = std::move(order), done = std::move(done)] {
    if (const absl::Status status = parts_.files->Check(); !status.ok()) return done(status);
    parts_.work->CarryOut(
        kRestoreThread, {order.plan.job, order.plan.name()},
        [this, order](const CancelToken& cancel) { return MakeFiles(order, cancel); }, done);
  });
}

absl::StatusOr<std::string> Restorer::MakeFiles(const RestoreOrder& order,
                                                const CancelToken& cancel) {
  const JobPlan& plan = order.plan;
  BALLAST_RETURN_IF_ERROR(cancel.status());
  BALLAST_ASSIGN_OR_RETURN(const SnapshotManifest manifest,
                           parts_.files->Shared(plan.tenant, order.snapshot));
  BALLAST_ASSIGN_OR_RETURN(const JobPlan from, parts_.files->PlanOf(manifest));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  std::string copied;
  const auto fill = [&](JobStorage* storage) -> absl::Status {
    BALLAST_FAILPOINT_RETURN("restore.before_state");
    absl::Status status = absl::UnimplementedError("");
    if (order.share) {
      status = parts_.files->store(plan.tenant)
                   .Lend(manifest, from, layout, plan, parts_.store->FilesOf(plan));
      if (absl::IsUnimplemented(status)) copied = CopiedBecause(parts_.self->id(), plan, status);
    }
    if (absl::IsUnimplemented(status)) {
      status = CopyStates(manifest, from, plan, {"restore", storage->images(), 0, &cancel});
    }
    BALLAST_RETURN_IF_ERROR(status);
    BALLAST_RETURN_IF_ERROR(
        storage->log()->Seed(VoteOf(manifest, plan, parts_.self->id()), manifest.decision));
    BALLAST_FAILPOINT_RETURN("restore.after_state");
    return absl::OkStatus();
  };
  BALLAST_RETURN_IF_ERROR(shares_->Make(plan, fill));
  return copied;
}

absl::Status Restorer::CopyStates(const SnapshotManifest& manifest, const JobPlan& from,
                                  const JobPlan& plan, ShareMaker::Filling filling) {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  BALLAST_ASSIGN_OR_RETURN(
      const auto states,
      SnapshotReader::Open(parts_.files->store(manifest.tenant), manifest, from, layout));
  return shares_->Fill(filling, plan, layout, [&](uint32_t extent, char* image, char*) {
    return states->Read(extent, image);
  });
}

}  // namespace ballast::server
