// Directory: a job that goes on from an export. Every server fills its share of the new job's
// images from the safetensors files; the home comes last, so that the job is there for good or not
// at all. It rests until trainers attach with `resume`. Nobody vouches for the files. Thread
// safety: on the strand; what blocks on the disk on a thread for that.

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "server/cluster/directory.h"
#include "server/exchange/import_source.h"

namespace ballast::server {
namespace {

constexpr uint64_t kRoundsMax = uint64_t{1} << 48;
constexpr uint32_t kEpochsMax = 1u << 30;

absl::Status NoJobFile(const std::string& what) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
                       absl::StrCat(kJobFile, " of the export ", what));
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
  PolicyState policy;
  policy.loss_scale = plan.spec.loss_scale;
  if (source.has_state()) {
    policy.opt_step = manifest.decision.decision.policy.opt_step;
    policy.consecutive_skips = manifest.decision.decision.policy.consecutive_skips;
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

void Directory::DoImport(const ImportCall& call, const ImportDone& done) {
  absl::Status status = CheckSnapshotHome();
  if (status.ok()) status = CheckSnapshotName(call.from);
  if (status.ok()) status = CheckNewName(call.as);
  if (!status.ok()) return done(status);
  restoring_.insert(call.as);
  RunOn(exchange_.get(), [this, call, done]() -> std::function<void()> {
    ImportInfo info;
    const absl::StatusOr<JobPlan> plan = PlanOfImport(call, &info);
    const absl::Status ready = plan.ok() ? MarkOrdered(*plan) : plan.status();
    if (ready.ok()) {
      const ImportOrder order{*plan, call.from, info.state};
      return [=, this] { ImportEverywhere(order, info, done); };
    }
    return [=, this] {
      restoring_.erase(call.as);
      done(ready);
    };
  });
}

absl::StatusOr<JobPlan> Directory::PlanOfImport(const ImportCall& call, ImportInfo* info) const {
  const std::string directory = snapshots_.exports->Directory(call.from);
  FileSystem* const fs = snapshots_.exports->fs();
  BALLAST_ASSIGN_OR_RETURN(const SnapshotManifest manifest, ReadJobFile(fs, directory));
  if (manifest.round < 2 || manifest.round > kRoundsMax) {
    return NoJobFile(absl::StrCat("is of round ", manifest.round));
  }
  const absl::StatusOr<JobPlan> was = snapshots_.codec.decode(manifest.plan);
  if (!was.ok()) return NoJobFile(absl::StrCat("has no valid job: ", was.status().message()));
  if (manifest.decision.decision.policy.opt_step > kStepCountMax) {
    return NoJobFile(absl::StrCat("has taken ", manifest.decision.decision.policy.opt_step,
                                  " steps; at most ", kStepCountMax, " are believed"));
  }
  if (was->epoch.epoch > kEpochsMax || was->spec.durability == Durability::kNone) {
    return NoJobFile("is of a job that cannot be");
  }
  BALLAST_ASSIGN_OR_RETURN(JobPlan plan,
                           PlanOfRestore({.as = call.as, .world = call.world}, manifest));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  BALLAST_ASSIGN_OR_RETURN(const auto source,
                           ImportSource::Open(fs, directory, plan.spec, layout,
                                              {manifest.id, manifest.round}, deps_.isa));
  info->state = source->has_state();
  info->bytes = source->bytes();
  return plan;
}

void Directory::ImportEverywhere(const ImportOrder& order, const ImportInfo& info,
                                 const ImportDone& done) {
  MakeEverywhere(
      order.plan,
      [this, order](uint32_t server, const std::function<void(absl::Status)>& made) {
        server == config_.self ? ImportLocal(order, made) : peers_->ImportJob(server, order, made);
      },
      [info, done](const absl::StatusOr<DurableJob>& job) {
        if (!job.ok()) return done(job.status());
        ImportInfo whole = info;
        whole.job = *job;
        done(whole);
      });
}

// --- At every server ----------------------------------------------------------------------------

void Directory::ImportLocal(const ImportOrder& order,
                            const std::function<void(absl::Status)>& done) {
  if (const absl::Status status = CheckSnapshots(); !status.ok()) return done(status);
  const auto making = std::make_shared<Order>();
  making->job = order.plan.job;
  making->name = order.plan.spec.name;
  CarryOut(exchange_.get(), making, [this, order, done](const Halt& halt) -> std::function<void()> {
    return [done, status = ImportFiles(order, halt)] { done(status); };
  });
}

absl::Status Directory::ImportFiles(const ImportOrder& order, const Halt& halt) {
  const JobPlan& plan = order.plan;
  BALLAST_RETURN_IF_ERROR(halt.status());
  BALLAST_RETURN_IF_ERROR(CheckSnapshotName(order.from));
  const std::string directory = snapshots_.exports->Directory(order.from);
  FileSystem* const fs = snapshots_.exports->fs();
  BALLAST_ASSIGN_OR_RETURN(const SnapshotManifest manifest, ReadJobFile(fs, directory));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  BALLAST_ASSIGN_OR_RETURN(const auto source,
                           ImportSource::Open(fs, directory, plan.spec, layout,
                                              {manifest.id, manifest.round}, deps_.isa));
  if (manifest.round != plan.resting_round) {
    return NoJobFile(absl::StrCat("is of round ", manifest.round, ", and the home has read ",
                                  plan.resting_round, "; storage.export_dir has to be one ",
                                  "directory that all servers share"));
  }
  if (source->has_state() != order.state) return OtherFiles(config_.self, directory, order.state);
  const auto read = [&](uint32_t extent, char* image, char* scratch) {
    return source->ReadExtent(extent, reinterpret_cast<float*>(image), scratch);
  };
  return MakeFiles(plan, [&](JobStorage* storage) -> absl::Status {
    BALLAST_FAILPOINT_RETURN("import.before_state");
    BALLAST_RETURN_IF_ERROR(FillImages(
        {"import", storage->images(), source->scratch_bytes(), &halt}, plan, layout, read));
    const auto [prepared, decision] = RoundBefore(manifest, plan, *source, config_.self);
    BALLAST_RETURN_IF_ERROR(storage->log()->Seed(prepared, decision));
    BALLAST_FAILPOINT_RETURN("import.after_state");
    return absl::OkStatus();
  });
}

}  // namespace ballast::server
