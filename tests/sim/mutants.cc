#include "tests/sim/mutants.h"

#include <cstring>

#include "tests/sim/world.h"

namespace ballast {
namespace {

Mutant tried = Mutant::kNone;
sim::World* world = nullptr;

}  // namespace

bool MutantIs(Mutant mutant) { return mutant == tried; }

void Met(Probe probe) {
  if (world == nullptr) return;
  const sim::NodeId node = world->present_node();
  if (node == sim::kNobody) return;  // What an ended process had begun comes to its end.
  switch (probe) {
    case Probe::kLogHasRoom:
      return world->SetLogFull(node, false);
    case Probe::kLogFull:
      world->SetLogFull(node, true);
      world->SetGaveWay(node, true);
      return world->Met(sim::Cover::kLogFull);
    case Probe::kHoldGaveWay:
      world->SetGaveWay(node, true);
      return world->Met(sim::Cover::kHoldGaveWay);
    case Probe::kExtentLoaded:
      return world->Met(sim::Cover::kExtentLoaded);
    case Probe::kExtentWrittenBack:
      return world->Met(sim::Cover::kExtentWrittenBack);
    case Probe::kOldExtentSaved:
      return world->Met(sim::Cover::kOldExtentSaved);
    case Probe::kReplay:
      return world->Met(sim::Cover::kReplay);
    case Probe::kExtentAhead:
      return world->Met(sim::Cover::kExtentAhead);
    case Probe::kRestoredPrepared:
      return world->Met(sim::Cover::kRestoredPrepared);
    case Probe::kRestoredGradient:
      return world->Met(sim::Cover::kRestoredGradient);
    case Probe::kAttachWaits:
      return world->Met(sim::Cover::kAttachWaits);
    case Probe::kSealWaits:
      return world->Met(sim::Cover::kSealWaits);
    case Probe::kAdoptWaits:
      return world->Met(sim::Cover::kAdoptWaits);
    case Probe::kDecided:
    case Probe::kRoundOver:
      return world->Observe(node, probe);
  }
}

namespace sim {

const MutantInfo* FindMutant(const char* name) {
  for (const MutantInfo& info : kMutants) {
    if (std::strcmp(info.name, name) == 0) return &info;
  }
  return nullptr;
}

Trial::Trial(Mutant mutant, World* of) {
  tried = mutant;
  world = of;
}

Trial::~Trial() {
  tried = Mutant::kNone;
  world = nullptr;
}

}  // namespace sim
}  // namespace ballast
