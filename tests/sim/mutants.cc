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
  switch (probe) {
    case Probe::kLogFull:
      world->SetGaveWay(node, true);
      return world->Met(sim::Cover::kLogFull);
    case Probe::kHoldGaveWay:
      world->SetGaveWay(node, true);
      return world->Met(sim::Cover::kHoldGaveWay);
    case Probe::kExtentLoaded:
      return world->Met(sim::Cover::kExtentLoaded);
    case Probe::kExtentWrittenBack:
      return world->Met(sim::Cover::kExtentWrittenBack);
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
