// FaultPlan: faults and their times, within a seed's budget. Some faults come between two events of
// a server, so that every one of its steps is hit sooner or later; others come at a time.
// Comes from: the swarm. Goes to: servers, trainers, network. Thread safety: one thread.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/sim/nodes/server.h"
#include "tests/sim/nodes/trainer.h"

namespace ballast::sim {

class FaultPlan {
 public:
  // Starts a trainer process that asks for `slot`; null when there have been enough.
  using Spawn = std::function<SimTrainer*(uint32_t slot)>;
  // `trainers`: every process there is or was; the list grows.
  FaultPlan(const Context& context, std::vector<SimServer*> servers,
            const std::vector<std::unique_ptr<SimTrainer>>* trainers, Spawn spawn);

  // Also after a calm: faults begin again, with another budget.
  void Begin();
  // From here on nothing goes wrong, and down or separated nodes come back.
  void Calm();
  // Another process will ask for the slot soon. `always`: also in a variable world.
  void Replace(uint32_t slot, bool always);
  // The budget is used up.
  bool spent() const { return left_ == 0; }

 private:
  using Act = void (FaultPlan::*)();

  bool Gate(NodeId node);
  // Starts again who is missing, from now on: all of a fixed world, the first one or somebody of a
  // variable one.
  void StartMissing();
  // Whether the server has been sealed or has another epoch since the last event.
  bool EpochChanged(uint32_t server);
  // The home has just been sealed: it ends soon, and the trainers that ask for a seat, while it
  // cannot reach another server.
  void EndSealedHome();
  // Ends some server soon.
  void EndSoon();
  // The server is sealed, and will write the record of the next epoch.
  void EndInRecord(uint32_t server);
  void Next();
  void Kill(uint32_t server, bool power);
  void Restart(uint32_t server);
  void ArmDisk(uint32_t server);
  // `operations` as of SimDisk::DieAt; 0: at the next rename.
  void DieInDisk(uint32_t server, uint64_t operations, bool happens, bool power, Cover met) {
    DieIn(servers_[server]->disk(), server, operations, happens, power, met);
  }
  void DieIn(SimDisk* disk, uint32_t server, uint64_t operations, bool happens, bool power,
             Cover met);
  // The same in that of the snapshots.
  void ArmShelf(uint32_t server);
  void CutLink();
  void PauseServer() {
    context_.world->Met(Cover::kServerPaused);
    Pause(static_cast<NodeId>(random().Below(servers_.size())));
  }
  void PauseTrainer();
  void Pause(NodeId node, Tick at_most = 6 * kSecond);
  void KillTrainer();
  void KillWorld(const std::vector<SimTrainer*>& trainers);
  void HangTrainer();
  void ComeOrGo();
  // Members that can still do something; null when there is none.
  std::vector<SimTrainer*> Active() const;
  SimTrainer* AnyActive();
  void LeapClock();
  void SetWallClocks();
  void FailWrite();
  void FailSync();
  void LieOnce();
  void SendZombie();

  Random& random() { return context_.world->random(); }
  const Faults& faults() const { return context_.swarm->faults; }
  SimServer* AnyServer() { return servers_[random().Below(servers_.size())]; }
  void Say(NodeId node, const char* what);

  const Context context_;
  const std::vector<SimServer*> servers_;
  const std::vector<std::unique_ptr<SimTrainer>>* const trainers_;
  const Spawn spawn_;
  std::multiset<uint32_t> spawning_;               // slots of processes that are about to start
  std::vector<Act> timed_;                         // classes that are on
  std::vector<std::pair<uint32_t, bool>> epochs_;  // by server: its epoch, sealed or not
  uint32_t left_ = 0;
  bool calm_ = false;
  bool starts_missing_ = false;
};

}  // namespace ballast::sim
