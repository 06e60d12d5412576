// Directory: durable jobs as an operator sees them: listed, and removed from every disk.
//
// A job is removed at the peers first and at the home last, so that it stays listed, and can be
// asked to go again, until nothing of it is left anywhere.
// Thread safety: on the strand.
#include <algorithm>

#include "server/cluster/directory.h"

namespace ballast::server {
namespace {

absl::Status Deleted(const JobPlan& plan) {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobFailed,
                       absl::StrCat("job \"", plan.spec.name, "\" was deleted by an operator"),
                       {.job = plan.spec.name});
}

}  // namespace

uint64_t ParametersOf(const JobSpec& spec) {
  uint64_t parameters = 0;
  for (const LayoutTensor& tensor : LayoutTensors(spec.tensors)) parameters += tensor.elements;
  return parameters;
}

// Runs `done` with what the engine says, on the directory's strand.
void Directory::AskEngine(const std::shared_ptr<RoundEngine>& engine,
                          std::function<void(const JobSnapshot&)> done) {
  engine->Snapshot([self = shared_from_this(), done = std::move(done)](JobSnapshot snapshot) {
    self->Post([done, snapshot = std::move(snapshot)] { done(snapshot); });
  });
}

// --- At the home --------------------------------------------------------------------------------

DurableJob Directory::Describe(const JobPlan& plan, const std::string& state) const {
  DurableJob job{.name = plan.spec.name, .job = plan.job, .state = state};
  job.durability = plan.spec.durability;
  job.world = plan.spec.world;
  job.epoch = plan.epoch.epoch;
  job.round = plan.resting ? plan.resting_round : plan.epoch.start_round;
  job.parameters = ParametersOf(plan.spec);
  job.tensors = static_cast<uint32_t>(plan.spec.tensors.size());
  job.groups = plan.spec.group_count;
  job.servers = plan.servers;
  for (const uint32_t server : plan.servers) job.disk_bytes += store_->DiskBytes(plan, server);
  return job;
}

void Directory::DoListJobs(const std::function<void(absl::StatusOr<DurableJobs>)>& done) {
  if (absl::Status st = CheckHome(); !st.ok()) return done(st);
  auto jobs = std::make_shared<DurableJobs>();
  const auto add = [this, jobs](const JobPlan& plan, const std::string& state) {
    jobs->push_back(Describe(plan, state));
  };
  std::vector<std::shared_ptr<RoundEngine>> running;
  for (const auto& [name, plan] : resting_) {
    const auto local = local_.find(plan.job);
    if (local == local_.end() || local->second.ended) add(plan, "resting");
  }
  for (const auto& [id, local] : local_) {
    const std::shared_ptr<RoundEngine> engine = Find(id);
    const bool durable = local.plan.spec.durability != Durability::kNone;
    if (!durable || local.ended || engine == nullptr) continue;
    add(local.plan, "running");
    running.push_back(engine);
  }
  const auto finish = [jobs, done](const absl::Status&) {
    std::sort(jobs->begin(), jobs->end(),
              [](const DurableJob& a, const DurableJob& b) { return a.name < b.name; });
    done(*jobs);
  };
  auto gather = std::make_shared<Gather>(running.size(), finish);
  for (const auto& engine : running) {
    AskEngine(engine, [jobs, gather](const JobSnapshot& snapshot) {
      for (DurableJob& job : *jobs) {
        if (job.job != snapshot.job) continue;
        job.round = snapshot.round;
        job.open_streams = snapshot.open_streams;
      }
      gather->Add(absl::OkStatus());
    });
  }
}

void Directory::DoDeleteJob(const std::string& name, bool force,
                            const std::function<void(absl::Status)>& done) {
  if (absl::Status st = CheckHome(); !st.ok()) return done(st);
  const auto refuse = [&](absl::StatusCode code, Reason reason, const std::string& message) {
    done(ReasonedError(code, reason, message, {.job = name}));
  };
  const auto pending = pending_.find(name);
  const auto resting = resting_.find(name);
  if (pending != pending_.end() && !pending->second.created) {
    return refuse(absl::StatusCode::kFailedPrecondition, Reason::kJobBusy,
                  absl::StrCat("trainers are attaching to job \"", name, "\"; stop them first"));
  }
  if (pending == pending_.end() && resting == resting_.end()) {
    return refuse(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                  absl::StrCat("there is no job \"", name, "\"; `ballastctl jobs list` shows ",
                               "those there are"));
  }
  const JobPlan plan = pending != pending_.end() ? pending->second.plan : resting->second;
  if (plan.spec.durability == Durability::kNone) {
    return refuse(absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
                  absl::StrCat("job \"", name, "\" has durability none: nothing of it is on disk, ",
                               "and it ends with its trainers"));
  }
  if (const absl::Status held = HeldAtRest(plan); !held.ok()) {
    return refuse(absl::StatusCode::kFailedPrecondition, Reason::kJobBusy,
                  std::string(held.message()));
  }
  const std::shared_ptr<RoundEngine> engine = Find(plan.job);
  const auto local = local_.find(plan.job);
  if (engine == nullptr || local == local_.end() || local->second.ended) {
    return DeleteEverywhere(plan, done);
  }
  AskEngine(engine, [this, self = shared_from_this(), plan, force, done,
                     engine](const JobSnapshot& snapshot) {
    if (snapshot.open_streams != 0 && !force) {
      return done(ReasonedError(
          absl::StatusCode::kFailedPrecondition, Reason::kJobBusy,
          absl::StrCat(snapshot.open_streams, " of ", plan.spec.world, " trainers of job \"",
                       plan.spec.name, "\" are attached; stop them first, or use --force"),
          {.job = plan.spec.name}));
    }
    // It rests from now on: a deletion that is broken off leaves nothing that half runs.
    engine->Fail(Deleted(plan));
    AskEngine(engine,
              [this, self, plan, done](const JobSnapshot&) { DeleteEverywhere(plan, done); });
  });
}

void Directory::DeleteEverywhere(const JobPlan& plan,
                                 const std::function<void(absl::Status)>& done) {
  auto gather = std::make_shared<Gather>(
      plan.servers.size() - 1, [self = shared_from_this(), plan, done](const absl::Status& status) {
        self->Post([self = self.get(), plan, status, done] {
          if (status.ok()) return self->DropLocal(plan.job, done);
          done(ReasonedError(
              absl::StatusCode::kUnavailable, Reason::kServerLost,
              absl::StrCat("job \"", plan.spec.name, "\" is not deleted everywhere (",
                           status.message(), "); start all servers of the job and delete it again"),
              {.job = plan.spec.name}));
        });
      });
  for (const uint32_t server : plan.servers) {
    if (server == config_.self) continue;
    peers_->DropJob(server, plan.job,
                    [gather](const absl::Status& status) { gather->Add(status); });
  }
}

// --- At every server ----------------------------------------------------------------------------

// Ends the job if it runs, tells its trainers, and removes its files; it may be unknown.
void Directory::DropLocal(uint64_t job, const std::function<void(absl::Status)>& done) {
  if (HaltMaking(job, [=, this] { DropLocal(job, done); })) return;
  const std::shared_ptr<RoundEngine> engine = Find(job);
  const auto local = local_.find(job);
  if (engine != nullptr && local != local_.end() && !local->second.ended &&
      local->second.plan.spec.durability != Durability::kNone) {
    engine->Fail(Deleted(local->second.plan));
    // Behind the end, which lets go of the files.
    AskEngine(engine, [this, self = shared_from_this(), job, done](const JobSnapshot&) {
      done(Forget(job));
    });
    return;
  }
  done(Forget(job));
}

}  // namespace ballast::server
