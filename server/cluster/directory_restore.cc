// Directory: a job that goes on from a snapshot. Every server makes its share of the new job's
// files out of the parts, whichever servers wrote them, or lets its slots begin in them (a fork);
// the home comes last, so that the job is there for good or not at all. It rests until trainers
// attach with `resume`.
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

// Said here and to whoever asked for a fork.
std::string CopiedBecause(uint32_t self, const JobPlan& plan, const absl::Status& why) {
  const std::string text =
      absl::StrCat("server ", self, " copies the state of job \"", plan.spec.name,
                   "\" because it cannot share the files of ", "the snapshot: ", why.message());
  BALLAST_LOG(WARN, LogField("run", plan.spec.name)) << text;
  return text;
}

}  // namespace

// --- At the home --------------------------------------------------------------------------------

void Directory::DoRestore(const RestoreCall& call,
                          const std::function<void(absl::StatusOr<RestoredJob>)>& done) {
  if (const absl::Status status = CheckSnapshotHome(); !status.ok()) return done(status);
  if (pending_.count(call.as) != 0 || resting_.count(call.as) != 0) {
    return done(NameInUse(call.as, "exists"));
  }
  if (!restoring_.insert(call.as).second) return done(NameInUse(call.as, "is being restored"));
  OnDisk([this, call, done]() -> std::function<void()> {
    absl::StatusOr<JobPlan> plan = absl::InternalError("");
    const auto manifest = snapshots_.store->Find(call.job, call.snapshot);
    plan = manifest.ok() ? PlanOfRestore(call, *manifest) : manifest.status();
    if (plan.ok()) {
      const RestoreOrder order{*plan, manifest->id, call.share};
      return [=, this] { RestoreEverywhere(order, done); };
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
  Reseat(call.world == 0 ? plan.spec.world : call.world, &plan);
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
  BALLAST_RETURN_IF_ERROR(ValidateJobSpec(plan.spec, config_.limits));
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  return plan;
}

void Directory::RestoreEverywhere(const RestoreOrder& order,
                                  const std::function<void(absl::StatusOr<RestoredJob>)>& done) {
  const auto self = shared_from_this();
  const JobPlan& plan = order.plan;
  const auto copied = std::make_shared<std::string>();  // On the strand.
  const auto end = [=, this, plan = order.plan](const absl::StatusOr<std::string>& ours) {
    restoring_.erase(plan.spec.name);
    if (ours.ok()) {
      if (copied->empty()) *copied = *ours;
      resting_[plan.spec.name] = plan;
      BALLAST_LOG(INFO, LogField("run", plan.spec.name), LogField("round", plan.resting_round))
          << (order.share ? "forked" : "restored")
          << "; it rests until trainers attach with resume";
      return done(RestoredJob{Describe(plan, "resting"), *copied});
    }
    for (const uint32_t server : plan.servers) {
      if (server != config_.self) DropAtPeer(server, plan.job);
    }
    done(ours.status());
  };
  const auto gather =
      std::make_shared<Gather>(plan.servers.size() - 1, [=, this](const absl::Status& status) {
        Post([=, this] {
          if (!status.ok()) return end(status);
          RestoreLocal(order, end);
        });
      });
  for (const uint32_t server : plan.servers) {
    if (server == config_.self) continue;
    peers_->RestoreJob(server, order, [=, this](const absl::StatusOr<std::string>& theirs) {
      self->Post([=] {
        if (theirs.ok() && copied->empty()) *copied = *theirs;
        gather->Add(theirs.status());
      });
    });
  }
}

// --- At every server ----------------------------------------------------------------------------

void Directory::RestoreLocal(const RestoreOrder& order,
                             const std::function<void(absl::StatusOr<std::string>)>& done) {
  if (const absl::Status status = CheckSnapshots(); !status.ok()) return done(status);
  OnDisk([=, this]() -> std::function<void()> {
    return [done, copied = RestoreFiles(order)] { done(copied); };
  });
}

absl::StatusOr<std::string> Directory::RestoreFiles(const RestoreOrder& order) {
  const JobPlan& plan = order.plan;
  BALLAST_ASSIGN_OR_RETURN(const SnapshotManifest manifest, snapshots_.store->Find(order.snapshot));
  BALLAST_ASSIGN_OR_RETURN(const JobPlan from, snapshots_.codec.decode(manifest.plan));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  if (const auto other = store_->FindNamed(plan.spec.name); other.ok()) {
    // The home does not know it: what an earlier restore that was broken off has left.
    if (!other->making)
      return NameInUse(plan.spec.name, absl::StrCat("exists on server ", config_.self));
    BALLAST_RETURN_IF_ERROR(store_->Remove(other->job));
  }
  JobPlan made = plan;
  made.making = config_.self != plan.servers.front();
  const auto copy = [&](SlotFile* slots) -> absl::Status {
    Parts parts(snapshots_.store.get(), manifest, from, layout);
    BALLAST_ASSIGN_OR_RETURN(
        const Arena image,
        Arena::Create(SlotFile::BufferBytes({0, layout.extent_elements(), kAdamWStateArrays})));
    for (uint32_t extent = 0; extent < layout.extents().size(); ++extent) {
      if (plan.owner[extent] != config_.self) continue;
      BALLAST_RETURN_IF_ERROR(parts.Read(extent, image.data()));
      BALLAST_RETURN_IF_ERROR(slots->Write(extent, manifest.round, image.data()));
    }
    return slots->Sync();
  };
  std::string copied;
  const auto fill = [&](JobStorage* storage) -> absl::Status {
    BALLAST_FAILPOINT_RETURN("restore.before_state");
    absl::Status status = absl::UnimplementedError("");
    if (order.share) {
      status = snapshots_.store->Lend(manifest, from, layout, made, store_->FilesOf(made));
      if (absl::IsUnimplemented(status)) copied = CopiedBecause(config_.self, plan, status);
    }
    if (absl::IsUnimplemented(status)) status = copy(storage->slots());
    BALLAST_RETURN_IF_ERROR(status);
    BALLAST_RETURN_IF_ERROR(
        storage->log()->Seed(VoteOf(manifest, plan, config_.self), manifest.decision));
    BALLAST_FAILPOINT_RETURN("restore.after_state");
    return absl::OkStatus();
  };
  BALLAST_RETURN_IF_ERROR(store_->Create(made, fill).status());
  return copied;
}

}  // namespace ballast::server
