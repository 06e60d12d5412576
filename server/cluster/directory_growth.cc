// Home: groups that are added to a running job. See home.h.
//
// All slots ask at the home, which makes the grown plan when the last one has. A job without
// durability is grown at every server at once, and fails if one cannot. A durable one grows in two
// steps: every server makes room on its disk, and the first that cannot ends the attempt; then the
// home takes the plan into its record, which makes it final, and the others follow, also after a
// restart of the home, however long one of them is away.
// Thread safety: on the strand.
#include <algorithm>

#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "server/cluster/home.h"

namespace ballast::server {
namespace {

// How soon a server that did not grow is asked again.
constexpr std::chrono::milliseconds kGrowAgain{500};

bool IsDurable(const JobPlan& plan) { return plan.spec.durability != Durability::kNone; }

// The plan of the same job with a grown spec: old extents keep their owners.
absl::StatusOr<JobPlan> GrownPlan(JobPlan plan, JobSpec spec, uint64_t round) {
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  const std::vector<LayoutTensor> all = LayoutTensors(spec.tensors);
  const auto before = static_cast<uint32_t>(plan.spec.tensors.size());
  BALLAST_RETURN_IF_ERROR(layout.Append({all.begin() + before, all.end()}));
  plan.spec = std::move(spec);
  plan.epoch.contributors = AllContribute(plan.epoch.members, plan.spec.group_count);
  ++plan.layout_version;
  plan.growing = IsDurable(plan);
  plan.grown_round = IsDurable(plan) ? round : 0;
  plan.tensors_before = IsDurable(plan) ? before : 0;
  std::vector<uint32_t> owners;
  for (const uint32_t owner : plan.owner) {
    owners.push_back(static_cast<uint32_t>(
        std::find(plan.servers.begin(), plan.servers.end(), owner) - plan.servers.begin()));
  }
  plan.owner.clear();
  for (const uint32_t index :
       PlanOwners(layout, static_cast<uint32_t>(plan.servers.size()), owners)) {
    plan.owner.push_back(plan.servers[index]);
  }
  return plan;
}

// Whether the call asks for what was added last: its answer was lost on the way.
bool AlreadyGrown(const JobPlan& plan, const ExtendCall& call) {
  const auto& tensors = plan.spec.tensors;
  return IsDurable(plan) && call.base_layout_version + 1 == plan.layout_version &&
         call.group_count == plan.spec.group_count && call.round == plan.grown_round &&
         std::equal(call.tensors.begin(), call.tensors.end(), tensors.begin() + plan.tensors_before,
                    tensors.end());
}

}  // namespace

// --- At the home --------------------------------------------------------------------------------

absl::Status Home::CheckExtend(const ExtendCall& call, Pending* pending) const {
  const JobPlan& plan = pending->plan;
  ErrorFields fields{.job = plan.spec.name, .slot = static_cast<int>(call.slot)};
  if (pending->change.has_value() || pending->growing) {
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                         absl::StrCat("job \"", plan.spec.name, "\" changes its ",
                                      pending->growing ? "layout" : "trainers", "; ask again"),
                         fields);
  }
  // A server that is started again before the first vote on an extent asks for its initial weights,
  // which trainers send with that round.
  if (IsDurable(plan) && (call.round < 2 || call.round == plan.grown_round)) {
    return ReasonedError(
        absl::StatusCode::kUnimplemented, Reason::kUnsupported,
        absl::StrCat("groups cannot be added to durable job \"", plan.spec.name, "\" before round ",
                     call.round, ", in which tensors take part ",
                     "for the first time; give all at once, or run a round first"),
        fields);
  }
  if (call.epoch == plan.epoch.epoch) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
      absl::StrCat("extension in epoch ", call.epoch, ", the job is in ", plan.epoch.epoch),
      fields);
}

void Home::DoExtend(const ExtendCall& call, const ExtendDone& done) {
  if (absl::Status st = parts_.self->CheckHome(); !st.ok()) return done(st);
  const auto it = std::find_if(pending_.begin(), pending_.end(), [&](const auto& entry) {
    return entry.second.created && entry.second.plan.job == call.job;
  });
  if (it == pending_.end()) {
    return done(ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                              absl::StrCat("job ", JobIdText(call.job), " is not known here"), {}));
  }
  Pending& pending = it->second;
  if (AlreadyGrown(pending.plan, call)) {
    if (!pending.growing) return done(pending.plan);
    pending.extending[call.slot] = done;  // Not everywhere yet.
    return;
  }
  if (absl::Status st = CheckExtend(call, &pending); !st.ok()) return done(st);
  JobSpec grown = pending.plan.spec;
  grown.group_count = call.group_count;
  grown.tensors.insert(grown.tensors.end(), call.tensors.begin(), call.tensors.end());
  absl::Status st = call.tensors.empty() || call.group_count <= pending.plan.spec.group_count
                        ? ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
                                        "an extension must bring new groups with tensors", {})
                        : ValidateJobSpec(grown, config().limits);
  if (IsDurable(pending.plan)) pending.home.Reseat(pending.plan.epoch.members);
  if (st.ok()) st = pending.home.Extend(call, pending.plan.layout_version);
  if (ReasonOf(st) == Reason::kWrongIncarnation) return done(st);  // A leftover, not a trainer.
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
    if (auto engine = Find(call.job); engine != nullptr) engine->SlotGrows(call.slot, true);
    return;
  }
  const absl::StatusOr<JobPlan> plan = GrownPlan(pending.plan, grown, call.round);
  pending.growing = true;
  if (plan.ok()) {
    ExtendEverywhere(it->first, *plan);
  } else {
    OnExtended(it->first, pending.plan, plan.status());
  }
}

void Home::ExtendEverywhere(const std::string& name, const JobPlan& plan) {
  auto gather = std::make_shared<Gather>(plan.servers.size(), [self = shared_from_this(), name,
                                                               plan](const absl::Status& status) {
    self->Post([self = self.get(), name, plan, status] { self->OnExtended(name, plan, status); });
  });
  for (const uint32_t server : plan.servers) {
    const auto add = [gather](const absl::Status& status) { gather->Add(status); };
    if (server == parts_.self->id()) {
      parts_.jobs->Extend(plan, add);
    } else {
      parts_.peers->ExtendJob(server, plan, add);
    }
  }
}

void Home::OnExtended(const std::string& name, const JobPlan& plan, const absl::Status& status) {
  const auto it = pending_.find(name);
  if (it == pending_.end()) return;
  if (!status.ok()) {
    EndGrowth(&it->second, status);
    return;
  }
  if (!plan.growing) {
    it->second.plan = plan;
    EndGrowth(&it->second, absl::OkStatus());
    return;
  }
  JobPlan grown = plan;
  grown.growing = false;
  // The home first: from then on the plan is final.
  parts_.jobs->Extend(grown,
                      [self = shared_from_this(), name, grown](const absl::Status& extended) {
                        const auto found = self->pending_.find(name);
                        if (found == self->pending_.end()) return;
                        if (!extended.ok()) return self->EndGrowth(&found->second, extended);
                        found->second.plan = grown;
                        self->GrowPeers(name);
                      });
}

// Until every other server has the plan.
void Home::GrowPeers(const std::string& name) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || !it->second.growing) return;
  const JobPlan& plan = it->second.plan;
  auto gather = std::make_shared<Gather>(plan.servers.size() - 1, [self = shared_from_this(), name,
                                                                   job = plan.job](
                                                                      const absl::Status& status) {
    self->Post([self = self.get(), name, job, status] { self->OnPeersGrown(name, job, status); });
  });
  for (const uint32_t server : plan.servers) {
    if (server == parts_.self->id()) continue;
    parts_.peers->ExtendJob(server, plan,
                            [gather](const absl::Status& status) { gather->Add(status); });
  }
}

void Home::OnPeersGrown(const std::string& name, uint64_t job, const absl::Status& status) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.plan.job != job || !it->second.growing) return;
  if (status.ok()) return EndGrowth(&it->second, status);
  BALLAST_LOG(WARN, LogField("run", name)) << "layout version " << it->second.plan.layout_version
                                           << " is not everywhere yet: " << status;
  parts_.strand->PostAfter(kGrowAgain,
                           [self = shared_from_this(), name] { self->GrowPeers(name); });
}

// Tells the slots, and lets a change of epoch begin that had to wait. A durable job that could not
// grow is as it was, and goes on.
void Home::EndGrowth(Pending* pending, const absl::Status& status) {
  const std::shared_ptr<RoundEngine> engine = Find(pending->plan.job);
  for (const Member& member : pending->plan.epoch.members) {
    if (engine == nullptr || status.ok() || !IsDurable(pending->plan)) break;
    engine->SlotGrows(member.slot, false);
  }
  if (!status.ok() && !IsDurable(pending->plan) && engine != nullptr) engine->Fail(status);
  pending->growing = false;
  pending->home.EndExtension(pending->plan.spec);
  for (auto& [slot, done] : std::exchange(pending->extending, {})) {
    done(status.ok() ? absl::StatusOr<JobPlan>(pending->plan) : status);
  }
  if (WantsChange(*pending)) StartChange(pending);
}

}  // namespace ballast::server
