#include "server/operator/exporter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/text/names.h"
#include "server/exchange/export_writer.h"
#include "server/operator/job_description.h"
#include "server/snapshot/snapshot_reader.h"

namespace ballast::server {
namespace {

constexpr BackgroundTasks::Thread kExportThread = BackgroundTasks::Thread::kExchange;

// The error when an operator has deleted the snapshot meanwhile; else `status`.
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

std::vector<uint64_t> StepsOf(const SnapshotManifest& manifest, const JobSpec& spec) {
  std::vector<uint64_t> steps = StepsAfter(manifest.prepared, manifest.decision.decision);
  steps.resize(spec.tensors.size(), 0);  // Some tensors joined after that round.
  return steps;
}

// Files of tensors.
uint32_t FilesOf(const std::vector<ExportShard>& shards) {
  size_t files = 0;
  for (const ExportShard& shard : shards) {
    files += (shard.weights.name.empty() ? 0 : 1) + (shard.state.name.empty() ? 0 : 1);
    for (const UniversalFolder& folder : shard.universal) files += folder.files.size();
  }
  return static_cast<uint32_t>(files);
}

}  // namespace

// --- At the home --------------------------------------------------------------------------------

void Exporter::Export(ExportCall call, Done then) {
  parts_.strand->Post([this, call = std::move(call), then = std::move(then)] {
    const Done done = parts_.work->UnderWay(then);
    if (const absl::Status status = parts_.files->CheckHome(); !status.ok()) return done(status);
    if (!call.snapshot.empty()) return ExportSnapshot(call, /*id=*/0, done);
    const absl::StatusOr<JobPlan> plan = parts_.names->WholeJob({call.tenant, call.job});
    if (!plan.ok()) return done(plan.status());
    parts_.work->Run(
        kExportThread, [this, call, plan = *plan] { return CheckRoom(call, plan); },
        [=, this](const absl::Status& fits) {
          fits.ok() ? ExportPresent(call, done) : done(fits);
        });
  });
}

ExportOptions Exporter::OptionsOf(const ExportCall& call) const {
  const size_t servers = parts_.self->config().servers.size();
  return {call.dtype, call.state, call.consolidated ? 1 : static_cast<uint32_t>(servers),
          call.format, call.torch_optimizer};
}

absl::Status Exporter::CheckRoom(const ExportCall& call, const JobPlan& plan) const {
  const Exports exports = parts_.files->exports(call.tenant);
  BALLAST_RETURN_IF_ERROR(exports.CheckNew(call.name));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  // The round is only known later; none has more digits.
  BALLAST_ASSIGN_OR_RETURN(const auto shards,
                           PlanExport(plan.spec, {UINT64_MAX, UINT64_MAX}, OptionsOf(call)));
  BALLAST_ASSIGN_OR_RETURN(const uint64_t bytes, ExportBytes(shards));
  uint64_t snapshot_bytes = 0;
  for (const uint32_t server : plan.servers) {
    snapshot_bytes += SnapshotStore::PartBytes(plan, layout, server);
  }
  return exports.CheckRoom(bytes, snapshot_bytes, parts_.files->store(call.tenant).root());
}

void Exporter::ExportPresent(const ExportCall& call, const Done& done) {
  const auto taken = [=, this](const absl::StatusOr<SnapshotInfo>& snapshot) {
    if (!snapshot.ok()) return done(snapshot.status());
    const auto remove = [files = parts_.files, tenant = call.tenant, id = snapshot->id] {
      return files->Remove(tenant, id);
    };
    ExportSnapshot(call, snapshot->id, [=, this](const absl::StatusOr<ExportInfo>& info) {
      const auto end = [=](const absl::Status& removed) {
        if (!removed.ok()) BALLAST_LOG(WARN, LogField("run", call.job)) << removed;
        done(info);
      };
      parts_.work->Run(BackgroundTasks::Thread::kSnapshots, remove, end);
    });
  };
  snapshots_->TakePassing({call.tenant, call.job}, taken);
}

void Exporter::ExportSnapshot(const ExportCall& call, uint64_t id, const Done& done) {
  parts_.work->Run(
      kExportThread, [this, call, id] { return Begin(call, id); },
      [this, done](const absl::StatusOr<WritingRef>& writing) {
        if (!writing.ok()) return done(writing.status());
        (*writing)->done = done;
        WriteAtAll(*writing);
      });
}

absl::StatusOr<Exporter::WritingRef> Exporter::Begin(const ExportCall& call, uint64_t id) {
  const SnapshotStore store = parts_.files->store(call.tenant);
  const auto writing = std::make_shared<Writing>();
  writing->call = call;
  SnapshotManifest& manifest = writing->manifest;
  BALLAST_ASSIGN_OR_RETURN(manifest,
                           id == 0 ? store.Find(call.job, call.snapshot) : store.Find(id));
  // The passing snapshot has no name of its own.
  if (id != 0) manifest.name = call.name;
  BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, parts_.files->PlanOf(manifest));
  BALLAST_ASSIGN_OR_RETURN(writing->shards,
                           PlanExport(plan.spec, {manifest.id, manifest.round}, OptionsOf(call)));
  writing->spec = plan.spec;
  writing->tensor_step = StepsOf(manifest, plan.spec);
  if (call.format == ExportFormat::kUniversal) {
    BALLAST_RETURN_IF_ERROR(CheckUniversalSteps(plan.spec, writing->tensor_step));
  }
  ExportInfo& info = writing->info;
  BALLAST_ASSIGN_OR_RETURN(info.bytes, ExportBytes(writing->shards));
  info.job = call.job;
  info.name = call.name;
  info.state = call.state || call.format == ExportFormat::kUniversal;
  info.directory = parts_.files->exports(call.tenant).Directory(call.name);
  info.round = manifest.round;
  info.files = FilesOf(writing->shards);
  info.tensors = static_cast<uint32_t>(plan.spec.tensors.size());
  info.parameters = ParametersOf(plan.spec);
  BALLAST_ASSIGN_OR_RETURN(const uint64_t last, LastBytes(*writing));
  BALLAST_RETURN_IF_ERROR(book_.Begin({call.tenant, call.name}, info.bytes + last, call.state));
  return writing;
}

void Exporter::WriteAtAll(const WritingRef& writing) {
  if (parts_.self->stopping()) return End(writing, parts_.self->ShuttingDown());
  const auto shards = static_cast<uint32_t>(writing->shards.size());
  ExportOptions options = OptionsOf(writing->call);
  options.shards = shards;
  const auto answers = parts_.work->WhenAllPeers(
      shards,
      parts_.strand->Bind([this, writing](const absl::Status& written) { End(writing, written); }));
  BALLAST_LOG(INFO, LogField("run", writing->call.job))
      << "exporting " << writing->info.bytes << " bytes to " << writing->info.directory;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const ExportPart part{writing->manifest.id, writing->call.name, options, shard,
                          writing->call.tenant};
    WriteAt(parts_.self->config().servers[shard].id, part, answers);  // The first is the home.
  }
}

void Exporter::WriteAt(uint32_t server, const ExportPart& part,
                       const std::shared_ptr<WhenAll>& answers) {
  const auto add = [answers, server, name = part.name](const absl::Status& status) {
    const std::string what = absl::StrCat("wrote its files of export ", Quoted(name));
    answers->Add(BackgroundTasks::SaidBy(server, what, status));
  };
  if (server == parts_.self->id()) return ExportShare(part, add);
  const auto order = [peers = parts_.peers, part](uint32_t to, const auto& end) {
    peers->ExportShare(to, part, end);
  };
  parts_.work->Tell(server, order, add);
}

void Exporter::End(const WritingRef& writing, const absl::Status& written) {
  parts_.work->Run(
      kExportThread, [this, writing, written] { return EndFiles(*writing, written); },
      [writing](const absl::Status& status) {
        status.ok() ? writing->done(writing->info) : writing->done(status);
      });
}

UniversalMoment Exporter::MomentOf(const Writing& writing) {
  return {writing.spec, writing.manifest.round, writing.manifest.decision.decision.policy,
          writing.tensor_step, writing.call.torch_optimizer};
}

absl::StatusOr<uint64_t> Exporter::LastBytes(const Writing& writing) {
  if (writing.call.format == ExportFormat::kUniversal) return Exports::LastBytes(MomentOf(writing));
  return Exports::LastBytes(writing.shards, writing.manifest);
}

absl::Status Exporter::Commit(const Writing& writing) const {
  Exports exports = parts_.files->exports(writing.call.tenant);
  const std::string& name = writing.call.name;
  if (writing.call.format == ExportFormat::kSafetensors) {
    return exports.Commit(name, writing.shards, writing.manifest);
  }
  return exports.CommitUniversal(name, MomentOf(writing));
}

absl::Status Exporter::EndFiles(const Writing& writing, const absl::Status& written) {
  const ExportCall& call = writing.call;
  absl::Status status = written;
  if (status.ok()) status = Commit(writing);
  if (status.ok()) return status;
  status = DeletedMeanwhile(parts_.files->store(call.tenant), call, writing.manifest, status);
  const absl::Status removed = book_.Remove({call.tenant, call.name});
  if (!removed.ok()) BALLAST_LOG(WARN) << removed;
  return status;
}

// --- At every server ----------------------------------------------------------------------------

void Exporter::ExportShare(ExportPart part, std::function<void(absl::Status)> done) {
  parts_.strand->Run([this, part = std::move(part), done = std::move(done)] {
    if (const absl::Status status = parts_.files->Check(); !status.ok()) return done(status);
    parts_.work->CarryOut(
        kExportThread, {},
        [this, part](const CancelToken& cancel) { return WriteFiles(part, cancel); }, done);
  });
}

absl::Status Exporter::WriteFiles(const ExportPart& part, const CancelToken& cancel) {
  BALLAST_RETURN_IF_ERROR(cancel.status());
  BALLAST_RETURN_IF_ERROR(CheckSnapshotName(part.name));
  BALLAST_ASSIGN_OR_RETURN(const SnapshotManifest manifest,
                           parts_.files->Shared(part.tenant, part.snapshot));
  BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, parts_.files->PlanOf(manifest));
  BALLAST_ASSIGN_OR_RETURN(const auto shards,
                           PlanExport(plan.spec, {manifest.id, manifest.round}, part.options));
  if (part.shard >= shards.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an export of ", shards.size(), " shards has no shard ", part.shard));
  }
  return WriteShard(part, manifest, plan, shards[part.shard], cancel);
}

absl::Status Exporter::WriteShard(const ExportPart& part, const SnapshotManifest& manifest,
                                  const JobPlan& plan, const ExportShard& shard,
                                  const CancelToken& cancel) {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  BALLAST_ASSIGN_OR_RETURN(
      const std::unique_ptr<SnapshotReader> states,
      SnapshotReader::Open(parts_.files->store(part.tenant), manifest, plan, layout));
  BALLAST_ASSIGN_OR_RETURN(const uint64_t bytes, ExportBytes({shard}));
  const std::shared_ptr<Work> work = parts_.work->works()->Begin("export", part.name, bytes);
  ExportSource source;
  source.layout = &layout;
  source.arrays = StateArrayCount(plan.spec);
  source.read = [&](uint32_t extent, void* image) { return states->Read(extent, image); };
  source.tensor_step = StepsOf(manifest, plan.spec);
  source.isa = isa_;
  source.go_on = [&] { return cancel.status(); };
  source.progress = [&](uint64_t written) { work->done_bytes += written; };
  BALLAST_FAILPOINT_RETURN("export.before_files");
  const Exports exports = parts_.files->exports(part.tenant);
  BALLAST_RETURN_IF_ERROR(WriteExport(exports.fs(), exports.Directory(part.name), shard, source));
  BALLAST_FAILPOINT_RETURN("export.after_files");
  return absl::OkStatus();
}

}  // namespace ballast::server
