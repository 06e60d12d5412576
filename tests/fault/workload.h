// Workload: two servers of one durable job in this process, their disks in memory, run for as many
// rounds as asked and then ended in the middle of one, as kill -9 would; with the state that each
// version must have.
// Comes from: corruptions.cc. Goes to: RoundEngine, JobStore. Thread safety: one thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/engine/round_engine.h"
#include "tests/fault/damage.h"
#include "tests/fault/meta_files.h"
#include "tests/server/directory/durable_plans.h"
#include "tests/server/engine/engine_cluster.h"

namespace ballast::fault {

constexpr uint32_t kServers = 2;
constexpr uint32_t kCheckpointRounds = 2;

// The job: 9 extents of 128 elements, two trainers.
server::JobPlan WorkloadPlan();
std::unique_ptr<server::JobStore> WorkloadStore(FileSystem* disk, server::MetaStore* meta,
                                                uint32_t self);

// The disks at one instant, and what had been promised by then.
struct Moment {
  uint64_t committed = 0;  // the newest round whose weights trainers have got
  Image disks[kServers];   // with the files of the metadata stores
  // What those say.
  std::vector<server::MetaEntry> records[kServers];
};

// Arrays of every tensor at one version.
struct Version {
  std::vector<std::vector<float>> p, m, v;
  std::vector<uint64_t> step;
};

class Workload : public server::VoteSink {
 public:
  Workload();
  ~Workload() override;

  // Runs rounds up to `last`; then, with `open_extents`, the next one until that many of its
  // extents have all their gradients. Then kills both servers and returns their files; a later call
  // starts them again.
  Moment RunTo(uint64_t last, uint32_t open_extents);

  const server::JobPlan& plan() const { return plan_; }
  const Layout& layout() const { return layout_; }
  // What `version` must be; rounds up to it must have been run.
  const Version& At(uint64_t version) const { return versions_.at(version - 1); }
  // The sum of the open round's gradients, tensor by tensor.
  std::vector<std::vector<float>> OpenSum() const;

  void SendVote(uint64_t job, uint32_t epoch, uint64_t round, uint32_t to,
                const Vote& vote) override;
  void DropVotes(uint64_t) override {}

 private:
  struct Node {
    std::unique_ptr<MemoryDisk> disk;
    MetaFolder meta_folder;
    std::unique_ptr<server::MetaStore> meta;
    std::unique_ptr<Executor> executor;
    std::unique_ptr<WorkerPool> workers;
    std::shared_ptr<server::RoundEngine> engine;
    std::vector<std::shared_ptr<server::testing::RecordingSink>> sinks;
  };
  std::shared_ptr<server::RoundEngine> Engine(uint32_t id);
  void Start(uint32_t id);
  void Stop();
  // Until the engine is at the round that is to be run next.
  void AwaitRound(server::RoundEngine* engine) const;
  // Ends the servers, and adds their files to `moment`.
  void Leave(Moment* moment);
  // Starts both servers with every trainer at both, and waits until they are at the next round.
  void StartAll();
  // The next round, from its begin to its result; the reference follows.
  void RunRound();
  void Begin(uint64_t round);
  void Push(FrameKind kind, uint64_t round, uint32_t slot, uint32_t extent,
            const std::vector<std::vector<float>>& values);
  std::vector<std::vector<std::vector<float>>> Gradients(uint64_t round) const;

  const server::JobPlan plan_;
  const Layout layout_;
  const RealClock clock_;
  uint64_t round_ = 1;  // the next to run
  server::testing::Reference reference_;
  std::vector<Version> versions_;
  Mutex mu_;
  Node nodes_[kServers];
};

}  // namespace ballast::fault
