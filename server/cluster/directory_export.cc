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
namespace {

// Why a server could not read the snapshot, where that is so: somebody has deleted it.
absl::Status DeletedMeanwhile(const SnapshotStore& store, const ExportCall& call,
                              const SnapshotManifest& manifest, const absl::Status& status) {
  if (!absl::IsNotFound(store.Find(manifest.id).status())) return status;
  return ReasonedError(
      absl::StatusCode::kNotFound, Reason::kUnknownJob,
      absl::StrCat("snapshot ", Quoted(manifest.name), " of job ", Quoted(call.job),
                   " was deleted while it was exported; export another one, or leave --snapshot ",
                   "out to export the present state"),
      {.job = call.job});
}

}  // namespace

// --- At the home --------------------------------------------------------------------------------

void Directory::DoExport(const ExportCall& call, const ExportDone& done) {
  if (const absl::Status status = CheckSnapshotHome(); !status.ok()) return done(status);
  if (!call.snapshot.empty()) return ExportSnapshot(call, /*id=*/0, done);
  const absl::StatusOr<JobPlan> plan = WholeJob(call.job);
  if (!plan.ok()) return done(plan.status());
  RunOn(exchange_.get(), [this, call, done, plan = *plan]() -> std::function<void()> {
    absl::Status fits = snapshots_.exports->CheckNew(call.name);
    if (fits.ok()) fits = CheckExportRoom(call, plan);
    if (!fits.ok()) return [done, fits] { done(fits); };
    return [=, this] { ExportPresent(call, done); };
  });
}

ExportOptions Directory::OptionsOf(const ExportCall& call) const {
  return {call.dtype, call.state,
          call.consolidated ? 1 : static_cast<uint32_t>(config_.servers.size())};
}

absl::Status Directory::CheckExportRoom(const ExportCall& call, const JobPlan& plan) const {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  // The round is only known later; none has more digits.
  BALLAST_ASSIGN_OR_RETURN(const auto shards,
                           PlanExport(plan.spec, {UINT64_MAX, UINT64_MAX}, OptionsOf(call)));
  BALLAST_ASSIGN_OR_RETURN(const uint64_t bytes, ExportBytes(shards));
  uint64_t snapshot_bytes = 0;
  for (const uint32_t server : plan.servers) {
    snapshot_bytes += SnapshotStore::PartBytes(plan, layout, server);
  }
  return snapshots_.exports->CheckRoom(bytes, snapshot_bytes, snapshots_.store->root());
}

void Directory::ExportPresent(const ExportCall& call, const ExportDone& done) {
  const auto taken = [=, this](const absl::StatusOr<SnapshotInfo>& snapshot) {
    if (!snapshot.ok()) return done(snapshot.status());
    const uint64_t id = snapshot->id;
    ExportSnapshot(call, id, [=, this](const absl::StatusOr<ExportInfo>& info) {
      OnDisk([=, this]() -> std::function<void()> {
        const absl::Status removed = snapshots_.store->Remove(id);
        if (!removed.ok()) BALLAST_LOG(WARN, LogField("run", call.job)) << removed;
        return [done, info] { done(info); };
      });
    });
  };
  TakeSnapshot(call.job, std::string(kPassingSnapshotName), /*keep=*/0, kTries, taken);
}

void Directory::ExportSnapshot(const ExportCall& call, uint64_t id, const ExportDone& done) {
  RunOn(exchange_.get(), [this, call, id, done]() -> std::function<void()> {
    const auto exporting = std::make_shared<Exporting>();
    exporting->call = call;
    exporting->done = done;
    const absl::Status begun = BeginExport(id, exporting.get());
    if (!begun.ok()) return [done, begun] { done(begun); };
    return [this, exporting] { ExportEverywhere(exporting); };
  });
}

absl::Status Directory::BeginExport(uint64_t id, Exporting* exporting) const {
  const ExportCall& call = exporting->call;
  SnapshotManifest& manifest = exporting->manifest;
  BALLAST_ASSIGN_OR_RETURN(manifest, id == 0 ? snapshots_.store->Find(call.job, call.snapshot)
                                             : snapshots_.store->Find(id));
  // The copy in the export is one of a name that anybody may have.
  if (id != 0) manifest.name = call.name;
  BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, snapshots_.codec.decode(manifest.plan));
  BALLAST_ASSIGN_OR_RETURN(exporting->shards,
                           PlanExport(plan.spec, {manifest.id, manifest.round}, OptionsOf(call)));
  ExportInfo& info = exporting->info;
  BALLAST_ASSIGN_OR_RETURN(info.bytes, ExportBytes(exporting->shards));
  info.directory = snapshots_.exports->Directory(call.name);
  info.round = manifest.round;
  info.files = static_cast<uint32_t>(exporting->shards.size()) * (call.state ? 2 : 1);
  info.tensors = static_cast<uint32_t>(plan.spec.tensors.size());
  info.parameters = ParametersOf(plan.spec);
  return snapshots_.exports->Begin(call.name, info.bytes, call.state);
}

void Directory::ExportEverywhere(const ExportingRef& exporting) {
  if (shutting_down_) return EndExport(exporting, ShuttingDown());
  const auto self = shared_from_this();
  const auto shards = static_cast<uint32_t>(exporting->shards.size());
  const auto gather = GatherPeers(shards, [self, exporting](const absl::Status& status) {
    self->Post([self, exporting, status] { self->EndExport(exporting, status); });
  });
  BALLAST_LOG(INFO, LogField("run", exporting->call.job))
      << "exporting " << exporting->info.bytes << " bytes to " << exporting->info.directory;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const ExportPart part{exporting->manifest.id,
                          exporting->call.name,
                          {exporting->call.dtype, exporting->call.state, shards},
                          shard};
    const uint32_t server = config_.servers[shard].id;  // The first is the home.
    const auto add = [self, gather, server, name = part.name](const absl::Status& status) {
      gather->Add(SaidBy(server, absl::StrCat("wrote its files of export ", Quoted(name)), status));
    };
    const auto order = [self, part](uint32_t to, const auto& end) {
      self->peers_->Export(to, part, end);
    };
    server == config_.self ? ExportLocal(part, add) : Tell(server, order, add);
  }
}

// Whole, or gone.
void Directory::EndExport(const ExportingRef& exporting, absl::Status status) {
  RunOn(exchange_.get(), [this, exporting, status]() mutable -> std::function<void()> {
    const std::string& name = exporting->call.name;
    if (status.ok()) {
      status = snapshots_.exports->Commit(name, exporting->shards, exporting->manifest);
    }
    if (!status.ok()) {
      status = DeletedMeanwhile(*snapshots_.store, exporting->call, exporting->manifest, status);
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
  const auto carry = [this, part, done](const Halt& halt) -> std::function<void()> {
    return [done, status = ExportFiles(part, halt)] { done(status); };
  };
  CarryOut(exchange_.get(), std::make_shared<Order>(), carry);
}

absl::Status Directory::ExportFiles(const ExportPart& part, const Halt& halt) {
  BALLAST_RETURN_IF_ERROR(halt.status());
  BALLAST_RETURN_IF_ERROR(CheckSnapshotName(part.name));
  BALLAST_ASSIGN_OR_RETURN(const SnapshotManifest manifest, SharedSnapshot(part.snapshot));
  BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, snapshots_.codec.decode(manifest.plan));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  BALLAST_ASSIGN_OR_RETURN(const auto shards,
                           PlanExport(plan.spec, {manifest.id, manifest.round}, part.options));
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
  source.go_on = [&] { return halt.status(); };
  source.progress = [&](uint64_t written) { work->done_bytes += written; };
  BALLAST_FAILPOINT_RETURN("export.before_files");
  BALLAST_RETURN_IF_ERROR(WriteExport(snapshots_.exports->fs(),
                                      snapshots_.exports->Directory(part.name), shard, source));
  BALLAST_FAILPOINT_RETURN("export.after_files");
  return absl::OkStatus();
}

}  // namespace ballast::server
