// Directory: snapshots. Of a running job the home has every server hold what is on its disk, which
// takes no time; the latest of their open rounds is the snapshot's. Each server then writes its
// part beside the rounds that go on, and when all of them survive the home writes the manifest,
// before which there is no snapshot. Of one that rests: directory_resting.cc.
// Thread safety: on the strand; what may block on the disk on a thread for that.
#include <algorithm>
#include <ctime>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "server/cluster/directory.h"
#include "server/round/recovery.h"

namespace ballast::server {
namespace {

constexpr std::chrono::seconds kRetryDelay(1);

}  // namespace

uint64_t RandomId() {
  std::random_device random;
  const uint64_t id = (uint64_t{random()} << 32) ^ random();
  return id == 0 ? 1 : id;
}

absl::Status Directory::CheckSnapshots() const {
  if (snapshots_.store != nullptr) return snapshots_.refused;
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
                       absl::StrCat("server ", config_.self, " keeps no snapshots, because it has ",
                                    "no storage.data_dir and no storage.snapshot_dir"),
                       {.server = static_cast<int>(config_.self)});
}

absl::Status Directory::CheckSnapshotHome() const {
  BALLAST_RETURN_IF_ERROR(CheckHome());
  return CheckSnapshots();
}

void Directory::RunOn(Executor* thread, std::function<std::function<void()>()> task) {
  // The thread must not be the last to let go of the directory, which waits for it.
  thread->Post([weak = weak_from_this(), task = std::move(task)] {
    const std::function<void()> then = task();
    std::shared_ptr<Directory> self = weak.lock();
    if (self == nullptr) return;
    Strand* const strand = &self->strand_;
    strand->Post([self = std::move(self), then] { then(); });
  });
}

absl::StatusOr<JobPlan> Directory::WholeJob(const std::string& job) const {
  const auto pending = pending_.find(job);
  const bool made = pending == pending_.end() || pending->second.created;
  if (pending != pending_.end() && made) {
    const auto local = local_.find(pending->second.plan.job);
    if (local != local_.end() && !local->second.ended) return local->second.plan;
  }
  if (const auto resting = resting_.find(job); made && resting != resting_.end()) {
    JobPlan plan = resting->second;
    plan.resting = false;
    plan.resting_round = 0;
    return plan;
  }
  if (pending != pending_.end()) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobBusy,
                         absl::StrCat("job \"", job, "\" ",
                                      made ? "has ended, and nothing of it is on disk"
                                           : "is being attached to; take the snapshot when its "
                                             "trainers have begun"),
                         {.job = job});
  }
  return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("there is no job \"", job, "\"; `ballastctl jobs list` shows ",
                                    "those there are"),
                       {.job = job});
}

// Whether another try may go better: room was wanted, or the job came to rest meanwhile.
bool Directory::MayBeTriedAgain(const absl::Status& why) {
  return absl::IsAborted(why) || ReasonOf(why) == Reason::kJobFinished;
}

// --- At the home: taking one --------------------------------------------------------------------

void Directory::DoCreateSnapshot(const std::string& job, const std::string& name, uint32_t keep,
                                 const SnapshotDone& done) {
  absl::Status status = CheckSnapshotHome();
  if (status.ok()) status = CheckSnapshotName(name);
  status.ok() ? TakeSnapshot(job, name, keep, kTries, done) : done(status);
}

void Directory::TakeSnapshot(const std::string& job, const std::string& name, uint32_t keep,
                             int tries, const SnapshotDone& done) {
  if (const absl::Status status = CheckSnapshotHome(); !status.ok()) return done(status);
  const absl::StatusOr<JobPlan> plan = WholeJob(job);
  if (!plan.ok()) return done(plan.status());
  const absl::StatusOr<Layout> layout = LayoutOfSpec(plan->spec);
  if (!layout.ok()) return done(layout.status());
  if (!taking_.insert(plan->job).second) {
    return done(ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kJobBusy,
        absl::StrCat("another snapshot of job \"", job, "\" is being taken; wait for it"),
        {.job = job}));
  }
  const auto taking = std::make_shared<Taking>();
  taking->id = RandomId();
  taking->name = name;
  taking->keep = keep;
  taking->tries = tries - 1;
  taking->plan = *plan;
  taking->done = done;
  for (const uint32_t server : plan->servers) {
    taking->bytes += SnapshotStore::PartBytes(*plan, *layout, server);
  }
  OnDisk([this, taking]() -> std::function<void()> {
    const absl::Status begun =
        snapshots_.store->Begin(taking->id, taking->plan.spec.name, taking->name, taking->bytes);
    return [this, taking, begun] {
      if (begun.ok()) return HoldEverywhere(taking);
      taking_.erase(taking->plan.job);
      taking->done(begun);
    };
  });
}

// `done` runs on the strand with the first error, when all servers have answered; the latest round
// they name is the snapshot's.
void Directory::SnapshotEverywhere(const TakingRef& taking, SnapshotCall::Step step,
                                   std::function<void(absl::Status)> done) {
  const SnapshotCall call{step, taking->plan.job, taking->id, taking->round};
  const auto self = shared_from_this();
  const auto gather = std::make_shared<Gather>(
      taking->plan.servers.size(), [self, done = std::move(done)](const absl::Status& status) {
        self->Post([done, status] { done(status); });
      });
  const auto add = [this, self, taking, step, gather](const absl::StatusOr<uint64_t>& round) {
    Post([taking, step, gather, round] {
      if (step == SnapshotCall::Step::kHold && round.ok()) {
        taking->round = std::max(taking->round, *round);
      }
      gather->Add(round.status());
    });
  };
  for (const uint32_t server : taking->plan.servers) {
    if (server == config_.self) {
      SnapshotLocal(call, &taking->before, add);
    } else {
      peers_->Snapshot(server, call, add);
    }
  }
}

void Directory::HoldEverywhere(const TakingRef& taking) {
  SnapshotEverywhere(taking, SnapshotCall::Step::kHold, [=, this](const absl::Status& status) {
    if (!status.ok()) return GiveUpSnapshot(taking, status);
    CaptureEverywhere(taking);
  });
}

void Directory::CaptureEverywhere(const TakingRef& taking) {
  SnapshotEverywhere(taking, SnapshotCall::Step::kCapture, [=, this](const absl::Status& status) {
    if (!status.ok()) return GiveUpSnapshot(taking, status);
    CommitSnapshot(taking);
  });
}

void Directory::CommitSnapshot(const TakingRef& taking) {
  OnDisk([this, taking]() -> std::function<void()> {
    SnapshotManifest manifest;
    manifest.id = taking->id;
    manifest.name = taking->name;
    manifest.job = taking->plan.spec.name;
    manifest.created_s = static_cast<uint64_t>(std::time(nullptr));
    manifest.round = taking->round;
    manifest.bytes = taking->bytes;
    manifest.plan = snapshots_.codec.encode(taking->plan);
    manifest.prepared = taking->before.prepared;
    manifest.decision = taking->before.decision;
    const absl::Status committed = snapshots_.store->Commit(manifest);
    if (!committed.ok()) return [=, this] { GiveUpSnapshot(taking, committed); };
    if (taking->keep != 0) DropOldest(manifest, taking->plan.job, taking->keep);
    const absl::StatusOr<SnapshotInfo> info = InfoOf(manifest);
    return [this, taking, info] {
      taking_.erase(taking->plan.job);
      BALLAST_LOG(INFO, LogField("run", taking->plan.spec.name), LogField("round", taking->round))
          << "snapshot \"" << taking->name << "\" taken, " << taking->bytes << " bytes in "
          << snapshots_.store->Directory(taking->id);
      taking->done(info);
    };
  });
}

// All that is kept beyond `keep`, but never the one that has just been taken; what cannot be
// removed stays listed. Older is, whatever the clocks said, what an earlier job of this name left
// (`job` is the present one's id), and then the earlier round.
void Directory::DropOldest(const SnapshotManifest& taken, uint64_t job, uint32_t keep) const {
  const absl::StatusOr<std::vector<SnapshotManifest>> all = snapshots_.store->List();
  if (!all.ok()) return;
  std::vector<std::pair<std::tuple<bool, uint64_t, uint64_t>, uint64_t>> others;  // and ids
  for (const SnapshotManifest& one : *all) {
    if (one.job != taken.job || one.id == taken.id) continue;
    const absl::StatusOr<JobPlan> plan = snapshots_.codec.decode(one.plan);
    const bool ours = plan.ok() && plan->job == job;
    others.push_back({{ours, ours ? one.round : 0, one.created_s}, one.id});
  }
  std::sort(others.begin(), others.end());
  for (size_t i = 0; i + keep < others.size() + 1; ++i) {
    const absl::Status removed = snapshots_.store->Remove(others[i].second);
    if (!removed.ok()) BALLAST_LOG(WARN, LogField("run", taken.job)) << removed;
  }
}

// Every server lets go, and nothing is left on disk; then it may be tried again.
void Directory::GiveUpSnapshot(const TakingRef& taking, const absl::Status& why) {
  const auto end = [=, this](const absl::Status&) {
    OnDisk([this, taking, why]() -> std::function<void()> {
      const absl::Status removed = snapshots_.store->Remove(taking->id);
      if (!removed.ok()) BALLAST_LOG(WARN) << removed;
      return [this, taking, why] {
        taking_.erase(taking->plan.job);
        if (!MayBeTriedAgain(why) || taking->tries == 0) return taking->done(why);
        strand_.PostAfter(kRetryDelay, [this, self = shared_from_this(), taking] {
          TakeSnapshot(taking->plan.spec.name, taking->name, taking->keep, taking->tries,
                       taking->done);
        });
      };
    });
  };
  SnapshotEverywhere(taking, SnapshotCall::Step::kRelease, end);
}

// --- At the home: those there are ---------------------------------------------------------------

absl::StatusOr<SnapshotInfo> Directory::InfoOf(const SnapshotManifest& manifest) const {
  BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, snapshots_.codec.decode(manifest.plan));
  SnapshotInfo info{.id = manifest.id,
                    .job = manifest.job,
                    .name = manifest.name,
                    .round = manifest.round,
                    .created_s = manifest.created_s,
                    .bytes = manifest.bytes,
                    .parameters = ParametersOf(plan.spec),
                    .world = plan.spec.world,
                    .servers = plan.servers};
  return info;
}

void Directory::DoListSnapshots(
    const std::string& job,
    const std::function<void(absl::StatusOr<std::vector<SnapshotInfo>>)>& done) {
  if (const absl::Status status = CheckSnapshotHome(); !status.ok()) return done(status);
  OnDisk([this, job, done]() -> std::function<void()> {
    const absl::StatusOr<std::vector<SnapshotManifest>> all = snapshots_.store->List();
    if (!all.ok()) return [done, all] { done(all.status()); };
    std::vector<SnapshotInfo> infos;
    for (const SnapshotManifest& manifest : *all) {
      if (!job.empty() && manifest.job != job) continue;
      const absl::StatusOr<SnapshotInfo> info = InfoOf(manifest);
      if (info.ok()) infos.push_back(*info);
    }
    return [done, infos] { done(infos); };
  });
}

// Does `use` to the snapshot on the thread for the disk.
void Directory::UseSnapshot(const std::string& job, const std::string& name, const Use& use,
                            const SnapshotDone& done) {
  if (const absl::Status status = CheckSnapshotHome(); !status.ok()) return done(status);
  CarryOut(disk_.get(), std::make_shared<Order>(),
           [=, this](const Halt& halt) -> std::function<void()> {
             const auto found = [&]() -> absl::StatusOr<SnapshotInfo> {
               BALLAST_ASSIGN_OR_RETURN(const auto manifest, snapshots_.store->Find(job, name));
               BALLAST_RETURN_IF_ERROR(use(manifest, halt));
               return InfoOf(manifest);
             };
             return [done, result = found()] { done(result); };
           });
}

void Directory::DoVerifySnapshot(const std::string& job, const std::string& name,
                                 const SnapshotDone& done) {
  const auto verify = [this](const SnapshotManifest& manifest, const Halt& halt) -> absl::Status {
    BALLAST_ASSIGN_OR_RETURN(const JobPlan plan, snapshots_.codec.decode(manifest.plan));
    return snapshots_.store->Verify(manifest, plan, [&] { return halt.status(); });
  };
  UseSnapshot(job, name, verify, done);
}

void Directory::DoDeleteSnapshot(const std::string& job, const std::string& name,
                                 const SnapshotDone& done) {
  const auto remove = [this](const SnapshotManifest& manifest, const Halt&) {
    return snapshots_.store->Remove(manifest.id);
  };
  UseSnapshot(job, name, remove, done);
}

// --- At every server ----------------------------------------------------------------------------

void Directory::SnapshotLocal(const SnapshotCall& call, CapturedRound* before,
                              const std::function<void(absl::StatusOr<uint64_t>)>& done) {
  const std::shared_ptr<RoundEngine> engine = Find(call.job);
  if (call.step == SnapshotCall::Step::kRelease) {
    if (engine != nullptr) engine->ReleaseState();
    ReleaseResting(call.job);
    if (snapshots_.store == nullptr) return done(0);
    OnDisk([this, id = call.snapshot, done]() -> std::function<void()> {
      const absl::Status dropped = snapshots_.store->DropPart(id);
      if (!dropped.ok()) BALLAST_LOG(WARN) << dropped;
      return [done] { done(0); };
    });
    return;
  }
  if (const absl::Status status = CheckSnapshots(); !status.ok()) return done(status);
  const bool hold = call.step == SnapshotCall::Step::kHold;
  if (hold && RestsHere(call.job)) return HoldResting(call, done);
  if (resting_holds_.count(call.job) != 0) return CaptureResting(call, before, done);
  if (engine == nullptr || local_.count(call.job) == 0) return done(NoDurableJob(call.job));
  hold ? engine->HoldState(done) : CaptureLocal(call, before, done);
}

void Directory::CaptureLocal(const SnapshotCall& call, CapturedRound* before,
                             const std::function<void(absl::StatusOr<uint64_t>)>& done) {
  const auto finish = [=, this, self = shared_from_this()](
                          const std::shared_ptr<ImageFile>& part,
                          const absl::StatusOr<CapturedRound>& end) {
    OnDisk([part, end, before, done, round = call.round]() -> std::function<void()> {
      absl::Status status = end.status();
      if (status.ok()) status = part->Sync();
      return [=] {
        if (status.ok() && before != nullptr) *before = *end;
        status.ok() ? done(round) : done(status);
      };
    });
  };
  OnDisk([this, call, engine = Find(call.job), plan = local_.at(call.job).plan, done,
          finish]() -> std::function<void()> {
    const absl::StatusOr<Layout> layout = LayoutOfSpec(plan.spec);
    if (!layout.ok()) return [done, layout] { done(layout.status()); };
    auto made = snapshots_.store->CreatePart(call.snapshot, plan, *layout);
    if (!made.ok()) return [done, status = made.status()] { done(status); };
    const std::shared_ptr<ImageFile> part = *std::move(made);
    return [=, take = TakeInto(part, plan, *layout, call.round)] {
      engine->CaptureState(
          call.round, take,
          [finish, part](const absl::StatusOr<CapturedRound>& end) { finish(part, end); });
    };
  });
}

std::vector<ImageShape> Directory::OwnedShapes(const JobPlan& plan, const Layout& layout) const {
  return StorageOptionsOf(plan, layout, config_.self, /*checkpoint_rounds=*/1).shapes;
}

std::shared_ptr<Work> Directory::BeginWork(const std::string& kind, const std::string& name,
                                           const std::vector<ImageShape>& shapes) {
  uint64_t bytes = 0;
  for (const ImageShape& shape : shapes) bytes += ImageFile::PayloadBytes(shape);
  return works_.Begin(kind, name, bytes);
}

TakeExtent Directory::TakeInto(const std::shared_ptr<ImageFile>& part, const JobPlan& plan,
                               const Layout& layout, uint64_t round) {
  const std::vector<ImageShape> owned = OwnedShapes(plan, layout);
  std::map<uint32_t, uint64_t> bytes;  // by extent
  for (const ImageShape& shape : owned) bytes[shape.extent] = ImageFile::PayloadBytes(shape);
  return
      [part, round, bytes = std::move(bytes), work = BeginWork("snapshot", plan.spec.name, owned)](
          uint32_t extent, const void* image) -> absl::Status {
        BALLAST_RETURN_IF_ERROR(part->Write(extent, round, image));
        work->done_bytes += bytes.at(extent);
        return absl::OkStatus();
      };
}

}  // namespace ballast::server
