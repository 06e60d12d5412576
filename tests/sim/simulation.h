// Simulation: one seed from beginning to end. First faults, then none and every round must finish;
// at last every server loses its power once more, and its stored state is compared with the
// reference.
// Comes from: main. Goes to: an Outcome. Thread safety: one thread.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/faults.h"
#include "tests/sim/net/network.h"
#include "tests/sim/nodes/meeting.h"
#include "tests/sim/nodes/server.h"
#include "tests/sim/nodes/snapshot_shelf.h"
#include "tests/sim/nodes/snapshots.h"
#include "tests/sim/nodes/trainer.h"
#include "tests/sim/oracle.h"

namespace ballast::sim {

struct Outcome {
  std::string red;      // what broke; empty: nothing
  std::string refusal;  // the typed error with which damage ended the job; empty: none did
  uint64_t hash = 0;    // of all that happened
  uint64_t events = 0;
  std::array<uint64_t, static_cast<size_t>(Cover::kCount)> met{};
};

// Runs one seed. The same seed and mutant give the same outcome.
Outcome RunSeed(uint64_t seed, Mutant mutant, bool trace);

class Simulation {
 public:
  Simulation(uint64_t seed, Mutant mutant, bool trace);
  ~Simulation();
  Outcome Run();

 private:
  // Steps the world until `done` or the end of its time. False when it did not come to that.
  template <typename Done>
  bool RunUntil(Tick deadline, const Done& done);
  // A trainer process that asks for `slot`; null when there have been enough of them.
  SimTrainer* Spawn(uint32_t slot);
  // The processes that hold the seats of the newest epoch; null for one that is no more.
  std::vector<SimTrainer*> Members() const;
  bool AllMembers(const std::function<bool(const SimTrainer&)>& holds) const;
  // A trainer that ended as it must: it has lost its seat, or never had it.
  bool RightlyOut(const SimTrainer& trainer) const;
  void StartServers();
  // The trainers attach, and the home makes the job.
  bool MakeJob();
  // To the last of the present life.
  bool RunRounds();
  // The job's first life, if it has two, and its rest.
  bool Rest();
  bool Refused();
  // Why a server cannot serve, or the job has ended there.
  absl::Status ServerError() const;
  bool OpenedInVain(const absl::Status& error) const;
  bool FetchStates();
  // Every trainer's communicator of the last epoch is made.
  bool Meet();
  // Nothing that held the state once keeps others from it.
  bool TakeLastSnapshot();
  bool PowerCycle();
  // Every trainer leaves, so that the job ends.
  bool LeaveAll();
  // It does not: the home, which began to hear the Leaves in this life, lacks some of them.
  bool LeavesUnheard(uint64_t life) const;
  std::string Stuck() const;

  const Swarm swarm_;
  server::JobPlan plan_;
  const Layout layout_;
  World world_;
  const Trial trial_;
  Network network_;
  Oracle oracle_;
  SnapshotShelf shelf_;
  MeetingBook meetings_;
  Lives lives_;
  const Context context_;
  std::vector<std::unique_ptr<SimServer>> servers_;
  std::vector<std::unique_ptr<SimTrainer>> trainers_;
  std::unique_ptr<FaultPlan> faults_;
  std::string refusal_;
  bool ending_ = false;
};

}  // namespace ballast::sim
