#include "server/operator/job_maker.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"
#include "server/operator/job_description.h"

namespace ballast::server {
namespace {

constexpr std::chrono::seconds kDropRetry(1);

// Seats of former processes: a trainer of the new job takes one as it attaches.
void Reseat(uint32_t world, const DirectoryConfig& config, JobPlan* plan) {
  EpochRecord& epoch = plan->epoch;
  epoch.members.clear();
  for (uint32_t slot = 0; slot < world; ++slot) {
    epoch.members.push_back({slot, config.new_id()});
  }
  epoch.min_world = std::min(epoch.min_world, world);
  epoch.contributors = ContributorsOf(plan->spec, epoch.members);
  plan->spec.world = world;
}

// The job begins at `round`, in an epoch of its own, and rests before it. No growth is to come:
// also the weights of a group that no round has stepped are in the state.
void BeginAt(uint64_t round, JobPlan* plan) {
  plan->epoch.epoch += 1;
  plan->epoch.start_round = round;
  plan->sealed_epoch = 0;
  plan->grown_round = 0;
  plan->tensors_before = 0;
  plan->growing = plan->making = false;
  plan->attempt = {};
  plan->resting = true;
  plan->resting_round = round;
}

}  // namespace

absl::Status NameInUse(const std::string& name, const std::string& why) {
  return ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
                       absl::StrCat("job \"", name, "\" ", why, "; choose another name with --as, ",
                                    "or delete it first: `ballastctl jobs delete ", name, "`"),
                       {.job = name});
}

absl::Status JobMaker::TakeName(const QualifiedName& name) {
  if (parts_.names->HasName(name)) return NameInUse(name.name, "exists");
  if (!making_.insert(name).second) return NameInUse(name.name, "is being made");
  return absl::OkStatus();
}

absl::StatusOr<JobPlan> JobMaker::Plan(const QualifiedName& name, uint32_t world,
                                       const SnapshotManifest& manifest) const {
  const DirectoryConfig& config = parts_.self->config();
  BALLAST_ASSIGN_OR_RETURN(JobPlan plan, parts_.files->PlanOf(manifest));
  plan.spec.name = name.name;
  plan.tenant = name.tenant;
  if (world != 0) plan.spec.world = world;
  BALLAST_RETURN_IF_ERROR(ValidateJobSpec(plan.spec, config.limits));  // Before seats are made.
  Reseat(plan.spec.world, config, &plan);
  plan.job = config.new_id();
  BeginAt(manifest.round, &plan);
  plan.servers.clear();
  plan.owner.clear();
  for (const ServerAddress& server : config.servers) plan.servers.push_back(server.id);
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  for (const uint32_t index : PlanOwners(layout, static_cast<uint32_t>(plan.servers.size()))) {
    plan.owner.push_back(plan.servers[index]);
  }
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  return plan;
}

absl::Status JobMaker::MarkOrdered(const JobPlan& plan) const {
  if (plan.servers.size() == 1) return absl::OkStatus();
  return parts_.store->MarkOrdered(plan.job);
}

void JobMaker::Make(const JobPlan& plan, const BackgroundTasks::AtServer& at_server,
                    const Done& done) {
  const auto end = [=, this](const absl::Status& status) { OnMade(plan, status, done); };
  if (parts_.self->stopping()) return end(parts_.self->ShuttingDown());
  const auto others = [=, this](const absl::Status& status) {
    status.ok() ? at_server(parts_.self->id(), end) : end(status);
  };
  const auto answers =
      parts_.work->WhenAllPeers(plan.servers.size() - 1, parts_.strand->Bind(others));
  for (const uint32_t server : plan.servers) {
    if (server == parts_.self->id()) continue;
    const auto add = [answers, server, name = plan.spec.name](const absl::Status& status) {
      const std::string what = absl::StrCat("made its share of job ", Quoted(name));
      answers->Add(BackgroundTasks::SaidBy(server, what, status));
    };
    parts_.work->Tell(server, at_server, add);
  }
}

void JobMaker::OnMade(const JobPlan& plan, const absl::Status& status, const Done& done) {
  DropName(plan.name());
  if (!status.ok()) {
    DropOrdered(plan.job);
    return done(status);
  }
  parts_.resting->Add(plan);
  ClearOrdered(plan.job);
  BALLAST_LOG(INFO, LogField("run", plan.spec.name), LogField("round", plan.resting_round))
      << "made; it rests until trainers attach with resume";
  done(Describe(plan, "resting", parts_.store));
}

absl::Status JobMaker::Recover() {
  if (parts_.store == nullptr) return absl::OkStatus();
  BALLAST_ASSIGN_OR_RETURN(ordered_only_, parts_.store->OrderedOnly());
  return absl::OkStatus();
}

void JobMaker::StartRecovered() {
  for (const uint64_t job : std::exchange(ordered_only_, {})) DropOrdered(job);
}

void JobMaker::DropOrdered(uint64_t job) {
  if (parts_.self->stopping()) return;
  const auto& servers = parts_.self->config().servers;
  const auto answers = std::make_shared<WhenAll>(
      servers.size() - 1,
      parts_.strand->Bind([this, job](const absl::Status& status) { OnDropped(job, status); }));
  for (const ServerAddress& server : servers) {
    if (server.id == parts_.self->id()) continue;
    parts_.peers->DropJob(server.id, job,
                          [answers](const absl::Status& status) { answers->Add(status); });
  }
}

void JobMaker::OnDropped(uint64_t job, const absl::Status& status) {
  if (status.ok()) return ClearOrdered(job);
  parts_.strand->PostAfter(kDropRetry, [this, job] { DropOrdered(job); });
}

void JobMaker::ClearOrdered(uint64_t job) {
  parts_.work->RunAndLog(BackgroundTasks::Thread::kSnapshots,
                         [store = parts_.store, job] { return store->ClearOrdered(job); });
}

}  // namespace ballast::server
