// SimProcess: one life of a server process: the shipped job directory, put together as in
// server/server.cc, and its supplies from a server process: threads, workers, a clock, a disk, and
// the client of its peers. When the process ends, between any two events, all its remaining work is
// dropped. Comes from: SimServer. Goes to: Directory, the network, the oracle. Thread safety: one
// thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "server/directory/directory.h"
#include "server/engine/round_driver.h"
#include "server/peer/peer_client.h"
#include "server/service/directory_holder.h"
#include "tests/sim/nodes/context.h"
#include "tests/sim/nodes/job_files.h"
#include "tests/sim/world/disk.h"
#include "tests/sim/world/threads.h"

namespace ballast::sim {

// The servers of the job.
std::vector<server::ServerAddress> AddressesOf(const server::JobPlan& plan);

class SimProcess final : public server::VoteSink {
 public:
  struct Deps {
    uint32_t index = 0;  // of the server
    SimDisk* disk = nullptr;
    SimDisk* shelf = nullptr;  // the directory of snapshots
    bool damaged = false;      // the files were damaged while the server was down
    // After every task of a disk's thread.
    std::function<void()> after_task;
    // The disk failed and the process must end.
    std::function<void(const absl::Status&)> storage_failed;
    // The record of the job, which is on the disk now, is this.
    std::function<void(const server::JobPlan&)> saved;
    // The job's files are open.
    std::function<void(server::JobStorage*)> opened;
  };
  // What `deps` points to outlives this.
  SimProcess(const Context& context, Deps deps);
  // The process has ended: not within one of its events.
  ~SimProcess() override;

  // Reads the jobs on the disk. Errors: JobDirectory::Recover's.
  absl::Status Recover();
  // Why it does not run the job that it has read; OK where it rests. NOT_FOUND: it has none.
  absl::Status WhyNot();
  // Serves from now on.
  void Start();
  NodeId node() const { return context_.network->ServerNode(deps_.index); }
  // The incarnation of the process.
  uint64_t life() const { return life_; }
  bool alive() const { return context_.world->Life(node()) == life_; }
  // `action`, as long as the process lives.
  template <typename Action>
  auto InLife(Action action) const {
    return [world = context_.world, node = node(), life = life_,
            action = std::move(action)](auto&&... of) {
      if (world->Life(node) == life) action(std::forward<decltype(of)>(of)...);
    };
  }

  // A thread of this process that takes no time.
  std::unique_ptr<Executor> MakeExecutor(absl::string_view name) {
    return threads_.MakeExecutor(name, 1);
  }

  // Of the job; null before it is made here.
  server::RoundDriver* engine() const;
  server::DirectoryHolder* directory() { return &holder_; }
  server::SnapshotApi* snapshots() const { return directory_->apis().snapshots; }
  const Clock* clock() const { return &clock_; }
  const server::RoundFsm& fsm() const { return engine()->fsm(); }
  // The job has ended, and why.
  bool ended() const { return !failure().ok(); }
  const absl::Status& failure() const { return engine()->failure(); }
  // It has ended because all trainers had left, and is not woken yet.
  bool rests() const;
  // Nothing is on its way to the disk, and nothing else is to be done.
  bool idle() const { return threads_.idle(); }

  // Keeps the memory of a sent message for as long as it may be on its way.
  void KeepWhileSent(std::shared_ptr<const void> owner);

  // The oracle sees each vote on its way.
  void SendVote(uint64_t job, uint32_t epoch, uint64_t round, uint32_t to_server,
                const Vote& vote) override;
  void DropVotes(uint64_t job) override { peers_->DropVotes(job); }

 private:
  // The machine's steady clock; for a mutant the wall clock.
  class ProcessClock final : public Clock {
   public:
    explicit ProcessClock(const SimProcess* of) : of_(of) {}
    std::chrono::nanoseconds Now() const override;

   private:
    const SimProcess* const of_;
  };

  SimClock* machine_clock() const { return context_.world->clock(node()); }
  uint32_t id() const { return context_.plan->servers[deps_.index]; }
  server::EngineConfig EngineConfig() const;
  server::DirectoryConfig DirectoryConfig() const;
  void SetBudget(server::DirectoryConfig* config) const;
  server::EngineDeps EngineDeps();
  // As ServerStorage::OpenSnapshots.
  absl::StatusOr<server::DirectorySnapshots> OpenSnapshots() const;
  // The record of the job, if `txn` has written it.
  void OnRecords(const server::MetaTxn& txn);
  void TellOracle() const;
  void Observe(Probe probe) const;
  void OnDecided() const;
  // Lets go of the oldest of going_out_ when they have arrived.
  void AwaitSent();
  server::PeerLinkConfig LinkConfig() const;
  // Heartbeats begin.
  void StartPeers();
  void OnVoteAnswer(uint32_t epoch, uint64_t round, const absl::StatusOr<Vote>& vote);

  const Context context_;
  const Deps deps_;
  const uint64_t life_;
  const uint64_t errors_before_;  // of the disk, told to the processes before
  const ProcessClock clock_;
  SimThreads threads_;
  const std::unique_ptr<Executor> strands_;
  const std::unique_ptr<SimWorkers> workers_;
  struct GoingOut {
    Tick until = 0;
    std::shared_ptr<const void> owner;
  };
  std::deque<GoingOut> going_out_;
  SimRecords records_;
  const std::shared_ptr<server::PeerClient> peers_;
  server::DirectoryHolder holder_;
  std::shared_ptr<server::Directory> directory_;
  // The engine, as that event found it: every event asks for it several times.
  mutable server::RoundDriver* engine_ = nullptr;
  mutable std::weak_ptr<server::RoundEngine> engine_alive_;
  mutable uint64_t looked_at_ = 0;
};

}  // namespace ballast::sim
