// FaultPlan: what goes wrong when, within a seed's budget. Some faults come between two events of a
// server, so that every one of its steps is hit sooner or later; others come at a time.
// Comes from: the swarm. Goes to: servers, trainers, network. Thread safety: one thread.
#pragma once

#include <vector>

#include "tests/sim/server.h"
#include "tests/sim/trainer.h"

namespace ballast::sim {

class FaultPlan {
 public:
  FaultPlan(const Context& context, std::vector<SimServer*> servers,
            std::vector<SimTrainer*> trainers);

  void Begin();
  // From here on nothing goes wrong, and what is down or apart comes back.
  void Calm();
  // The budget is used up.
  bool spent() const { return left_ == 0; }

 private:
  using Act = void (FaultPlan::*)();

  bool Gate(NodeId node);
  void Next();
  void Kill(uint32_t server, bool power);
  void Restart(uint32_t server);
  void ArmDisk(uint32_t server);
  void CutLink();
  void PauseServer() { Pause(static_cast<NodeId>(random().Below(servers_.size()))); }
  void PauseTrainer() {
    Pause(static_cast<NodeId>(servers_.size() + random().Below(trainers_.size())));
  }
  void Pause(NodeId node);
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
  const std::vector<SimTrainer*> trainers_;
  std::vector<Act> timed_;  // classes that are on
  uint32_t left_ = 0;
  bool calm_ = false;
};

}  // namespace ballast::sim
