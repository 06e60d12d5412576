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
};

}  // namespace ballast::sim
