// Directory: a job that goes on from a snapshot. Every server makes its share of the new job's
// files out of the parts, whichever servers wrote them; the home comes last, so that the job is
// there for good or not at all. It rests until trainers attach with `resume`.
// Thread safety: on the strand; what blocks on the disk on a thread for that.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "server/cluster/directory.h"

namespace ballast::server {
namespace {

absl::Status NameInUse(const std::string& name, const std::string& why) {
  return ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
                       absl::StrCat("job \"", name, "\" ", why, "; choose another name with --as, ",
                                    "or delete it first: `ballastctl jobs delete ", name, "`"),
                       {.job = name});
}

// Seats of processes that are gone: whoever attaches first takes one.
void Reseat(uint32_t world, JobPlan* plan) {
  EpochRecord& epoch = plan->epoch;
  epoch.members.clear();
  for (uint32_t slot = 0; slot < world; ++slot) {
    epoch.members.push_back({slot, RandomId()});
  }
  epoch.min_world = std::min(epoch.min_world, world);
  epoch.contributors = AllContribute(epoch.members, plan->spec.group_count);
  plan->spec.world = world;
}

// Reads extents of a snapshot, from whichever part they are in.
class Parts {
 public:
  Parts(const SnapshotStore* store, const SnapshotManifest& manifest, const JobPlan& plan,
        const Layout& layout)
      : store_(store), manifest_(manifest), plan_(plan), layout_(layout) {}

  absl::Status Read(uint32_t extent, void* to) {
    const uint32_t server = plan_.owner[extent];
    std::unique_ptr<SlotFile>& part = parts_[server];
    if (part == nullptr) {
      BALLAST_ASSIGN_OR_RETURN(part, store_->OpenPart(manifest_.id, plan_, layout_, server));
    }
    const absl::Status read = part->Read(extent, manifest_.round, to);
    if (!absl::IsNotFound(read)) return read;
    return absl::DataLossError(read.message());
  }

 private:
  const SnapshotStore* const store_;
  const SnapshotManifest& manifest_;
  const JobPlan& plan_;
  const Layout& layout_;
  std::map<uint32_t, std::unique_ptr<SlotFile>> parts_;
};

// What a server of the new job remembers of the round before its first.
PreparedRecord VoteOf(const SnapshotManifest& manifest, const JobPlan& plan, uint32_t self) {
  PreparedRecord prepared = manifest.prepared;
  prepared.vote.server = self;
  if (self != plan.servers.front()) prepared.user_state.clear();
  std::erase_if(prepared.user_state,
                [&](const auto& state) { return state.first >= plan.spec.world; });
  return prepared;
}

}  // namespace

// --- At the home --------------------------------------------------------------------------------

absl::Status Directory::CheckNewName(const std::string& name) const {
  if (pending_.count(name) != 0 || resting_.count(name) != 0) return NameInUse(name, "exists");
  if (restoring_.count(name) != 0) return NameInUse(name, "is being made");
  return absl::OkStatus();
}

void Directory::DoRestore(const RestoreCall& call,
                          const std::function<void(absl::StatusOr<DurableJob>)>& done) {
  absl::Status status = CheckSnapshotHome();
  if (status.ok()) status = CheckNewName(call.as);
  if (!status.ok()) return done(status);
  restoring_.insert(call.as);
  OnDisk([this, call, done]() -> std::function<void()> {
    absl::StatusOr<JobPlan> plan = absl::InternalError("");
    const auto manifest = snapshots_.store->Find(call.job, call.snapshot);
    plan = manifest.ok() ? PlanOfRestore(call, *manifest) : manifest.status();
    if (plan.ok()) {
      return [=, this, id = manifest->id] { RestoreEverywhere(*plan, id, done); };
    }
    return [=, this] {
      restoring_.erase(call.as);
      done(plan.status());
    };
  });
}

absl::StatusOr<JobPlan> Directory::PlanOfRestore(const RestoreCall& call,
                                                 const SnapshotManifest& manifest) const {
  BALLAST_ASSIGN_OR_RETURN(JobPlan plan, snapshots_.codec.decode(manifest.plan));
  plan.spec.name = call.as;
  // Before seats are made for it.
  if (call.world != 0) plan.spec.world = call.world;
  BALLAST_RETURN_IF_ERROR(ValidateJobSpec(plan.spec, config_.limits));
  Reseat(plan.spec.world, &plan);
  plan.job = RandomId();
  plan.epoch.epoch += 1;
  plan.epoch.start_round = manifest.round;
  plan.sealed_epoch = 0;
  plan.resting = true;
  plan.resting_round = manifest.round;
  plan.servers.clear();
  plan.owner.clear();
  for (const ServerAddress& server : config_.servers) plan.servers.push_back(server.id);
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  for (const uint32_t index : PlanOwners(layout, static_cast<uint32_t>(plan.servers.size()))) {
    plan.owner.push_back(plan.servers[index]);
  }
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  return plan;
}

void Directory::RestoreEverywhere(const JobPlan& plan, uint64_t snapshot,
                                  const std::function<void(absl::StatusOr<DurableJob>)>& done) {
  MakeEverywhere(
      plan,
      [this, plan, snapshot](uint32_t server, const std::function<void(absl::Status)>& made) {
        server == config_.self ? RestoreLocal(plan, snapshot, made)
                               : peers_->RestoreJob(server, plan, snapshot, made);
      },
      done);
}

void Directory::MakeEverywhere(const JobPlan& plan, const AtServer& at_server,
                               const std::function<void(absl::StatusOr<DurableJob>)>& done) {
  const auto self = shared_from_this();
  const auto end = [=, this](const absl::Status& status) {
    restoring_.erase(plan.spec.name);
    if (status.ok()) {
      resting_[plan.spec.name] = plan;
      BALLAST_LOG(INFO, LogField("run", plan.spec.name), LogField("round", plan.resting_round))
          << "made; it rests until trainers attach with resume";
      return done(Describe(plan, "resting"));
    }
    for (const uint32_t server : plan.servers) {
      if (server != config_.self) DropAtPeer(server, plan.job);
    }
    done(status);
  };
  const auto gather =
      std::make_shared<Gather>(plan.servers.size() - 1, [=, this](const absl::Status& status) {
        Post([=, this] { status.ok() ? at_server(config_.self, end) : end(status); });
      });
  for (const uint32_t server : plan.servers) {
    if (server == config_.self) continue;
    at_server(server, [self, gather](const absl::Status& status) { gather->Add(status); });
  }
}

// --- At every server ----------------------------------------------------------------------------

void Directory::RestoreLocal(const JobPlan& plan, uint64_t snapshot,
                             const std::function<void(absl::Status)>& done) {
  if (const absl::Status status = CheckSnapshots(); !status.ok()) return done(status);
  OnDisk([=, this]() -> std::function<void()> {
    return [done, status = RestoreFiles(plan, snapshot)] { done(status); };
  });
}

absl::Status Directory::RestoreFiles(const JobPlan& plan, uint64_t snapshot) {
  BALLAST_ASSIGN_OR_RETURN(const SnapshotManifest manifest, snapshots_.store->Find(snapshot));
  BALLAST_ASSIGN_OR_RETURN(const JobPlan from, snapshots_.codec.decode(manifest.plan));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  Parts parts(snapshots_.store.get(), manifest, from, layout);
  BALLAST_ASSIGN_OR_RETURN(
      const Arena image,
      Arena::Create(SlotFile::BufferBytes({0, layout.extent_elements(), kAdamWStateArrays})));
  const auto fill = [&](JobStorage* storage) -> absl::Status {
    BALLAST_FAILPOINT_RETURN("restore.before_state");
    for (uint32_t extent = 0; extent < layout.extents().size(); ++extent) {
      if (plan.owner[extent] != config_.self) continue;
      BALLAST_RETURN_IF_ERROR(parts.Read(extent, image.data()));
      BALLAST_RETURN_IF_ERROR(storage->slots()->Write(extent, manifest.round, image.data()));
    }
    BALLAST_RETURN_IF_ERROR(storage->slots()->Sync());
    BALLAST_RETURN_IF_ERROR(
        storage->log()->Seed(VoteOf(manifest, plan, config_.self), manifest.decision));
    BALLAST_FAILPOINT_RETURN("restore.after_state");
    return absl::OkStatus();
  };
  return MakeFiles(plan, fill);
}

absl::Status Directory::MakeFiles(const JobPlan& plan, const JobStore::Fill& fill) {
  if (const auto other = store_->FindNamed(plan.spec.name); other.ok()) {
    // The home does not know it: what an earlier restore that was broken off has left.
    if (!other->making)
      return NameInUse(plan.spec.name, absl::StrCat("exists on server ", config_.self));
    BALLAST_RETURN_IF_ERROR(store_->Remove(other->job));
  }
  JobPlan made = plan;
  made.making = config_.self != plan.servers.front();
  return store_->Create(made, fill).status();
}

}  // namespace ballast::server
