#include "server/operator/importer.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "server/exchange/import_source.h"

namespace ballast::server {
namespace {

constexpr BackgroundTasks::Thread kImportThread = BackgroundTasks::Thread::kExchange;
constexpr uint64_t kRoundsMax = uint64_t{1} << 48;
constexpr uint32_t kEpochsMax = 1u << 30;

absl::Status NoJobFile(const std::string& what) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
                       absl::StrCat(kJobFile, " of the export ", what));
}

// Checks the manifest's facts about the original job.
absl::Status CheckManifest(const SnapshotManifest& manifest, const absl::StatusOr<JobPlan>& was) {
  if (manifest.round < 1 || manifest.round > kRoundsMax) {
    return NoJobFile(absl::StrCat("is of round ", manifest.round));
  }
  if (!was.ok()) return NoJobFile(absl::StrCat("has no valid job: ", was.status().message()));
  if (manifest.decision.decision.policy.opt_step > kStepCountMax) {
    return NoJobFile(absl::StrCat("has taken ", manifest.decision.decision.policy.opt_step,
                                  " steps; at most ", kStepCountMax, " are believed"));
  }
  if (was->epoch.epoch > kEpochsMax || !IsDurable(*was)) {
    return NoJobFile("is of a job that cannot be");
  }
  return absl::OkStatus();
}

// A server that sees optimizer state where its home has seen none, or the other way round.
absl::Status OtherFiles(uint32_t self, const std::string& directory, bool home_has_state) {
  const absl::string_view seen = home_has_state ? "none" : "some";
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kBadArgument,
      absl::StrCat("server ", self, " sees ", seen, " of the optimizer state in ", directory, "/",
                   kStateDirectory, ", and the home has seen ", home_has_state ? "some" : "none",
                   "; leave the files alone while they are imported, and let storage.export_dir ",
                   "be one directory that all servers share"),
      {.server = static_cast<int>(self)});
}

// How the round before the job's first ended: nothing was applied, and this is where it stands.
std::pair<PreparedRecord, DecisionRecord> RoundBefore(const SnapshotManifest& manifest,
                                                      const JobPlan& plan,
                                                      const ImportSource& source, uint32_t self) {
  PolicyState policy = StartPolicy(plan.spec);
  if (source.has_state()) {
    // Weights without state begin a schedule and a loss scale anew, as they do step counts.
    const PolicyState& was = manifest.decision.decision.policy;
    if (was.version == policy.version && policy.version >= kPolicyVersionScheduled) policy = was;
    policy.opt_step = was.opt_step;
    policy.consecutive_skips = was.consecutive_skips;
  }
  PreparedRecord prepared;
  prepared.epoch = plan.epoch.epoch - 1;
  prepared.round = manifest.round - 1;
  prepared.vote.server = self;
  prepared.present.assign(plan.spec.tensors.size(), false);
  prepared.tensor_step = source.tensor_step();
  prepared.policy = policy;
  if (self == plan.servers.front()) prepared.user_state = manifest.prepared.user_state;
  std::erase_if(prepared.user_state, [&](const auto& state) {
    return state.first >= plan.spec.world || state.second.size() > kUserStateBytesMax;
  });
  DecisionRecord decision;
  decision.epoch = prepared.epoch;
  decision.round = prepared.round;
  decision.decision.policy = policy;
  return {prepared, decision};
}

}  // namespace

// --- At the home --------------------------------------------------------------------------------

void Importer::Import(ImportCall call, Done then) {
  parts_.strand->Post([this, call = std::move(call), then = std::move(then)] {
    const Done done = parts_.work->UnderWay(then);
    absl::Status status = parts_.files->CheckHome();
    if (status.ok()) status = CheckSnapshotName(call.from);
    if (status.ok()) status = maker_->TakeName(call.made());
    if (!status.ok()) return done(status);
    parts_.work->Run(
        kImportThread, [this, call] { return Prepare(call); },
        [=, this](const absl::StatusOr<Ready>& ready) {
          if (ready.ok()) return MakeAtAll(*ready, done);
          maker_->DropName(call.made());
          done(ready.status());
        });
  });
}

absl::StatusOr<Importer::Ready> Importer::Prepare(const ImportCall& call) const {
  const Exports exports = parts_.files->exports(call.tenant);
  const std::string directory = exports.Directory(call.from);
  FileSystem* const fs = exports.fs();
  BALLAST_ASSIGN_OR_RETURN(const SnapshotManifest manifest, ReadJobFile(fs, directory));
  BALLAST_RETURN_IF_ERROR(CheckManifest(manifest, parts_.files->PlanOf(manifest)));
  BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, maker_->Plan(call.made(), call.world, manifest));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  BALLAST_ASSIGN_OR_RETURN(
      const auto source,
      ImportSource::Open(fs, directory, plan.spec, layout, {manifest.id, manifest.round}, isa_));
  BALLAST_RETURN_IF_ERROR(maker_->MarkOrdered(plan));
  ImportInfo info;
  info.state = source->has_state();
  info.bytes = source->bytes();
  return Ready{{plan, call.from, info.state}, info};
}

void Importer::MakeAtAll(const Ready& ready, const Done& done) {
  const auto at_server = [this, order = ready.order](
                             uint32_t server, const std::function<void(absl::Status)>& made) {
    const bool here = server == parts_.self->id();
    here ? ImportJob(order, made) : parts_.peers->ImportJob(server, order, made);
  };
  const auto end = [info = ready.info, done](const absl::StatusOr<DurableJob>& job) {
    if (!job.ok()) return done(job.status());
    ImportInfo whole = info;
    whole.job = *job;
    done(whole);
  };
  maker_->Make(ready.order.plan, at_server, end);
}

// --- At every server ----------------------------------------------------------------------------

void Importer::ImportJob(ImportOrder order, ShareDone done) {
  parts_.strand->Run([this, order = std::move(order), done = std::move(done)] {
    if (const absl::Status status = parts_.files->Check(); !status.ok()) return done(status);
    parts_.work->CarryOut(
        kImportThread, {order.plan.job, order.plan.name()},
        [this, order](const CancelToken& cancel) { return MakeFiles(order, cancel); }, done);
  });
}

absl::Status Importer::MakeFiles(const ImportOrder& order, const CancelToken& cancel) {
  const JobPlan& plan = order.plan;
  BALLAST_RETURN_IF_ERROR(cancel.status());
  BALLAST_RETURN_IF_ERROR(CheckSnapshotName(order.from));
  const Exports exports = parts_.files->exports(plan.tenant);
  const std::string directory = exports.Directory(order.from);
  FileSystem* const fs = exports.fs();
  BALLAST_ASSIGN_OR_RETURN(const SnapshotManifest manifest, ReadJobFile(fs, directory));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  BALLAST_ASSIGN_OR_RETURN(
      const auto source,
      ImportSource::Open(fs, directory, plan.spec, layout, {manifest.id, manifest.round}, isa_));
  if (manifest.round != plan.resting_round) {
    return NoJobFile(absl::StrCat("is of round ", manifest.round, ", and the home has read ",
                                  plan.resting_round, "; storage.export_dir has to be one ",
                                  "directory that all servers share"));
  }
  if (source->has_state() != order.state) {
    return OtherFiles(parts_.self->id(), directory, order.state);
  }
  const auto read = [&](uint32_t extent, char* image, char* scratch) {
    return source->ReadExtent(extent, reinterpret_cast<float*>(image), scratch);
  };
  return shares_->Make(plan, [&](JobStorage* storage) -> absl::Status {
    BALLAST_FAILPOINT_RETURN("import.before_state");
    BALLAST_RETURN_IF_ERROR(shares_->Fill(
        {"import", storage->images(), source->scratch_bytes(), &cancel}, plan, layout, read));
    const auto [prepared, decision] = RoundBefore(manifest, plan, *source, parts_.self->id());
    BALLAST_RETURN_IF_ERROR(storage->log()->Seed(prepared, decision));
    BALLAST_FAILPOINT_RETURN("import.after_state");
    return absl::OkStatus();
  });
}

}  // namespace ballast::server
