// SimSnapshots: how the job's home takes snapshots and removes them: the mirror of the first half
// of server/operator/snapshot_taking.cc over the production SnapshotStore. Keep it in step with
// that file. Comes from: SimServer with index 0. Goes to: the servers, the shelf.
// Thread safety: one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "server/snapshot/store.h"
#include "tests/sim/nodes/server.h"

namespace ballast::sim {

class SimSnapshots {
 public:
  using Done = std::function<void(absl::Status)>;

  // `server` has started, and outlives it.
  SimSnapshots(const Context& context, SimServer* server);

  // Removes the unfinished snapshots of the process before, then takes and removes some now and
  // then.
  void Start();
  // Takes one of that name. Errors: as Directory::CreateSnapshot.
  void Take(const std::string& name, const Done& done);
  // It can take one now.
  bool ready() const { return cleared_ && !busy_; }

 private:
  struct Taking {
    uint64_t id = 0;
    std::string name;
    int tries = 0;  // left after this one
    uint64_t round = 0;
    std::map<uint32_t, uint64_t> rounds;  // by server, for a mutant
    std::shared_ptr<server::CapturedRound> before;
    Done done;
  };
  using TakingRef = std::shared_ptr<Taking>;
  using Step = server::SnapshotCall::Step;

  NodeId node() const { return context_.network->ServerNode(0); }
  bool Alive() const { return context_.world->Life(node()) == life_; }
  Random& random() const { return context_.world->random(); }
  void After(Tick delay, std::function<void()> action);
  void OnDisk(std::function<void()> task);
  void Clear();
  void DoNext();
  void Try(const std::string& name, int tries, const Done& done);
  void Everywhere(const TakingRef& taking, Step step,
                  const std::function<void(absl::Status)>& done);
  void Ask(uint32_t index, const server::SnapshotCall& call,
           const std::function<void(absl::StatusOr<uint64_t>)>& done);
  void Commit(const TakingRef& taking);
  void GiveUp(const TakingRef& taking, const absl::Status& why);
  void Remove(const std::string& name);

  const Context context_;
  SimServer* const server_;
  const uint64_t life_;
  server::SnapshotStore store_;
  bool cleared_ = false;
  bool busy_ = false;
};

}  // namespace ballast::sim
