// Directory: a job's weights and optimizer state as safetensors files. Every server writes a shard
// of whole tensors out of a snapshot, whichever servers took it; without one, the home takes one
// for as long as that lasts. An export is whole once its last file, which the home writes, is
// there.
// Thread safety: on the strand; what blocks on the disk on a thread for that.

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "server/cluster/directory.h"
#include "server/exchange/export_writer.h"
#include "server/snapshot/snapshot_reader.h"

namespace ballast::server {

// --- At the home --------------------------------------------------------------------------------

void Directory::DoExport(const ExportCall& call, const ExportDone& done) {
  if (const absl::Status status = CheckSnapshotHome(); !status.ok()) return done(status);
  if (!call.snapshot.empty()) return ExportSnapshot(call, done);
  RunOn(&exchange_, [this, call, done]() -> std::function<void()> {
    const absl::Status is_new = snapshots_.exports->CheckNew(call.name);
    if (!is_new.ok()) return [done, is_new] { done(is_new); };
    return [=, this] { ExportPresent(call, done); };
  });
}

void Directory::ExportPresent(ExportCall call, const ExportDone& done) {
  call.snapshot = absl::StrCat("export-", JobIdText(RandomId()));
  const auto end = [=, this](const absl::StatusOr<ExportInfo>& info) {
    DoDeleteSnapshot(call.job, call.snapshot, [=](const absl::StatusOr<SnapshotInfo>& gone) {
      if (!gone.ok()) BALLAST_LOG(WARN, LogField("run", call.job)) << gone.status();
      done(info);
    });
  };
  DoCreateSnapshot(call.job, call.snapshot, /*keep=*/0, kTries,
                   [=, this](const absl::StatusOr<SnapshotInfo>& taken) {
                     taken.ok() ? ExportSnapshot(call, end) : done(taken.status());
                   });
}

void Directory::ExportSnapshot(const ExportCall& call, const ExportDone& done) {
  RunOn(&exchange_, [this, call, done]() -> std::function<void()> {
    const auto exporting = std::make_shared<Exporting>();
    exporting->call = call;
    exporting->done = done;
    const absl::Status begun = BeginExport(exporting.get());
    if (!begun.ok()) return [done, begun] { done(begun); };
    return [this, exporting] { ExportEverywhere(exporting); };
  });
}

absl::Status Directory::BeginExport(Exporting* exporting) const {
  const ExportCall& call = exporting->call;
  BALLAST_ASSIGN_OR_RETURN(exporting->manifest, snapshots_.store->Find(call.job, call.snapshot));
  BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, snapshots_.codec.decode(exporting->manifest.plan));
  const ExportOptions options{
      call.dtype, call.state,
      call.consolidated ? 1 : static_cast<uint32_t>(config_.servers.size())};
  BALLAST_ASSIGN_OR_RETURN(exporting->shards,
                           PlanExport(plan.spec, exporting->manifest.round, options));
  ExportInfo& info = exporting->info;
  BALLAST_ASSIGN_OR_RETURN(info.bytes, ExportBytes(exporting->shards));
  info.directory = snapshots_.exports->Directory(call.name);
  info.round = exporting->manifest.round;
  info.files = static_cast<uint32_t>(exporting->shards.size()) * (call.state ? 2 : 1);
  info.tensors = static_cast<uint32_t>(plan.spec.tensors.size());
  info.parameters = ParametersOf(plan.spec);
  return snapshots_.exports->Begin(call.name, info.bytes, call.state);
}

void Directory::ExportEverywhere(const ExportingRef& exporting) {
  const auto self = shared_from_this();
  const auto shards = static_cast<uint32_t>(exporting->shards.size());
  const auto gather =
      std::make_shared<Gather>(shards, [self, exporting](const absl::Status& status) {
        self->Post([self, exporting, status] { self->EndExport(exporting, status); });
      });
  BALLAST_LOG(INFO, LogField("run", exporting->call.job))
      << "exporting " << exporting->info.bytes << " bytes to " << exporting->info.directory;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const ExportPart part{exporting->manifest.id,
                          exporting->call.name,
                          {exporting->call.dtype, exporting->call.state, shards},
                          shard};
    const auto add = [self, gather](const absl::Status& status) { gather->Add(status); };
    const uint32_t server = config_.servers[shard].id;  // The first is the home.
    server == config_.self ? ExportLocal(part, add) : peers_->Export(server, part, add);
  }
}

// Whole, or gone.
void Directory::EndExport(const ExportingRef& exporting, absl::Status status) {
  RunOn(&exchange_, [this, exporting, status]() mutable -> std::function<void()> {
    const std::string& name = exporting->call.name;
    if (status.ok()) {
      status = snapshots_.exports->Commit(name, exporting->shards, exporting->manifest);
    }
    if (!status.ok()) {
      const absl::Status removed = snapshots_.exports->Remove(name);
      if (!removed.ok()) BALLAST_LOG(WARN) << removed;
    }
    return [exporting, status] {
      status.ok() ? exporting->done(exporting->info) : exporting->done(status);
    };
  });
}

// --- At every server ----------------------------------------------------------------------------

void Directory::ExportLocal(const ExportPart& part, const std::function<void(absl::Status)>& done) {
  if (const absl::Status status = CheckSnapshots(); !status.ok()) return done(status);
  RunOn(&exchange_, [this, part, done]() -> std::function<void()> {
    return [done, status = ExportFiles(part)] { done(status); };
  });
}

absl::Status Directory::ExportFiles(const ExportPart& part) {
  BALLAST_RETURN_IF_ERROR(CheckSnapshotName(part.name));
  BALLAST_ASSIGN_OR_RETURN(const SnapshotManifest manifest, snapshots_.store->Find(part.snapshot));
  BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, snapshots_.codec.decode(manifest.plan));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  BALLAST_ASSIGN_OR_RETURN(const auto shards, PlanExport(plan.spec, manifest.round, part.options));
  if (part.shard >= shards.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an export of ", shards.size(), " shards has no shard ", part.shard));
  }
  const ExportShard& shard = shards[part.shard];
  BALLAST_ASSIGN_OR_RETURN(const std::unique_ptr<SnapshotReader> states,
                           SnapshotReader::Open(*snapshots_.store, manifest, plan, layout));
  BALLAST_ASSIGN_OR_RETURN(const uint64_t bytes, ExportBytes({shard}));
  const std::shared_ptr<Work> work = works_.Begin("export", part.name, bytes);
  ExportSource source;
  source.layout = &layout;
  source.read = [&](uint32_t extent, void* image) { return states->Read(extent, image); };
  source.tensor_step = StepsAfter(manifest.prepared, manifest.decision.decision);
  source.tensor_step.resize(plan.spec.tensors.size(), 0);  // Some joined behind that round.
  source.isa = deps_.isa;
  source.progress = [&](uint64_t written) { work->done_bytes += written; };
  BALLAST_FAILPOINT_RETURN("export.before_files");
  BALLAST_RETURN_IF_ERROR(WriteExport(snapshots_.exports->fs(),
                                      snapshots_.exports->Directory(part.name), shard, source));
  BALLAST_FAILPOINT_RETURN("export.after_files");
  return absl::OkStatus();
}

}  // namespace ballast::server
