// Directory: a job that goes on from a snapshot. Every server makes its share of the new job's
// files out of the parts, whichever servers wrote them, or lets its images begin in them (a fork);
// the home comes last, so that the job is there for good or not at all. It rests until trainers
// attach with `resume`.
// Thread safety: on the strand; what blocks on the disk on a thread for that.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "server/cluster/directory.h"
#include "server/durability/read_lanes.h"
#include "server/snapshot/snapshot_reader.h"

namespace ballast::server {
namespace {

// Extents under way at a time: enough for reads and writes to overlap.
constexpr int kLanes = 4;

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

absl::Status Directory::CheckNewName(const std::string& name) const {
  if (pending_.count(name) != 0 || resting_.count(name) != 0) return NameInUse(name, "exists");
  if (restoring_.count(name) != 0) return NameInUse(name, "is being made");
  return absl::OkStatus();
}

void Directory::DoRestore(const RestoreCall& call,
                          const std::function<void(absl::StatusOr<RestoredJob>)>& done) {
  absl::Status status = CheckSnapshotHome();
  if (status.ok()) status = CheckNewName(call.as);
  if (!status.ok()) return done(status);
  restoring_.insert(call.as);
  OnDisk([this, call, done]() -> std::function<void()> {
    absl::StatusOr<JobPlan> plan = absl::InternalError("");
    const auto manifest = snapshots_.store->Find(call.job, call.snapshot);
    plan = manifest.ok() ? PlanOfRestore(call, *manifest) : manifest.status();
    const absl::Status ready = plan.ok() ? MarkOrdered(*plan) : plan.status();
    if (ready.ok()) {
      const RestoreOrder order{*plan, manifest->id, call.share};
      return [=, this] { RestoreEverywhere(order, done); };
    }
    return [=, this] {
      restoring_.erase(call.as);
      done(ready);
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
  // Nothing of it is to come: also the weights of a group that no round has stepped are in the
  // state.
  plan.grown_round = 0;
  plan.tensors_before = 0;
  plan.growing = plan.making = false;
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

void Directory::RestoreEverywhere(const RestoreOrder& order,
                                  const std::function<void(absl::StatusOr<RestoredJob>)>& done) {
  const auto copied = std::make_shared<std::string>();  // On the strand.
  const auto self = shared_from_this();
  const auto at_server = [=, this](uint32_t server, const std::function<void(absl::Status)>& made) {
    const auto add = [=](const absl::StatusOr<std::string>& theirs) {
      self->Post([=] {
        if (theirs.ok() && copied->empty()) *copied = *theirs;
        made(theirs.status());
      });
    };
    server == config_.self ? RestoreLocal(order, add) : peers_->RestoreJob(server, order, add);
  };
  MakeEverywhere(order.plan, at_server, [=](const absl::StatusOr<DurableJob>& job) {
    job.ok() ? done(RestoredJob{*job, *copied}) : done(job.status());
  });
}

void Directory::MakeEverywhere(const JobPlan& plan, const AtServer& at_server,
                               const std::function<void(absl::StatusOr<DurableJob>)>& done) {
  const auto self = shared_from_this();
  const auto end = [=, this](const absl::Status& status) {
    restoring_.erase(plan.spec.name);
    if (status.ok()) {
      resting_[plan.spec.name] = plan;
      OnDisk([this, job = plan.job]() -> std::function<void()> {
        const absl::Status cleared = store_->ClearOrdered(job);
        if (!cleared.ok()) BALLAST_LOG(WARN) << cleared;
        return [] {};
      });
      BALLAST_LOG(INFO, LogField("run", plan.spec.name), LogField("round", plan.resting_round))
          << "made; it rests until trainers attach with resume";
      return done(Describe(plan, "resting"));
    }
    DropOrdered(plan.job);
    done(status);
  };
  if (shutting_down_) return end(ShuttingDown());
  const auto gather = GatherPeers(plan.servers.size() - 1, [=, this](const absl::Status& status) {
    Post([=, this] { status.ok() ? at_server(config_.self, end) : end(status); });
  });
  for (const uint32_t server : plan.servers) {
    if (server == config_.self) continue;
    Tell(
        server, at_server,
        [self, gather, server, name = plan.spec.name](const absl::Status& status) {
          gather->Add(SaidBy(server, absl::StrCat("made its share of job ", Quoted(name)), status));
        });
  }
}

// --- At every server ----------------------------------------------------------------------------

void Directory::RestoreLocal(const RestoreOrder& order,
                             const std::function<void(absl::StatusOr<std::string>)>& done) {
  if (const absl::Status status = CheckSnapshots(); !status.ok()) return done(status);
  const auto making = std::make_shared<Order>();
  making->job = order.plan.job;
  making->name = order.plan.spec.name;
  CarryOut(disk_.get(), making, [=, this](const Halt& halt) -> std::function<void()> {
    return [done, copied = RestoreFiles(order, halt)] { done(copied); };
  });
}

absl::StatusOr<SnapshotManifest> Directory::SharedSnapshot(uint64_t id) const {
  absl::StatusOr<SnapshotManifest> manifest = snapshots_.store->Find(id);
  if (!absl::IsNotFound(manifest.status())) return manifest;
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
      absl::StrCat(
          "server ", config_.self, " does not see snapshot ", snapshots_.store->Directory(id),
          ", which the home has found: it was deleted ",
          "meanwhile, or storage.snapshot_dir is not one directory that all servers share"),
      {.server = static_cast<int>(config_.self)});
}

absl::StatusOr<std::string> Directory::RestoreFiles(const RestoreOrder& order, const Halt& halt) {
  const JobPlan& plan = order.plan;
  BALLAST_RETURN_IF_ERROR(halt.status());
  BALLAST_ASSIGN_OR_RETURN(const SnapshotManifest manifest, SharedSnapshot(order.snapshot));
  BALLAST_ASSIGN_OR_RETURN(const JobPlan from, snapshots_.codec.decode(manifest.plan));
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  const auto copy = [&](ImageFile* images) -> absl::Status {
    BALLAST_ASSIGN_OR_RETURN(const auto states,
                             SnapshotReader::Open(*snapshots_.store, manifest, from, layout));
    return FillImages(
        {"restore", images, 0, &halt}, plan, layout,
        [&](uint32_t extent, char* image, char*) { return states->Read(extent, image); });
  };
  std::string copied;
  const auto fill = [&](JobStorage* storage) -> absl::Status {
    BALLAST_FAILPOINT_RETURN("restore.before_state");
    absl::Status status = absl::UnimplementedError("");
    if (order.share) {
      status = snapshots_.store->Lend(manifest, from, layout, plan, store_->FilesOf(plan));
      if (absl::IsUnimplemented(status)) copied = CopiedBecause(config_.self, plan, status);
    }
    if (absl::IsUnimplemented(status)) status = copy(storage->images());
    BALLAST_RETURN_IF_ERROR(status);
    BALLAST_RETURN_IF_ERROR(
        storage->log()->Seed(VoteOf(manifest, plan, config_.self), manifest.decision));
    BALLAST_FAILPOINT_RETURN("restore.after_state");
    return absl::OkStatus();
  };
  BALLAST_RETURN_IF_ERROR(MakeFiles(plan, fill));
  return copied;
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

absl::Status Directory::FillImages(const Filling& filling, const JobPlan& plan,
                                   const Layout& layout, const ReadState& read) {
  const std::vector<ImageShape> owned = OwnedShapes(plan, layout);
  const std::shared_ptr<Work> work = BeginWork(filling.kind, plan.spec.name, owned);
  const size_t image_bytes = ImageFile::BufferBytes({0, layout.extent_elements()});
  BALLAST_ASSIGN_OR_RETURN(ReadLanes lanes,
                           ReadLanes::Create(kLanes, image_bytes + filling.scratch_bytes));
  const auto fill = [&](size_t i, const Arena& memory) -> absl::Status {
    const uint32_t extent = owned[i].extent;
    const uint64_t payload = ImageFile::PayloadBytes(owned[i]);
    BALLAST_RETURN_IF_ERROR(filling.halt->status());
    BALLAST_RETURN_IF_ERROR(read(extent, memory.data(), memory.data() + image_bytes));
    std::memset(memory.data() + payload, 0, ImageFile::BufferBytes(owned[i]) - payload);
    BALLAST_RETURN_IF_ERROR(filling.images->Write(extent, plan.resting_round, memory.data()));
    work->done_bytes += payload;
    return absl::OkStatus();
  };
  BALLAST_RETURN_IF_ERROR(lanes.ForEach(owned.size(), fill));
  return filling.images->Sync();
}

}  // namespace ballast::server
