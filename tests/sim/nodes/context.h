// What all parts of one run share. Comes from: the simulation. Goes to: servers, trainers, faults.
// Thread safety: one thread.
#pragma once

#include "common/faults/mutant.h"
#include "common/tensor/layout.h"
#include "server/round/round_types.h"
#include "tests/sim/net/network.h"
#include "tests/sim/nodes/snapshot_shelf.h"
#include "tests/sim/oracle.h"
#include "tests/sim/swarm.h"
#include "tests/sim/world/world.h"

namespace ballast::sim {

class MeetingBook;

// The job runs, rests and is woken.
struct Lives {
  uint64_t last_round = 0;    // of the present life
  uint32_t rested_epoch = 0;  // the last one before the rest; 0: it has not rested
};

struct Context {
  World* world = nullptr;
  const Swarm* swarm = nullptr;
  Network* network = nullptr;
  Oracle* oracle = nullptr;
  SnapshotShelf* shelf = nullptr;
  const server::JobPlan* plan = nullptr;
  uint64_t* job = nullptr;  // its number, which the home's newest attempt to make it has chosen
  const Layout* layout = nullptr;
  Mutant mutant = Mutant::kNone;
  MeetingBook* meetings = nullptr;
  const Lives* lives = nullptr;

  // The job rests, and trainers may be waking it.
  bool rests() const {
    return lives->rested_epoch != 0 && oracle->newest().epoch == lives->rested_epoch;
  }
};

}  // namespace ballast::sim
