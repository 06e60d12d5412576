// JobDirectory on one strand: the home's barriers, creation on the peers, memory and lifetime.
// Thread safety: public methods post to the strand; Find and the memory figures use mu_.
#include "server/cluster/job_directory.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/cluster/job_home.h"

namespace ballast::server {
namespace {

using AttachDone = std::function<void(absl::StatusOr<AttachResult>)>;
using ExtendDone = std::function<void(absl::StatusOr<JobPlan>)>;

// A job id must differ between two lives of a name and between servers that were restarted, and be
// chosen by the home alone: the first seat's random incarnation provides that.
uint64_t JobId(const std::string& name, uint64_t incarnation) {
  const uint32_t high = Crc32c(name.data(), name.size());
  const uint64_t id = (uint64_t{high} << 32) ^ (incarnation * 0x9E3779B97F4A7C15ull);
  return id == 0 ? 1 : id;
}

std::vector<ContributorSet> AllContribute(const JobSpec& spec) {
  ContributorSet all;
  all.divisor = spec.world;
  for (uint32_t s = 0; s < spec.world; ++s) all.slots.push_back(s);
  return std::vector<ContributorSet>(spec.group_count, all);
}

// The plan of the same job with a grown spec: old extents keep their owners.
absl::StatusOr<JobPlan> GrownPlan(JobPlan plan, JobSpec spec) {
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  const std::vector<LayoutTensor> all = LayoutTensors(spec.tensors);
  BALLAST_RETURN_IF_ERROR(layout.Append({all.begin() + plan.spec.tensors.size(), all.end()}));
  plan.spec = std::move(spec);
  plan.epoch.contributors = AllContribute(plan.spec);
  ++plan.layout_version;
  std::vector<uint32_t> before;
  for (const uint32_t owner : plan.owner) {
    before.push_back(static_cast<uint32_t>(
        std::find(plan.servers.begin(), plan.servers.end(), owner) - plan.servers.begin()));
  }
  plan.owner.clear();
  for (const uint32_t index :
       PlanOwners(layout, static_cast<uint32_t>(plan.servers.size()), before)) {
    plan.owner.push_back(plan.servers[index]);
  }
  return plan;
}

// Runs `done` with the first error, or OK, after `count` calls. Any thread.
class Gather {
 public:
  Gather(size_t count, std::function<void(absl::Status)> done)
      : left_(count), done_(std::move(done)) {
    if (count == 0) done_(absl::OkStatus());
  }
  void Add(const absl::Status& status) {
    bool last = false;
    {
      MutexLock lock(&mu_);
      if (first_error_.ok()) first_error_ = status;
      last = --left_ == 0;
    }
    if (last) done_(first_error_);
  }

 private:
  Mutex mu_;
  size_t left_ ABSL_GUARDED_BY(mu_);
  absl::Status first_error_;
  const std::function<void(absl::Status)> done_;
};

class Directory final : public JobDirectory, public std::enable_shared_from_this<Directory> {
 public:
  Directory(const DirectoryConfig& config, const EngineDeps& deps, PeerLink* peers)
      : config_(config), deps_(deps), peers_(peers), strand_(deps.executor) {}

  void Attach(AttachCall call, AttachDone done) override {
    Post([this, call = std::move(call), done = std::move(done)] { DoAttach(call, done); });
  }
  void AttachCancelled(const std::string& job, uint32_t slot, uint64_t call) override {
    Post([=, this] { DoCancel(job, slot, call); });
  }
  void Extend(ExtendCall call, ExtendDone done) override {
    Post([this, call = std::move(call), done = std::move(done)] { DoExtend(call, done); });
  }
  void PeerCreateJob(JobPlan plan, std::function<void(absl::Status)> done) override {
    Post([this, plan = std::move(plan), done = std::move(done)] { done(CreateLocal(plan)); });
  }
  void PeerExtendJob(JobPlan plan, std::function<void(absl::Status)> done) override {
    Post([this, plan = std::move(plan), done = std::move(done)] { ExtendLocal(plan, done); });
  }
  void PeerDropJob(uint64_t job) override {
    Post([this, job] { Drop(job); });
  }

  std::shared_ptr<RoundEngine> Find(uint64_t job) override {
    MutexLock lock(&mu_);
    const auto it = engines_.find(job);
    return it == engines_.end() ? nullptr : it->second;
  }

  void PeerLost(uint32_t server, const std::string& why) override {
    Post([=, this] {
      for (auto& [name, pending] : pending_) {
        (void)name;
        FailPending(&pending,
                    ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                                  absl::StrCat("server ", server, " was lost (", why, ")"),
                                  {.server = static_cast<int>(server)}));
      }
      std::erase_if(pending_, [](const auto& entry) { return !entry.second.created; });
      for (const auto& engine : Engines()) engine->PeerLost(server, why);
    });
  }

  void Snapshot(std::function<void(std::vector<JobSnapshot>)> done) override {
    Post([this, done = std::move(done)] { DoSnapshot(done); });
  }
  void Shutdown(std::function<void()> done) override {
    Post([this, done = std::move(done)] { DoShutdown(done); });
  }

  uint64_t memory_used_bytes() const override {
    return memory_used_.load(std::memory_order_relaxed);
  }
  uint64_t memory_budget_bytes() const override { return config_.memory_budget_bytes; }

 private:
  struct Waiting {
    uint64_t call = 0;
    uint64_t incarnation = 0;
    AttachDone done;
  };
  // A job at its home. `created`: all slots attached and all servers made it.
  struct Pending {
    explicit Pending(const AttachCall& first) : home(first) {}
    JobHome home;
    JobPlan plan;
    bool creating = false;
    bool created = false;
    uint64_t generation = 0;  // of the pending record, so that a late timer hits only its own
    std::map<uint32_t, Waiting> waiting;
    // The world cannot come together: what slots that come later are told, and who knows.
    absl::Status refused;
    std::set<uint32_t> told;
    std::map<uint32_t, ExtendDone> extending;
  };
  struct Local {
    JobPlan plan;
    uint64_t memory_bytes = 0;
    bool ended = false;
  };

  void Post(std::function<void()> task) {
    strand_.Post([self = shared_from_this(), task = std::move(task)] { task(); });
  }
  std::vector<std::shared_ptr<RoundEngine>> Engines() {
    MutexLock lock(&mu_);
    std::vector<std::shared_ptr<RoundEngine>> out;
    for (const auto& [id, engine] : engines_) out.push_back(engine);
    return out;
  }

  absl::Status CheckHome() const;
  void DoAttach(const AttachCall& call, const AttachDone& done);
  // Whether the call was answered from what is known of the job already.
  bool AnswerKnown(const AttachCall& call, const AttachDone& done);
  void Refuse(Pending* pending, const absl::Status& status, uint32_t slot);
  void DoCancel(const std::string& job, uint32_t slot, uint64_t call);
  AttachResult ResultOf(const Pending& pending);
  void OnAttachTimeout(const std::string& name, uint64_t generation);
  void CreateEverywhere(Pending* pending);
  void OnCreated(const std::string& name, uint64_t job, const absl::Status& status);
  void DoExtend(const ExtendCall& call, const ExtendDone& done);
  void ExtendEverywhere(const std::string& name, const JobPlan& plan);
  void OnExtended(const std::string& name, const JobPlan& plan, const absl::Status& status);
  absl::StatusOr<MemoryPlan> PlanHere(const JobPlan& plan) const;
  bool DropEnded();
  absl::Status CreateLocal(const JobPlan& plan);
  void ExtendLocal(const JobPlan& plan, const std::function<void(absl::Status)>& done);
  void OnJobEnded(uint64_t job, const absl::Status& why);
  void ReportMemory() {
    if (deps_.metrics == nullptr) return;
    deps_.metrics->state_bytes(StateTier::kDram)->Set(static_cast<double>(memory_used_bytes()));
  }
  void Drop(uint64_t job);
  void FailPending(Pending* pending, const absl::Status& status);
  void DoSnapshot(const std::function<void(std::vector<JobSnapshot>)>& done);
  void DoShutdown(const std::function<void()>& done);

  const DirectoryConfig config_;
  const EngineDeps deps_;
  PeerLink* const peers_;
  Strand strand_;
  std::atomic<uint64_t> memory_used_{0};

  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<RoundEngine>> engines_ ABSL_GUARDED_BY(mu_);

  // Owned by the strand.
  std::map<std::string, Pending> pending_;  // at the home, by name
  std::map<uint64_t, Local> local_;
  uint64_t next_generation_ = 1;
  bool shutting_down_ = false;
};

absl::Status Directory::CheckHome() const {
  if (shutting_down_) {
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kShuttingDown,
                         "the server is shutting down", {});
  }
  const ServerAddress& home = config_.servers.front();
  if (home.id == config_.self) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kNotHome,
      absl::StrCat("server ", config_.self, " is not the home of jobs; ask server ", home.id,
                   " at ", home.address),
      {.server = static_cast<int>(home.id), .address = home.address});
}

// --- Attach -------------------------------------------------------------------------------------

void Directory::DoAttach(const AttachCall& call, const AttachDone& done) {
  if (absl::Status st = CheckHome(); !st.ok()) return done(st);
  if (absl::Status st = ValidateJobSpec(call.spec, config_.limits); !st.ok()) return done(st);
  if (AnswerKnown(call, done)) return;
  auto it = pending_.find(call.spec.name);
  const bool fresh = it == pending_.end();
  if (fresh) {
    if (pending_.size() >= config_.jobs_max) DropEnded();
    if (pending_.size() >= config_.jobs_max) {
      return done(
          ReasonedError(absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
                        absl::StrCat(pending_.size(), " jobs are under way; limits.max_jobs is ",
                                     config_.jobs_max, ". Wait for one to end, or raise it"),
                        {.job = call.spec.name}));
    }
    it = pending_.emplace(call.spec.name, Pending(call)).first;
    it->second.generation = next_generation_++;
    const auto wait = call.wait.count() > 0 ? call.wait : config_.attach_timeout;
    strand_.PostAfter(
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

bool Directory::AnswerKnown(const AttachCall& call, const AttachDone& done) {
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
  const auto& members = pending.plan.epoch.members;
  const bool same_process =
      call.slot < members.size() && members[call.slot].incarnation == call.incarnation;
  if (same_process && pending.created) {
    done(ResultOf(pending));
  } else if (same_process) {
    pending.waiting[call.slot] = {call.call, call.incarnation, done};
  } else {
    done(ReasonedError(
        absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
        absl::StrCat("job \"", call.spec.name, "\" already has all its trainers; use a fresh name"),
        {.job = call.spec.name, .slot = static_cast<int>(call.slot)}));
  }
  return true;
}

// The world can never be complete: those who wait learn now what would otherwise time out, and
// those who come later learn it then.
void Directory::Refuse(Pending* pending, const absl::Status& status, uint32_t slot) {
  pending->refused = status;
  pending->told.insert(slot);
  for (const auto& [waiting_slot, waiting] : pending->waiting) pending->told.insert(waiting_slot);
  FailPending(pending, status);
  if (pending->told.size() != pending->home.spec().world) return;
  const std::string name = pending->home.spec().name;
  pending_.erase(name);
}

void Directory::DoCancel(const std::string& job, uint32_t slot, uint64_t call) {
  const auto it = pending_.find(job);
  if (it == pending_.end() || it->second.creating || it->second.created) return;
  const auto waiting = it->second.waiting.find(slot);
  if (waiting == it->second.waiting.end() || waiting->second.call != call) return;
  it->second.home.Cancel(slot, waiting->second.incarnation);
  it->second.waiting.erase(waiting);
  if (it->second.home.Empty()) pending_.erase(it);
}

AttachResult Directory::ResultOf(const Pending& pending) {
  AttachResult result{.plan = pending.plan, .servers = config_.servers};
  const std::shared_ptr<RoundEngine> engine = Find(pending.plan.job);
  if (engine != nullptr) result.window_extents = engine->window_extents();
  return result;
}

void Directory::OnAttachTimeout(const std::string& name, uint64_t generation) {
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

void Directory::FailPending(Pending* pending, const absl::Status& status) {
  for (auto& [slot, waiting] : std::exchange(pending->waiting, {})) waiting.done(status);
  for (auto& [slot, done] : std::exchange(pending->extending, {})) done(status);
}

void Directory::CreateEverywhere(Pending* pending) {
  pending->creating = true;
  const JobSpec& spec = pending->home.spec();
  JobPlan& plan = pending->plan;
  plan.spec = spec;
  plan.epoch.members = pending->home.Members();
  plan.epoch.contributors = AllContribute(spec);
  plan.job = JobId(spec.name, plan.epoch.members.front().incarnation);
  for (const ServerAddress& server : config_.servers) plan.servers.push_back(server.id);
  const auto layout =
      Layout::Build(LayoutTensors(spec.tensors), spec.tile_elements, spec.extent_elements);
  for (const uint32_t index : PlanOwners(*layout, static_cast<uint32_t>(plan.servers.size()))) {
    plan.owner.push_back(plan.servers[index]);
  }
  auto gather = std::make_shared<Gather>(
      plan.servers.size(),
      [self = shared_from_this(), name = spec.name, job = plan.job](absl::Status status) {
        self->Post([self = self.get(), name, job, status] { self->OnCreated(name, job, status); });
      });
  for (const uint32_t server : plan.servers) {
    if (server == config_.self) {
      gather->Add(CreateLocal(plan));
    } else {
      peers_->CreateJob(server, plan, [gather](absl::Status status) { gather->Add(status); });
    }
  }
}

void Directory::OnCreated(const std::string& name, uint64_t job, const absl::Status& status) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.plan.job != job) {
    // Given up meanwhile, because a peer was lost.
    for (const ServerAddress& server : config_.servers) {
      if (server.id != config_.self) peers_->DropJob(server.id, job);
    }
    Drop(job);
    return;
  }
  Pending& pending = it->second;
  pending.creating = false;
  if (!status.ok()) {
    for (const uint32_t server : pending.plan.servers) {
      if (server != config_.self) peers_->DropJob(server, pending.plan.job);
    }
    FailPending(&pending, status);
    pending_.erase(it);
    Drop(job);
    return;
  }
  pending.created = true;
  const AttachResult result = ResultOf(pending);
  BALLAST_LOG(INFO, LogField("run", name), LogField("job", pending.plan.job))
      << "job created: world " << pending.plan.spec.world << ", " << pending.plan.owner.size()
      << " extents on " << pending.plan.servers.size() << " servers";
  for (auto& [slot, waiting] : std::exchange(pending.waiting, {})) waiting.done(result);
}

// --- Extend -------------------------------------------------------------------------------------

void Directory::DoExtend(const ExtendCall& call, const ExtendDone& done) {
  if (absl::Status st = CheckHome(); !st.ok()) return done(st);
  const auto it = std::find_if(pending_.begin(), pending_.end(), [&](const auto& entry) {
    return entry.second.created && entry.second.plan.job == call.job;
  });
  if (it == pending_.end()) {
    return done(ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                              absl::StrCat("job ", call.job, " is not known here"), {}));
  }
  Pending& pending = it->second;
  if (call.epoch != pending.plan.epoch.epoch) {
    return done(ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
                              absl::StrCat("extension in epoch ", call.epoch, ", the job is in ",
                                           pending.plan.epoch.epoch),
                              {.job = it->first, .slot = static_cast<int>(call.slot)}));
  }
  JobSpec grown = pending.plan.spec;
  grown.group_count = call.group_count;
  grown.tensors.insert(grown.tensors.end(), call.tensors.begin(), call.tensors.end());
  absl::Status st = call.tensors.empty() || call.group_count <= pending.plan.spec.group_count
                        ? ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
                                        "an extension must bring new groups with tensors", {})
                        : ValidateJobSpec(grown, config_.limits);
  if (st.ok()) st = pending.home.Extend(call, pending.plan.layout_version);
  if (!st.ok()) {
    done(st);
    // The slots disagree on the job's layout, so none of them can go on.
    FailPending(&pending, st);
    pending.home.DropExtension();
    if (auto engine = Find(call.job); engine != nullptr) engine->Fail(st);
    return;
  }
  pending.extending[call.slot] = done;
  if (!pending.home.AllExtended()) {
    if (auto engine = Find(call.job); engine != nullptr) engine->SlotGrows(call.slot);
    return;
  }

  const absl::StatusOr<JobPlan> plan = GrownPlan(pending.plan, pending.home.TakeExtended());
  if (plan.ok()) {
    ExtendEverywhere(it->first, *plan);
  } else {
    OnExtended(it->first, pending.plan, plan.status());
  }
}

void Directory::ExtendEverywhere(const std::string& name, const JobPlan& plan) {
  auto gather = std::make_shared<Gather>(plan.servers.size(), [self = shared_from_this(), name,
                                                               plan](absl::Status status) {
    self->Post([self = self.get(), name, plan, status] { self->OnExtended(name, plan, status); });
  });
  for (const uint32_t server : plan.servers) {
    const auto add = [gather](absl::Status status) { gather->Add(status); };
    if (server == config_.self) {
      ExtendLocal(plan, add);
    } else {
      peers_->ExtendJob(server, plan, add);
    }
  }
}

void Directory::OnExtended(const std::string& name, const JobPlan& plan,
                           const absl::Status& status) {
  const auto it = pending_.find(name);
  if (it == pending_.end()) return;
  if (!status.ok()) {
    FailPending(&it->second, status);
    if (auto engine = Find(plan.job); engine != nullptr) engine->Fail(status);
    return;
  }
  it->second.plan = plan;
  for (auto& [slot, done] : std::exchange(it->second.extending, {})) done(plan);
}

// --- This server's share ------------------------------------------------------------------------

absl::StatusOr<MemoryPlan> Directory::PlanHere(const JobPlan& plan) const {
  const uint64_t used = memory_used_bytes();
  const uint64_t budget =
      config_.memory_budget_bytes > used ? config_.memory_budget_bytes - used : 0;
  return PlanMemory(plan, config_.self, budget, config_.window_extents_min);
}

// Gives back what ended jobs hold before their job_ttl is over. Returns whether there were any.
bool Directory::DropEnded() {
  std::vector<uint64_t> ended;
  for (const auto& [job, local] : local_) {
    if (local.ended) ended.push_back(job);
  }
  for (const uint64_t job : ended) Drop(job);
  return !ended.empty();
}

absl::Status Directory::CreateLocal(const JobPlan& plan) {
  if (const auto known = local_.find(plan.job); known != local_.end()) {
    const JobPlan& ours = known->second.plan;
    if (FirstDifference(ours.spec, plan.spec).empty() && ours.owner == plan.owner) {
      return absl::OkStatus();
    }
    return ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
                         absl::StrCat("job ", plan.job, " exists with another plan"),
                         {.job = plan.spec.name, .server = static_cast<int>(config_.self)});
  }
  if (shutting_down_) return CheckHome();
  BALLAST_RETURN_IF_ERROR(ValidateJobSpec(plan.spec, config_.limits));
  absl::StatusOr<MemoryPlan> planned = PlanHere(plan);
  if (ReasonOf(planned.status()) == Reason::kOverBudget && DropEnded()) planned = PlanHere(plan);
  BALLAST_ASSIGN_OR_RETURN(const MemoryPlan memory, std::move(planned));
  Local local;
  local.plan = plan;
  local.memory_bytes = memory.total();
  EngineConfig engine_config = config_.engine;
  engine_config.self = config_.self;
  engine_config.window_extents = memory.window_extents;
  BALLAST_ASSIGN_OR_RETURN(std::shared_ptr<RoundEngine> engine,
                           RoundEngine::Create(plan, engine_config, deps_));
  engine->OnEnd([self = weak_from_this(), job = plan.job](const absl::Status& why) {
    if (auto directory = self.lock()) {
      directory->Post([directory = directory.get(), job, why] { directory->OnJobEnded(job, why); });
    }
  });
  memory_used_.fetch_add(local.memory_bytes, std::memory_order_relaxed);
  ReportMemory();
  local_.emplace(plan.job, std::move(local));
  MutexLock lock(&mu_);
  engines_[plan.job] = std::move(engine);
  return absl::OkStatus();
}

void Directory::ExtendLocal(const JobPlan& plan, const std::function<void(absl::Status)>& done) {
  const auto it = local_.find(plan.job);
  const std::shared_ptr<RoundEngine> engine = Find(plan.job);
  if (it == local_.end() || engine == nullptr) {
    return done(
        ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                      absl::StrCat("job ", plan.job, " is not known at server ", config_.self),
                      {.server = static_cast<int>(config_.self)}));
  }
  if (absl::Status st = ValidateJobSpec(plan.spec, config_.limits); !st.ok()) return done(st);
  const uint64_t others = memory_used_bytes() - it->second.memory_bytes;
  const uint64_t budget =
      config_.memory_budget_bytes > others ? config_.memory_budget_bytes - others : 0;
  const absl::StatusOr<MemoryPlan> memory =
      PlanMemory(plan, config_.self, budget, engine->window_extents());
  if (!memory.ok()) return done(memory.status());
  memory_used_.fetch_add(memory->total() - it->second.memory_bytes, std::memory_order_relaxed);
  it->second.memory_bytes = memory->total();
  ReportMemory();
  it->second.plan = plan;
  engine->Extend(plan, done);
}

// A job that ended keeps its state readable for job_ttl, then gives its memory back.
void Directory::OnJobEnded(uint64_t job, const absl::Status& why) {
  const auto it = local_.find(job);
  if (it == local_.end()) return;
  it->second.ended = true;
  const auto pending = pending_.find(it->second.plan.spec.name);
  if (pending != pending_.end() && pending->second.plan.job == job) {
    FailPending(&pending->second, why);
  }
  strand_.PostAfter(config_.job_ttl, [self = shared_from_this(), job] { self->Drop(job); });
}

void Directory::Drop(uint64_t job) {
  {
    MutexLock lock(&mu_);
    engines_.erase(job);
  }
  const auto it = local_.find(job);
  if (it == local_.end()) return;
  memory_used_.fetch_sub(it->second.memory_bytes, std::memory_order_relaxed);
  const auto pending = pending_.find(it->second.plan.spec.name);
  if (pending != pending_.end() && pending->second.created && pending->second.plan.job == job) {
    pending_.erase(pending);
  }
  const std::string name = it->second.plan.spec.name;
  local_.erase(it);
  const bool name_in_use = std::any_of(local_.begin(), local_.end(), [&](const auto& entry) {
    return entry.second.plan.spec.name == name;
  });
  if (deps_.metrics != nullptr && !name_in_use) deps_.metrics->RemoveJob(name);
  ReportMemory();
}

void Directory::DoSnapshot(const std::function<void(std::vector<JobSnapshot>)>& done) {
  struct Collected {
    Mutex mu;
    std::vector<JobSnapshot> jobs ABSL_GUARDED_BY(mu);
  };
  auto collected = std::make_shared<Collected>();
  for (const auto& [name, pending] : pending_) {
    if (pending.created || pending.creating) continue;
    JobSnapshot job{.name = name, .state = "attaching"};
    job.world = pending.home.spec().world;
    for (uint32_t s = 0; s < job.world; ++s) job.slots.push_back({.slot = s, .state = "attached"});
    for (const uint32_t s : pending.home.MissingSlots()) job.slots[s].state = "absent";
    MutexLock lock(&collected->mu);
    collected->jobs.push_back(std::move(job));
  }
  const auto engines = Engines();
  auto gather = std::make_shared<Gather>(engines.size(), [collected, done](absl::Status) {
    MutexLock lock(&collected->mu);
    std::sort(collected->jobs.begin(), collected->jobs.end(),
              [](const JobSnapshot& a, const JobSnapshot& b) { return a.name < b.name; });
    done(collected->jobs);
  });
  for (const auto& engine : engines) {
    engine->Snapshot([collected, gather](JobSnapshot job) {
      {
        MutexLock lock(&collected->mu);
        collected->jobs.push_back(std::move(job));
      }
      gather->Add(absl::OkStatus());
    });
  }
}

void Directory::DoShutdown(const std::function<void()>& done) {
  shutting_down_ = true;
  const absl::Status status =
      ReasonedError(absl::StatusCode::kUnavailable, Reason::kShuttingDown,
                    absl::StrCat("server ", config_.self, " is shutting down"),
                    {.server = static_cast<int>(config_.self)});
  for (auto& [name, pending] : pending_) FailPending(&pending, status);
  for (const auto& engine : Engines()) engine->Fail(status);
  done();
}

}  // namespace

std::shared_ptr<JobDirectory> JobDirectory::Create(const DirectoryConfig& config,
                                                   const EngineDeps& deps, PeerLink* peers) {
  return std::make_shared<Directory>(config, deps, peers);
}

}  // namespace ballast::server
