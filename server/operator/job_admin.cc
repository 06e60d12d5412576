#include "server/operator/job_admin.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "server/operator/job_description.h"

namespace ballast::server {
namespace {

absl::Status Busy(const JobPlan& plan, uint32_t attached) {
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kJobBusy,
      absl::StrCat(attached, " of ", plan.spec.world, " trainers of job \"", plan.spec.name,
                   "\" are attached; stop them first, or use --force"),
      {.job = plan.spec.name});
}

JobStatus StatusOf(const DamagedJobs::Entry& damaged) {
  const JobPlan& plan = damaged.plan;
  JobStatus status{.name = plan.spec.name, .tenant = plan.tenant, .job = plan.job};
  status.state = damaged.state();
  status.world = plan.epoch.world();
  status.parameters = ParametersOf(plan.spec);
  status.extents = static_cast<uint32_t>(plan.owner.size());
  status.error = std::string(damaged.why.message());
  return status;
}

// Of the last server, the home, which keeps the job's name until nothing of it is left.
absl::Status LeftAtHome(const JobPlan& plan, const absl::Status& why) {
  return ReasonedError(
      absl::StatusCode::kUnavailable, Reason::kStorageFailed,
      absl::StrCat("job \"", plan.spec.name,
                   "\" is not deleted at its home, where its disk failed (", why.message(),
                   "), and keeps its name; mend that disk and delete it again"),
      {.job = plan.spec.name, .server = static_cast<int>(plan.servers.front())});
}

}  // namespace

// --- This server
// ----------------------------------------------------------------------------------

ServerLoad JobAdmin::Load() const {
  return {memory_->used_bytes(), memory_->budget_bytes(), parts_.work->works()->List()};
}

void JobAdmin::Status(std::function<void(std::vector<JobStatus>)> done) {
  parts_.strand->Post([this, done = std::move(done)] { Collect(done); });
}

void JobAdmin::Collect(const std::function<void(std::vector<JobStatus>)>& done) {
  struct Collected {
    Mutex mu;
    std::vector<JobStatus> jobs ABSL_GUARDED_BY(mu);
  };
  const auto collected = std::make_shared<Collected>();
  auto engines = parts_.jobs->Engines();
  for (JobStatus& attaching : parts_.homes->Attaching()) {
    std::erase_if(engines, [&](const auto& engine) { return engine->job() == attaching.job; });
    MutexLock lock(&collected->mu);
    collected->jobs.push_back(std::move(attaching));
  }
  for (const DamagedJobs::Ref& damaged : parts_.damaged->All()) {
    if (parts_.jobs->Find(damaged->plan.job) != nullptr) continue;  // It says so itself.
    MutexLock lock(&collected->mu);
    collected->jobs.push_back(StatusOf(*damaged));
  }
  const auto answers = std::make_shared<WhenAll>(engines.size(), [collected, done](absl::Status) {
    MutexLock lock(&collected->mu);
    std::sort(collected->jobs.begin(), collected->jobs.end(),
              [](const JobStatus& a, const JobStatus& b) {
                return std::tie(a.tenant, a.name) < std::tie(b.tenant, b.name);
              });
    done(collected->jobs);
  });
  for (const auto& engine : engines) {
    engine->Status([collected, answers](JobStatus job) {
      {
        MutexLock lock(&collected->mu);
        collected->jobs.push_back(std::move(job));
      }
      answers->Add(absl::OkStatus());
    });
  }
}

// --- Listing ------------------------------------------------------------------------------------

void JobAdmin::RetryJob(QualifiedName name, std::function<void(absl::StatusOr<bool>)> done) {
  parts_.strand->Post([=, this] { done(parts_.jobs->Retry(name)); });
}

void JobAdmin::ListJobs(std::function<void(absl::StatusOr<DurableJobs>)> done) {
  parts_.strand->Post([this, done = std::move(done)] { List(done); });
}

void JobAdmin::List(const std::function<void(absl::StatusOr<DurableJobs>)>& done) {
  if (absl::Status st = parts_.self->CheckHome(); !st.ok()) return done(st);
  const auto listed = std::make_shared<DurableJobs>();
  std::vector<std::shared_ptr<RoundEngine>> running;
  for (const auto& [name, plan] : parts_.resting->all()) {
    const DamagedJobs::Ref damaged = parts_.damaged->Find(plan.job);
    if (parts_.jobs->Runs(plan.job) || damaged != nullptr) continue;
    listed->push_back(Describe(plan, "resting", parts_.store));
  }
  for (const DamagedJobs::Ref& damaged : parts_.damaged->All()) {
    const JobStore* const store = damaged->lacking ? nullptr : parts_.store;
    listed->push_back(Describe(damaged->plan, damaged->state(), store));
  }
  for (const auto& [id, job] : parts_.jobs->all()) {
    const std::shared_ptr<RoundEngine> engine = parts_.jobs->Find(id);
    const bool durable = IsDurable(job.plan);
    if (!durable || job.ended || engine == nullptr) continue;
    listed->push_back(Describe(job.plan, "running", parts_.store));
    running.push_back(engine);
  }
  const auto finish = [listed, done](const absl::Status&) {
    std::sort(listed->begin(), listed->end(), [](const DurableJob& a, const DurableJob& b) {
      return std::tie(a.tenant, a.name) < std::tie(b.tenant, b.name);
    });
    done(*listed);
  };
  const auto answers = std::make_shared<WhenAll>(running.size(), finish);
  for (const auto& engine : running) {
    parts_.jobs->Ask(engine, [listed, answers](const JobStatus& status) {
      for (DurableJob& job : *listed) {
        if (job.job != status.job) continue;
        job.round = status.round;
        job.open_streams = status.open_streams;
      }
      answers->Add(absl::OkStatus());
    });
  }
}

// --- Deleting -----------------------------------------------------------------------------------

absl::StatusOr<JobPlan> JobAdmin::FindToDelete(const DeleteJobCall& call) const {
  const QualifiedName& name = call.name;
  BALLAST_RETURN_IF_ERROR(parts_.self->CheckHome());
  BALLAST_ASSIGN_OR_RETURN(JobPlan plan, parts_.names->MadeJob(name));
  if (!IsDurable(plan)) {
    return ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
        absl::StrCat("job \"", name.name, "\" has durability none: nothing of it is on disk, ",
                     "and it ends with its trainers"),
        {.job = name.name});
  }
  const absl::Status here = parts_.self->CheckServers(plan);
  if (ReasonOf(here) == Reason::kServerRemoved && !call.force) {
    return ReasonedError(here.code(), Reason::kServerRemoved,
                         absl::StrCat(here.message(), "; or delete the job with --force, which ",
                                      "leaves what those servers have of it"),
                         FieldsOf(here));
  }
  const absl::Status held = parts_.resting->CheckFree(plan, parts_.jobs->Runs(plan.job));
  if (!held.ok()) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobBusy,
                         std::string(held.message()), {.job = name.name});
  }
  return plan;
}

void JobAdmin::DeleteJob(DeleteJobCall call, Done done) {
  parts_.strand->Post(
      [this, call = std::move(call), done = std::move(done)] { Delete(call, done); });
}

void JobAdmin::Delete(const DeleteJobCall& call, const Done& done) {
  const absl::StatusOr<JobPlan> plan = FindToDelete(call);
  if (!plan.ok()) return done(plan.status());
  const std::shared_ptr<RoundEngine> engine = parts_.jobs->Find(plan->job);
  if (engine == nullptr || !parts_.jobs->Runs(plan->job)) return DeleteAtAll(*plan, done);
  parts_.jobs->Ask(engine, [=, this, plan = *plan, force = call.force](const JobStatus& status) {
    if (status.open_streams != 0 && !force) return done(Busy(plan, status.open_streams));
    EndAndDelete(plan, engine, done);
  });
}

// The job rests first: after an interrupted deletion no server runs half of a job.
void JobAdmin::EndAndDelete(const JobPlan& plan, const std::shared_ptr<RoundEngine>& engine,
                            const Done& done) {
  engine->Fail(JobDeleted(plan));
  parts_.jobs->Ask(engine, [this, plan, done](const JobStatus&) { DeleteAtAll(plan, done); });
}

void JobAdmin::DeleteAtAll(const JobPlan& plan, const Done& done) {
  const auto here = [plan, done](const absl::Status& removed) {
    done(removed.ok() ? removed : LeftAtHome(plan, removed));
  };
  const auto others = [this, plan, here, done](const absl::Status& status) {
    if (status.ok()) return parts_.jobs->DropJob(plan.job, here);
    done(ReasonedError(
        absl::StatusCode::kUnavailable, Reason::kServerLost,
        absl::StrCat("job \"", plan.spec.name, "\" is not deleted everywhere (", status.message(),
                     "); start all servers of the job and delete it again"),
        {.job = plan.spec.name}));
  };
  std::vector<ServerAddress> peers = ServersOf(parts_.self->config(), plan);
  std::erase_if(peers, [this](const ServerAddress& peer) { return peer.id == parts_.self->id(); });
  const auto answers = std::make_shared<WhenAll>(peers.size(), parts_.strand->Bind(others));
  for (const ServerAddress& peer : peers) {
    parts_.peers->DropJob(peer.id, plan.job,
                          [answers](const absl::Status& status) { answers->Add(status); });
  }
}

}  // namespace ballast::server
