// Directory: JobDirectory's one implementation, as a class of its own so that its parts can stand
// in files of their own: attach at the home in job_directory.cc, epochs in directory_epochs.cc,
// growth in directory_growth.cc, ends that a server has missed in directory_missed_ends.cc, what
// operators ask in directory_jobs.cc, snapshots in directory_snapshots.cc, directory_resting.cc and
// directory_restore.cc, exports and imports in directory_export.cc and directory_import.cc, what
// all of these are ordered to do in directory_orders.cc, this server's share of jobs in
// directory_local.cc.
// Comes from: JobDirectory::Create. Goes to: RoundEngine, JobStore, the peers.
// Thread safety: public methods post to the strand; Find and the memory figures use mu_.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/executor.h"
#include "common/base/log.h"
#include "common/base/priority.h"
#include "common/base/reason.h"
#include "common/base/sync.h"
#include "server/cluster/epoch_change.h"
#include "server/cluster/halt.h"
#include "server/cluster/job_directory.h"
#include "server/cluster/job_home.h"
#include "server/round/job_plan.h"
#include "server/round/resting_state.h"

namespace ballast::server {

using AttachDone = std::function<void(absl::StatusOr<AttachResult>)>;
using ExtendDone = std::function<void(absl::StatusOr<JobPlan>)>;
using SnapshotDone = std::function<void(absl::StatusOr<SnapshotInfo>)>;

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
      if (left_ == 0) return;  // Given up.
      if (first_error_.ok()) first_error_ = status;
      last = --left_ == 0;
    }
    if (last) done_(first_error_);
  }
  // Runs `done` now, unless it has run; what is added later counts for nothing.
  void GiveUp(const absl::Status& why) {
    {
      MutexLock lock(&mu_);
      if (left_ == 0) return;
      left_ = 0;
      first_error_ = why;
    }
    done_(why);
  }

 private:
  Mutex mu_;
  size_t left_ ABSL_GUARDED_BY(mu_);
  absl::Status first_error_;
  const std::function<void(absl::Status)> done_;
};

class Directory final : public JobDirectory, public std::enable_shared_from_this<Directory> {
 public:
  Directory(const DirectoryConfig& config, const EngineDeps& deps, PeerLink* peers,
            std::unique_ptr<JobStore> store, DirectorySnapshots snapshots)
      : config_(config),
        deps_(deps),
        peers_(peers),
        store_(std::move(store)),
        snapshots_(std::move(snapshots)),
        strand_(deps.executor) {}

  absl::Status Recover() override;
  void StartRecovered() override;

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
    Post([this, plan = std::move(plan), done = std::move(done)] { CreateOrMakeRoom(plan, done); });
  }
  void PeerExtendJob(JobPlan plan, std::function<void(absl::Status)> done) override {
    Post([this, plan = std::move(plan), done = std::move(done)] { ExtendLocal(plan, done); });
  }
  void PeerDropJob(uint64_t job, std::function<void(absl::Status)> done) override {
    Post([this, job, done = std::move(done)] { DropLocal(job, done); });
  }
  void ListJobs(std::function<void(absl::StatusOr<DurableJobs>)> done) override {
    Post([this, done = std::move(done)] { DoListJobs(done); });
  }
  void DeleteJob(const std::string& name, bool force,
                 std::function<void(absl::Status)> done) override {
    Post([this, name, force, done = std::move(done)] { DoDeleteJob(name, force, done); });
  }
  void PeerWhichRest(std::vector<uint64_t> jobs,
                     std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) override {
    Post([this, jobs = std::move(jobs), done = std::move(done)] { DoWhichRest(jobs, done); });
  }
  void PeerSeal(uint64_t job, uint32_t epoch,
                std::function<void(absl::StatusOr<SealAnswer>)> done) override {
    Post([this, job, epoch, done = std::move(done)] { SealLocal(job, epoch, done); });
  }
  void PeerAdoptEpoch(JobPlan plan, std::function<void(absl::Status)> done) override {
    Post([this, plan = std::move(plan), done = std::move(done)] { AdoptLocal(plan, done); });
  }

  void CreateSnapshot(const std::string& job, const std::string& name, uint32_t keep,
                      std::function<void(absl::StatusOr<SnapshotInfo>)> done) override {
    Post([=, this, done = std::move(done)] { DoCreateSnapshot(job, name, keep, done); });
  }
  void ListSnapshots(const std::string& job,
                     std::function<void(absl::StatusOr<std::vector<SnapshotInfo>>)> done) override {
    Post([=, this, done = std::move(done)] { DoListSnapshots(job, done); });
  }
  void VerifySnapshot(const std::string& job, const std::string& name,
                      std::function<void(absl::StatusOr<SnapshotInfo>)> done) override {
    Post([=, this, done = std::move(done)] { DoVerifySnapshot(job, name, done); });
  }
  void DeleteSnapshot(const std::string& job, const std::string& name,
                      std::function<void(absl::StatusOr<SnapshotInfo>)> done) override {
    Post([=, this, done = std::move(done)] { DoDeleteSnapshot(job, name, done); });
  }
  void RestoreSnapshot(RestoreCall call,
                       std::function<void(absl::StatusOr<RestoredJob>)> done) override {
    Post([this, call = std::move(call), done = std::move(done)] {
      DoRestore(call, UnderWay(done));
    });
  }
  void PeerSnapshot(SnapshotCall call,
                    std::function<void(absl::StatusOr<uint64_t>)> done) override {
    Post([this, call, done = std::move(done)] { SnapshotLocal(call, nullptr, done); });
  }
  void PeerRestoreJob(RestoreOrder order,
                      std::function<void(absl::StatusOr<std::string>)> done) override {
    Post([this, order = std::move(order), done = std::move(done)] { RestoreLocal(order, done); });
  }

  void Export(ExportCall call, std::function<void(absl::StatusOr<ExportInfo>)> done) override {
    Post(
        [this, call = std::move(call), done = std::move(done)] { DoExport(call, UnderWay(done)); });
  }
  void Import(ImportCall call, std::function<void(absl::StatusOr<ImportInfo>)> done) override {
    Post(
        [this, call = std::move(call), done = std::move(done)] { DoImport(call, UnderWay(done)); });
  }
  std::vector<std::shared_ptr<const Work>> ListWorks() const override { return works_.List(); }
  void PeerExport(ExportPart part, std::function<void(absl::Status)> done) override {
    Post([this, part = std::move(part), done = std::move(done)] { ExportLocal(part, done); });
  }
  void PeerImportJob(ImportOrder order, std::function<void(absl::Status)> done) override {
    Post([this, order = std::move(order), done = std::move(done)] { ImportLocal(order, done); });
  }

  std::shared_ptr<RoundEngine> Find(uint64_t job) override {
    MutexLock lock(&mu_);
    const auto it = engines_.find(job);
    return it == engines_.end() ? nullptr : it->second;
  }

  void PeerLost(uint32_t server, const std::string& why) override {
    Post([=, this] {
      for (auto& [name, pending] : pending_) {
        // Seats of a durable job are waited for; its servers come back.
        if (pending.created && pending.plan.spec.durability != Durability::kNone) continue;
        FailPending(&pending, ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                                            absl::StrCat("server ", server, " was lost (", why,
                                                         "); attach again, which waits for it"),
                                            {.server = static_cast<int>(server)}));
      }
      std::erase_if(pending_, [](const auto& entry) { return !entry.second.created; });
      for (const auto& engine : Engines()) engine->PeerLost(server, why);
      if (server == config_.servers.front().id) HaltOrders(HomeLost(why));
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
    // Of a process that asks for a seat of a job that was made before.
    uint32_t world = 1;
    uint32_t min_world = 1;
    std::chrono::nanoseconds until{0};  // how long it waits for others
  };
  // A job at its home. `created`: all slots attached and all servers made it.
  struct Pending {
    explicit Pending(const AttachCall& first) : home(first) {}
    explicit Pending(const JobPlan& recovered)
        : home(recovered.spec),
          plan(recovered),
          created(true),
          gathers(recovered.spec.variable_world) {}
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
    bool growing = false;  // all slots have asked, and not every server has the grown plan
    // Durable jobs: processes of a later life whose seat was seen free, and the change of epoch
    // that gives it to them. Those who still wait for their seat are in `waiting` only.
    std::map<uint32_t, uint64_t> newcomers;  // slot -> incarnation
    // Variable worlds: members that have left, or whose lease ran out; they lose their seats.
    std::map<uint32_t, uint64_t> gone;  // slot -> incarnation
    std::optional<EpochChange> change;
    bool sealed = false;  // the epoch was sealed by a change that did not come to its end
    // Variable worlds: of this job nobody was seen yet since this server opened it, so its
    // newcomers are not let in one by one; see Gathering. Until when the first of them waits.
    bool gathers = false;
    std::optional<std::chrono::nanoseconds> gathers_until;
    // Brought back from disk; some server has not said yet that it goes on, and not that it ended.
    bool unconfirmed = false;
    bool rested = false;  // before that: its last trainers have heard its end, or have died
    // Members that attach again while the epoch changes; they learn of the new one.
    std::map<uint32_t, Waiting> survivors;
  };
  struct Local {
    JobPlan plan;
    MemoryPlan memory;
    bool ended = false;
    uint64_t told = 0;  // differs after each word of its home that it goes on
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

  bool IsHome() const { return config_.servers.front().id == config_.self; }
  absl::Status CheckHome() const;
  void DoAttach(const AttachCall& call, const AttachDone& done);
  // Whether the call was answered from what is known of the job already.
  void TakeSeat(Pending* pending, const AttachCall& call, const AttachDone& done);
  // Whether the call names a resting job, and was answered or will be.
  bool WakeUp(const AttachCall& call, const AttachDone& done);
  void OnAwake(const std::string& name, uint64_t job, const absl::Status& status);
  void AwaitSeat(const std::string& name, uint32_t slot, uint64_t incarnation,
                 std::chrono::nanoseconds give_up);
  void OnSeatSeen(const std::string& name, uint32_t slot, uint64_t incarnation,
                  std::chrono::nanoseconds give_up, const SeatUse& use);
  void OnSeatFree(const std::string& name, uint32_t slot, uint64_t incarnation, bool left);
  // A newcomer whose seat is free: lets it in, or the whole world once it has come together.
  // Returns whether it has to go on waiting.
  bool OnNewcomer(Pending* pending, uint32_t slot);
  Gathering GatheringOf(const Pending& pending) const;
  void BeginAgain(Pending* pending, const Gathering& gathering);
  // What is said to a newcomer whose world does not come together.
  void GiveUpGathering(Pending* pending, uint32_t slot, const Gathering& gathering);
  void AwaitNewcomers(const Pending& pending);
  void SomebodyIsThere(Pending* pending);
  // Whether the next epoch would have other members than this one.
  bool WantsChange(const Pending& pending) const;
  void StartChange(Pending* pending);
  // The home's own promise survives: asks the other servers.
  void SealPeers(const JobPlan& plan);
  // Tells those who wait, and goes on with what cannot be taken back any more.
  void OnSealFailed(Pending* pending, uint32_t server, const absl::Status& status);
  void WriteRecord(Pending* pending);
  // Newcomers to new seats that some server has no room for are told so.
  void TurnAway(Pending* pending, uint32_t world_max);
  absl::Status SealError(const JobPlan& plan, uint32_t server, const absl::Status& status) const;
  void OnSealed(const std::string& name, uint32_t epoch, uint32_t server,
                const absl::StatusOr<SealAnswer>& answer);
  void AdoptEverywhere(const std::string& name, const JobPlan& plan);
  void OpenAtPeer(uint32_t server, const JobPlan& plan, const std::shared_ptr<Gather>& gather);
  void OnAdopted(const std::string& name, const JobPlan& plan, const absl::Status& status);
  void EndChange(Pending* pending, const absl::Status& status);
  void SealLocal(uint64_t job, uint32_t epoch,
                 const std::function<void(absl::StatusOr<SealAnswer>)>& done);
  void AdoptLocal(const JobPlan& plan, const std::function<void(absl::Status)>& done);
  void OnAdoptedLocal(const JobPlan& plan, const MemoryPlan& memory);
  absl::Status NoDurableJob(uint64_t job) const;
  // What the home is told of a job that this server does not run.
  absl::Status WhyNotSealed(uint64_t job) const;
  bool AnswerKnown(const AttachCall& call, const AttachDone& done);
  // Why no new job can have the name of `plan`, which runs or has ended, and what to do.
  static absl::Status NameTaken(const AttachCall& call, const JobPlan& plan, bool ended);
  void Refuse(Pending* pending, const absl::Status& status, uint32_t slot);
  void DoCancel(const std::string& job, uint32_t slot, uint64_t call);
  AttachResult ResultOf(const Pending& pending);
  // Tells whoever holds `slot` of a job that was made; on the job's strand.
  void AnswerSeat(const Pending& pending, uint32_t slot, const AttachDone& done);
  void OnAttachTimeout(const std::string& name, uint64_t generation);
  void CreateEverywhere(Pending* pending);
  void MakeEverywhere(const JobPlan& plan);
  // Here first: peers are told only of what this server, the home, has made or opened itself.
  void CreateAtServers(const JobPlan& plan, const std::shared_ptr<Gather>& gather);
  absl::Status SaveMade(const JobPlan& plan);
  void OnCreated(const std::string& name, uint64_t job, const absl::Status& status);
  absl::Status CheckExtend(const ExtendCall& call, Pending* pending) const;
  void DoExtend(const ExtendCall& call, const ExtendDone& done);
  void ExtendEverywhere(const std::string& name, const JobPlan& plan);
  void OnExtended(const std::string& name, const JobPlan& plan, const absl::Status& status);
  void GrowPeers(const std::string& name);
  void OnPeersGrown(const std::string& name, uint64_t job, const absl::Status& status);
  void EndGrowth(Pending* pending, const absl::Status& status);
  // What a job takes from now on, in `local` and in the sums over all jobs.
  void SetMemory(Local* local, const MemoryPlan& memory);
  // What no job has.
  MemoryRoom FreeRoom() const;
  absl::StatusOr<MemoryPlan> PlanHere(const JobPlan& plan) const;
  bool DropEnded();
  // Why there is no room; at the home, as long as a peer may say of a job here that it has ended,
  // that.
  absl::Status NoRoom(const JobPlan& plan, const absl::Status& why) const;
  absl::Status CreateLocal(const JobPlan& plan);
  absl::StatusOr<std::unique_ptr<JobStorage>> MakeStorage(const JobPlan& plan);
  void CreateAtPeer(const JobPlan& plan, const std::function<void(absl::Status)>& done);
  // As CreateAtPeer; lets jobs rest that rest at their home before it refuses for lack of room.
  void CreateOrMakeRoom(const JobPlan& plan, const std::function<void(absl::Status)>& done);
  void DoWhichRest(const std::vector<uint64_t>& jobs,
                   const std::function<void(absl::StatusOr<std::vector<uint64_t>>)>& done) const;
  // Asks the home about the jobs here, and lets those rest that rest there: once; again until it
  // answers; or so, when the home has had time to hear what this server has just heard.
  void AskWhichRest(const std::function<void(absl::Status)>& done);
  void AskUntilAnswered();
  void AskSoon();
  void LetRest(const std::vector<uint64_t>& rest, const std::map<uint64_t, uint64_t>& told,
               const std::function<void(absl::Status)>& done);
  // Makes a job whose name `other`, which its home does not know, has here.
  absl::Status CreateInPlaceOf(const JobPlan& other, bool progress, const JobPlan& plan);
  bool ProgressOnDisk(const JobPlan& plan) const;
  absl::Status ReopenLocal(const JobPlan& plan);
  // A loss with where it was found, said here, too; any other status as it is.
  absl::Status LostHere(const JobPlan& plan, const absl::Status& status) const;
  absl::Status OpenLocal(const JobPlan& plan, std::unique_ptr<JobStorage> storage);
  // What this job may take: its own share and what nobody has.
  MemoryRoom RoomOf(const Local& local) const;
  void ExtendLocal(const JobPlan& plan, const std::function<void(absl::Status)>& done);
  void OnJobEnded(uint64_t job, const absl::Status& why, uint64_t round);
  void ReportMemory() {
    if (deps_.metrics == nullptr) return;
    deps_.metrics->state_bytes(StateTier::kDram)->Set(static_cast<double>(memory_used_bytes()));
    deps_.metrics->state_bytes(StateTier::kNvme)->Set(static_cast<double>(nvme_bytes_));
  }
  void AskAgain(Pending* pending);
  void Drop(uint64_t job);
  // As Drop, and removes its files: a job that could not be made everywhere, or was deleted.
  absl::Status Forget(uint64_t job);
  void DropAtPeer(uint32_t server, uint64_t job);
  void AskEngine(const std::shared_ptr<RoundEngine>& engine,
                 std::function<void(const JobSnapshot&)> done);
  // A durable job for those who list it.
  DurableJob Describe(const JobPlan& plan, const std::string& state) const;
  void DoListJobs(const std::function<void(absl::StatusOr<DurableJobs>)>& done);
  void DoDeleteJob(const std::string& name, bool force,
                   const std::function<void(absl::Status)>& done);
  void DeleteEverywhere(const JobPlan& plan, const std::function<void(absl::Status)>& done);
  void DropLocal(uint64_t job, const std::function<void(absl::Status)>& done);
  // A snapshot that is being taken, at the home.
  struct Taking {
    uint64_t id = 0;
    std::string name;
    uint32_t keep = 0;
    int tries = 0;  // that are left
    JobPlan plan;
    uint64_t bytes = 0;
    uint64_t round = 0;
    CapturedRound before;  // of this server, which is the home
    SnapshotDone done;
  };
  using TakingRef = std::shared_ptr<Taking>;
  // A job that rests here and of which a snapshot is being taken.
  struct RestingHold {
    uint64_t snapshot = 0;
    std::shared_ptr<std::atomic<bool>> cancelled;
    std::shared_ptr<RestingState> state;  // null until it is opened
    bool busy = true;                     // the thread for the disk uses its files
  };
  static constexpr int kTries = 3;
  absl::Status CheckSnapshots() const;
  absl::Status CheckSnapshotHome() const;
  // Runs `task`, which may block on the disk, on a thread for that, and what it returns on the
  // strand.
  void OnDisk(std::function<std::function<void()>()> task) { RunOn(disk_.get(), std::move(task)); }
  void RunOn(Executor* thread, std::function<std::function<void()>()> task);
  void DoCreateSnapshot(const std::string& job, const std::string& name, uint32_t keep,
                        const SnapshotDone& done);
  // `name`: one that was checked, or kPassingSnapshotName.
  void TakeSnapshot(const std::string& job, const std::string& name, uint32_t keep, int tries,
                    const SnapshotDone& done);
  // The plan of a job that a snapshot can be taken of, running or resting.
  absl::StatusOr<JobPlan> WholeJob(const std::string& job) const;
  // Of a job that is asked to run, or to go, while a snapshot of it is taken at rest, at the home.
  absl::Status HeldAtRest(const JobPlan& plan) const;
  static bool MayBeTriedAgain(const absl::Status& why);
  void SnapshotEverywhere(const TakingRef& taking, SnapshotCall::Step step,
                          std::function<void(absl::Status)> done);
  void HoldEverywhere(const TakingRef& taking);
  void CaptureEverywhere(const TakingRef& taking);
  void CommitSnapshot(const TakingRef& taking);
  void DropOldest(const SnapshotManifest& taken, uint64_t job, uint32_t keep) const;
  void GiveUpSnapshot(const TakingRef& taking, const absl::Status& why);
  void DoListSnapshots(const std::string& job,
                       const std::function<void(absl::StatusOr<std::vector<SnapshotInfo>>)>& done);
  using Use = std::function<absl::Status(const SnapshotManifest&, const Halt&)>;
  void UseSnapshot(const std::string& job, const std::string& name, const Use& use,
                   const SnapshotDone& done);
  void DoVerifySnapshot(const std::string& job, const std::string& name, const SnapshotDone& done);
  void DoDeleteSnapshot(const std::string& job, const std::string& name, const SnapshotDone& done);
  absl::StatusOr<SnapshotInfo> InfoOf(const SnapshotManifest& manifest) const;
  // This server's part of a step. `before`: where a capture puts the end of the round before.
  void SnapshotLocal(const SnapshotCall& call, CapturedRound* before,
                     const std::function<void(absl::StatusOr<uint64_t>)>& done);
  void CaptureLocal(const SnapshotCall& call, CapturedRound* before,
                    const std::function<void(absl::StatusOr<uint64_t>)>& done);
  // The extents that this server owns, as slots hold them.
  std::vector<ImageShape> OwnedShapes(const JobPlan& plan, const Layout& layout) const;
  // Work on the states of `shapes`.
  std::shared_ptr<Work> BeginWork(const std::string& kind, const std::string& name,
                                  const std::vector<ImageShape>& shapes);
  // Writes states of this server's extents to a part, and says how far that is.
  TakeExtent TakeInto(const std::shared_ptr<ImageFile>& part, const JobPlan& plan,
                      const Layout& layout, uint64_t round);
  // The same of a job that rests, in directory_resting.cc.
  bool RestsHere(uint64_t job) const;
  void HoldResting(const SnapshotCall& call,
                   const std::function<void(absl::StatusOr<uint64_t>)>& done);
  void CaptureResting(const SnapshotCall& call, CapturedRound* before,
                      const std::function<void(absl::StatusOr<uint64_t>)>& done);
  // Whether its files are closed; if not, they will be soon.
  bool ReleaseResting(uint64_t job);
  void DoRestore(const RestoreCall& call,
                 const std::function<void(absl::StatusOr<RestoredJob>)>& done);
  absl::StatusOr<JobPlan> PlanOfRestore(const RestoreCall& call,
                                        const SnapshotManifest& manifest) const;
  void RestoreEverywhere(const RestoreOrder& order,
                         const std::function<void(absl::StatusOr<RestoredJob>)>& done);
  void RestoreLocal(const RestoreOrder& order,
                    const std::function<void(absl::StatusOr<std::string>)>& done);
  absl::StatusOr<std::string> RestoreFiles(const RestoreOrder& order, const Halt& halt);
  // NAME_IN_USE when a job has the name, or one that is being made.
  absl::Status CheckNewName(const std::string& name) const;
  // Makes a resting job at all of its servers: at_server(server, done) at the others, and then at
  // this one, which is the home.
  using AtServer = std::function<void(uint32_t server, std::function<void(absl::Status)> done)>;
  void MakeEverywhere(const JobPlan& plan, const AtServer& at_server,
                      const std::function<void(absl::StatusOr<DurableJob>)>& done);
  using ExportDone = std::function<void(absl::StatusOr<ExportInfo>)>;
  // An export that is being written, at the home.
  struct Exporting {
    ExportCall call;
    SnapshotManifest manifest;
    std::vector<ExportShard> shards;
    ExportInfo info;
    ExportDone done;
  };
  using ExportingRef = std::shared_ptr<Exporting>;
  void DoExport(const ExportCall& call, const ExportDone& done);
  // Of the present state, and of a snapshot that is there.
  void ExportPresent(const ExportCall& call, const ExportDone& done);
  // Of the snapshot `id`; 0: of the one that the call names.
  void ExportSnapshot(const ExportCall& call, uint64_t id, const ExportDone& done);
  // The manifest that the home has found. FAILED_PRECONDITION UNSUPPORTED where it is not seen.
  absl::StatusOr<SnapshotManifest> SharedSnapshot(uint64_t id) const;
  ExportOptions OptionsOf(const ExportCall& call) const;
  // Whether an export of the present state fits, and the snapshot that it takes.
  absl::Status CheckExportRoom(const ExportCall& call, const JobPlan& plan) const;
  absl::Status BeginExport(uint64_t id, Exporting* exporting) const;
  void ExportEverywhere(const ExportingRef& exporting);
  void EndExport(const ExportingRef& exporting, absl::Status status);
  void ExportLocal(const ExportPart& part, const std::function<void(absl::Status)>& done);
  absl::Status ExportFiles(const ExportPart& part, const Halt& halt);
  using ImportDone = std::function<void(absl::StatusOr<ImportInfo>)>;
  void DoImport(const ImportCall& call, const ImportDone& done);
  // The plan of the job, and what is known of it, before anything is made.
  absl::StatusOr<JobPlan> PlanOfImport(const ImportCall& call, ImportInfo* info) const;
  void ImportEverywhere(const ImportOrder& order, const ImportInfo& info, const ImportDone& done);
  void ImportLocal(const ImportOrder& order, const std::function<void(absl::Status)>& done);
  absl::Status ImportFiles(const ImportOrder& order, const Halt& halt);
  // Makes this server's files of a job that goes on from elsewhere.
  absl::Status MakeFiles(const JobPlan& plan, const JobStore::Fill& fill);
  // Writes the states of its extents; several `read` them at a time, into memory on pages.
  using ReadState = std::function<absl::Status(uint32_t extent, char* image, char* scratch)>;
  struct Filling {
    std::string kind;  // of the Work
    ImageFile* images = nullptr;
    size_t scratch_bytes = 0;
    const Halt* halt = nullptr;
  };
  absl::Status FillImages(const Filling& filling, const JobPlan& plan, const Layout& layout,
                          const ReadState& read);
  // What takes long here and is carried out on a thread for the disk: a share of an export, of a
  // restore or of an import, a verification.
  struct Order {
    uint64_t job = 0;  // that it makes; 0: none
    std::string name;  // of that job
    const std::shared_ptr<Halt> halt = std::make_shared<Halt>();
    std::vector<std::function<void()>> then;  // on the strand, when it has ended
  };
  using OrderRef = std::shared_ptr<Order>;
  using Carry = std::function<std::function<void()>(const Halt&)>;
  // As RunOn, with a way to end it early. One that makes a job of the same name gives way first.
  void CarryOut(Executor* thread, const OrderRef& order, const Carry& carry);
  void EndOrder(const OrderRef& order);
  void HaltOrders(const absl::Status& why);
  // Whether the job is being made here; then that is halted, and `then` runs when it has ended.
  bool HaltMaking(uint64_t job, const std::function<void()>& then);
  absl::Status ShuttingDown() const;
  absl::Status HomeLost(const std::string& why) const;
  // What a call to a server said while this, its home, waited for it to do `what`.
  static absl::Status SaidBy(uint32_t server, const std::string& what, const absl::Status& status);
  // A Gather that a shutdown gives up.
  std::shared_ptr<Gather> GatherPeers(size_t count, std::function<void(absl::Status)> done);
  // Orders `server`: again while it still starts, for half a minute, and when it took that for an
  // order of the home's process before this one, whose end it had only just noticed.
  void Tell(uint32_t server, const AtServer& order, const std::function<void(absl::Status)>& done);
  void TryTelling(uint32_t server, const AtServer& order, std::chrono::nanoseconds until,
                  const std::function<void(absl::Status)>& done);
  // Others are about to make the job; it survives that they may have something of it.
  absl::Status MarkOrdered(const JobPlan& plan);
  // Removes what others have of a job that was not made; again and again until they have answered.
  void DropOrdered(uint64_t job);
  // Counts what has to end before a shutdown is answered.
  template <typename T>
  std::function<void(absl::StatusOr<T>)> UnderWay(std::function<void(absl::StatusOr<T>)> done) {
    ++under_way_;
    return [this, done = std::move(done)](const absl::StatusOr<T>& result) {
      done(result);
      EndUnderWay();
    };
  }
  void EndUnderWay();
  void FailPending(Pending* pending, const absl::Status& status);
  static bool IsAttaching(const Pending& pending);
  JobSnapshot AttachingSnapshot(const std::string& name, const Pending& pending) const;
  void DoSnapshot(const std::function<void(std::vector<JobSnapshot>)>& done);
  void DoShutdown(const std::function<void()>& done);

  const DirectoryConfig config_;
  const EngineDeps deps_;
  PeerLink* const peers_;
  const std::unique_ptr<JobStore> store_;  // may be null
  const DirectorySnapshots snapshots_;
  Strand strand_;
  std::atomic<uint64_t> memory_used_{0};
  // What jobs that are still to be recovered need at least.
  uint64_t memory_reserved_ = 0;
  uint64_t state_reserved_ = 0;
  uint64_t state_used_ = 0;  // in memory; this and the next belong to the strand
  uint64_t nvme_bytes_ = 0;  // of states that live on NVMe

  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<RoundEngine>> engines_ ABSL_GUARDED_BY(mu_);

  // Owned by the strand.
  std::map<std::string, Pending> pending_;  // at the home, by name
  std::map<uint64_t, Local> local_;
  uint64_t told_ = 0;       // newest Local::told
  bool asks_soon_ = false;  // the timer of AskSoon runs
  // At the home: durable jobs that ended and are on disk only, by name.
  std::map<std::string, JobPlan> resting_;
  std::set<uint64_t> taking_;        // jobs of which a snapshot is being taken, at the home
  std::set<std::string> restoring_;  // names of jobs that are being made of snapshots, there
  std::map<uint64_t, RestingHold> resting_holds_;  // by job
  uint64_t next_generation_ = 1;
  bool shutting_down_ = false;
  std::vector<OrderRef> orders_;
  std::vector<std::weak_ptr<Gather>> waits_for_peers_;
  std::vector<uint64_t> ordered_only_;  // from Recover to StartRecovered
  int under_way_ = 0;
  std::function<void()> when_idle_;  // of a shutdown
  Works works_;
  // Last: their threads use all of the above.
  const std::unique_ptr<Executor> disk_ =
      deps_.executors->MakeExecutor("snapshots", 1, kBesideRounds);
  const std::unique_ptr<Executor> exchange_ =
      deps_.executors->MakeExecutor("exchange", 1, kBesideRounds);
};

// Never 0: of snapshots, and of jobs and seats that are made of one.
uint64_t RandomId();

uint64_t ParametersOf(const JobSpec& spec);

}  // namespace ballast::server
