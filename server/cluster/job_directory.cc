// Home: attach. See home.h.
// Thread safety: on the strand.
#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/base/crc32c.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "server/cluster/home.h"

namespace ballast::server {
namespace {

// A job id must differ between two lives of a name and between servers that were restarted, and be
// chosen by the home alone: the first seat's random incarnation provides that.
uint64_t JobId(const std::string& name, uint64_t incarnation) {
  const uint32_t high = Crc32c(name.data(), name.size());
  const uint64_t id = (uint64_t{high} << 32) ^ (incarnation * 0x9E3779B97F4A7C15ull);
  return id == 0 ? 1 : id;
}

}  // namespace

// --- Attach -------------------------------------------------------------------------------------

void Home::DoAttach(const AttachCall& call, const AttachDone& done) {
  if (absl::Status st = parts_.self->CheckHome(); !st.ok()) return done(st);
  if (absl::Status st = ValidateJobSpec(call.spec, config().limits); !st.ok()) return done(st);
  if (WakeUp(call, done) || AnswerKnown(call, done)) return;
  auto it = pending_.find(call.spec.name);
  const bool fresh = it == pending_.end();
  if (fresh && call.resume == Resume::kMust) {
    return done(ReasonedError(
        absl::StatusCode::kNotFound, Reason::kUnknownJob,
        absl::StrCat("there is no job \"", call.spec.name, "\" to go on with; check the name, or ",
                     "use resume=\"auto\" to start it when it is not there"),
        {.job = call.spec.name}));
  }
  if (fresh) {
    if (pending_.size() >= config().jobs_max) parts_.jobs->DropEnded();
    if (pending_.size() >= config().jobs_max) {
      return done(
          ReasonedError(absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
                        absl::StrCat(pending_.size(), " jobs are under way; limits.max_jobs is ",
                                     config().jobs_max, ". Wait for one to end, or raise it"),
                        {.job = call.spec.name}));
    }
    it = pending_.emplace(call.spec.name, Pending(call)).first;
    it->second.generation = next_generation_++;
    const auto wait = call.wait.count() > 0 ? call.wait : config().attach_timeout;
    parts_.strand->PostAfter(
        wait, [self = shared_from_this(), name = call.spec.name,
               generation = it->second.generation] { self->OnAttachTimeout(name, generation); });
  }
  Pending& pending = it->second;
  if (absl::Status st = pending.home.Attach(call); !st.ok()) {
    done(st);
    const bool disagree =
        ReasonOf(st) == Reason::kSpecMismatch || ReasonOf(st) == Reason::kInitMismatch;
    if (disagree) Refuse(&pending, st, call.slot);
    if (fresh) pending_.erase(it);
    return;
  }
  Waiting& waiting = pending.waiting[call.slot];
  if (waiting.done) {  // The same process, again: its first call is lost on the way.
    waiting.done(absl::CancelledError("a later call of the same trainer took its place"));
  }
  waiting = {call.call, call.incarnation, done};
  if (pending.home.AllAttached()) CreateEverywhere(&pending);
}

bool Home::AnswerKnown(const AttachCall& call, const AttachDone& done) {
  const auto it = pending_.find(call.spec.name);
  if (it == pending_.end()) return false;
  Pending& pending = it->second;
  if (!pending.refused.ok()) {
    // Each slot is told once; one that comes again belongs to a new attempt under the old name.
    const bool first_time =
        call.slot < pending.home.spec().world && pending.told.insert(call.slot).second;
    if (first_time) done(pending.refused);
    if (!first_time || pending.told.size() == pending.home.spec().world) pending_.erase(it);
    return first_time;
  }
  if (!pending.created && !pending.creating) return false;
  const bool same_process = pending.plan.epoch.Holds(call.slot, call.incarnation);
  if (same_process) SomebodyIsThere(&pending);
  if (same_process && pending.created && !pending.change.has_value()) {
    AnswerSeat(pending, call.slot, done);
  } else if (same_process) {
    Waiting& waiting = (pending.created ? pending.survivors : pending.waiting)[call.slot];
    if (waiting.done) {
      waiting.done(absl::CancelledError("a later call of the same trainer took its place"));
    }
    waiting = {call.call, call.incarnation, done};
  } else if (call.resume != Resume::kNever && pending.plan.spec.durability != Durability::kNone) {
    TakeSeat(&pending, call, done);
  } else {
    const LocalJobs::Job* const local = parts_.jobs->Get(pending.plan.job);
    done(NameTaken(call, pending.plan, local != nullptr && local->ended));
  }
  return true;
}

absl::Status Home::NameTaken(const AttachCall& call, const JobPlan& plan, bool ended) {
  const std::string& name = plan.spec.name;
  std::string text = absl::StrCat("job \"", name, "\" ");
  if (plan.spec.durability == Durability::kNone) {
    absl::StrAppend(&text, ended ? "has ended, and its name stays taken for a while "
                                   "(timing.job_ttl); use another name"
                                 : "already has all its trainers; use another name");
  } else {
    absl::StrAppend(&text,
                    ended ? "was run before and is kept on disk" : "already has all its trainers",
                    "; use resume=\"auto\" to go on with it, another name, or delete it with "
                    "`ballastctl jobs delete ",
                    name, ended ? "`" : " --force`");
  }
  return ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kNameInUse, text,
                       {.job = name, .slot = static_cast<int>(call.slot)});
}

// The world can never be complete: those who wait learn now what would otherwise time out, and
// those who come later learn it then.
void Home::Refuse(Pending* pending, const absl::Status& status, uint32_t slot) {
  pending->refused = status;
  pending->told.insert(slot);
  for (const auto& [waiting_slot, waiting] : pending->waiting) pending->told.insert(waiting_slot);
  FailPending(pending, status);
  if (pending->told.size() != pending->home.spec().world) return;
  const std::string name = pending->home.spec().name;
  pending_.erase(name);
}

void Home::DoCancel(const std::string& job, uint32_t slot, uint64_t call) {
  const auto it = pending_.find(job);
  if (it == pending_.end() || it->second.creating) return;
  const auto waiting = it->second.waiting.find(slot);
  if (waiting == it->second.waiting.end() || waiting->second.call != call) return;
  if (it->second.created) {  // A newcomer that will not need its seat.
    it->second.newcomers.erase(slot);
    it->second.waiting.erase(waiting);
    if (it->second.newcomers.empty()) it->second.gathers_until.reset();
    return;
  }
  it->second.home.Cancel(slot, waiting->second.incarnation);
  it->second.waiting.erase(waiting);
  if (it->second.home.Empty()) pending_.erase(it);
}

AttachResult Home::ResultOf(const Pending& pending) {
  AttachResult result{.plan = pending.plan, .servers = config().servers};
  result.resumed = pending.plan.epoch.epoch > 1;
  const std::shared_ptr<RoundEngine> engine = Find(pending.plan.job);
  if (engine != nullptr) result.window_extents = engine->window_extents();
  return result;
}

void Home::AnswerSeat(const Pending& pending, uint32_t slot, const AttachDone& done) {
  const std::shared_ptr<RoundEngine> engine = Find(pending.plan.job);
  if (engine == nullptr) return done(parts_.self->NoDurableJob(pending.plan.job));
  engine->UserState(slot, [result = ResultOf(pending), done](const std::string& state) {
    AttachResult own = result;
    own.user_state = state;
    done(std::move(own));
  });
}

void Home::OnAttachTimeout(const std::string& name, uint64_t generation) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.generation != generation) return;
  if (it->second.creating || it->second.created) return;
  if (!it->second.refused.ok()) {
    pending_.erase(it);
    return;
  }
  const absl::Status status = ReasonedError(
      absl::StatusCode::kDeadlineExceeded, Reason::kAttachTimeout,
      absl::StrCat("job \"", name, "\" waited in vain for slots ",
                   absl::StrJoin(it->second.home.MissingSlots(), ", "), " of a world of ",
                   it->second.home.spec().world, "; start them, or check the world size"),
      {.job = name});
  FailPending(&it->second, status);
  pending_.erase(it);
}

void Home::FailPending(Pending* pending, const absl::Status& status) {
  for (auto& [slot, waiting] : std::exchange(pending->waiting, {})) waiting.done(status);
  for (auto& [slot, waiting] : std::exchange(pending->survivors, {})) waiting.done(status);
  pending->newcomers.clear();
  pending->gathers_until.reset();
  for (auto& [slot, done] : std::exchange(pending->extending, {})) done(status);
}

void Home::CreateEverywhere(Pending* pending) {
  pending->creating = true;
  const JobSpec& spec = pending->home.spec();
  JobPlan& plan = pending->plan;
  plan.spec = spec;
  plan.epoch.members = pending->home.Members();
  plan.epoch.min_world = pending->home.min_world();
  plan.epoch.contributors = AllContribute(plan.epoch.members, spec.group_count);
  plan.job = JobId(spec.name, plan.epoch.members.front().incarnation);
  for (const ServerAddress& server : config().servers) plan.servers.push_back(server.id);
  const auto layout =
      Layout::Build(LayoutTensors(spec.tensors), spec.tile_elements, spec.extent_elements);
  for (const uint32_t index : PlanOwners(*layout, static_cast<uint32_t>(plan.servers.size()))) {
    plan.owner.push_back(plan.servers[index]);
  }
  MakeEverywhere(plan);
}

// Also goes on with a job that was being made when this server, its home, went down: the servers
// that have it already say so.
void Home::MakeEverywhere(const JobPlan& plan) {
  auto gather = std::make_shared<Gather>(
      plan.servers.size(),
      [self = shared_from_this(), name = plan.spec.name, job = plan.job](absl::Status status) {
        self->Post([self = self.get(), name, job, status] { self->OnCreated(name, job, status); });
      });
  JobPlan making = plan;
  making.making = true;
  CreateAtServers(making, gather);
}

void Home::CreateAtServers(const JobPlan& plan, const std::shared_ptr<Gather>& gather) {
  for (const uint32_t server : plan.servers) {
    if (server == parts_.self->id()) {
      const absl::Status made = parts_.jobs->Make(plan);
      if (!made.ok()) return gather->GiveUp(made);
      gather->Add(made);
    } else {
      parts_.peers->CreateJob(server, plan, [gather](absl::Status status) { gather->Add(status); });
    }
  }
}

// Nothing else of the job is saved before this.
absl::Status Home::SaveMade(const JobPlan& plan) {
  const bool durable = plan.spec.durability != Durability::kNone && parts_.store != nullptr;
  return durable && plan.servers.size() > 1 ? parts_.store->Save(plan) : absl::OkStatus();
}

void Home::OnCreated(const std::string& name, uint64_t job, const absl::Status& made) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.plan.job != job) {
    // Given up meanwhile, because a peer was lost.
    for (const ServerAddress& server : config().servers) {
      if (server.id != parts_.self->id()) DropAtPeer(server.id, job);
    }
    parts_.jobs->Forget(job).IgnoreError();  // Logged.
    return;
  }
  Pending& pending = it->second;
  pending.creating = false;
  const absl::Status status = made.ok() ? SaveMade(pending.plan) : made;
  if (!status.ok()) {
    for (const uint32_t server : pending.plan.servers) {
      if (server != parts_.self->id()) DropAtPeer(server, pending.plan.job);
    }
    FailPending(&pending, status);
    pending_.erase(it);
    parts_.jobs->Forget(job).IgnoreError();  // Logged.
    return;
  }
  pending.created = true;
  if (auto engine = Find(job); engine != nullptr) engine->ExpectSlots();
  BALLAST_LOG(INFO, LogField("run", name), LogField("job", JobIdText(pending.plan.job)))
      << "job created: world " << pending.plan.epoch.world() << ", " << pending.plan.owner.size()
      << " extents on " << pending.plan.servers.size() << " servers";
  EndChange(&pending, absl::OkStatus());
  AwaitNewcomers(pending);
}

}  // namespace ballast::server
