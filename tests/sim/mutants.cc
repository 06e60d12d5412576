#include "tests/sim/mutants.h"

#include <cstring>
#include <utility>

#include "tests/sim/world/world.h"

namespace ballast {
namespace {

Mutant tried = Mutant::kNone;
sim::World* world = nullptr;

constexpr std::pair<Probe, sim::Cover> kCovers[] = {
    {Probe::kLogFull, sim::Cover::kLogFull},
    {Probe::kHoldGaveWay, sim::Cover::kHoldGaveWay},
    {Probe::kExtentLoaded, sim::Cover::kExtentLoaded},
    {Probe::kExtentWrittenBack, sim::Cover::kExtentWrittenBack},
    {Probe::kOldExtentSaved, sim::Cover::kOldExtentSaved},
    {Probe::kReplay, sim::Cover::kReplay},
    {Probe::kExtentAhead, sim::Cover::kExtentAhead},
    {Probe::kRestoredPrepared, sim::Cover::kRestoredPrepared},
    {Probe::kRestoredGradient, sim::Cover::kRestoredGradient},
    {Probe::kAttachWaits, sim::Cover::kAttachWaits},
    {Probe::kSealWaits, sim::Cover::kSealWaits},
    {Probe::kAdoptWaits, sim::Cover::kAdoptWaits},
    {Probe::kWoken, sim::Cover::kWoken},
    {Probe::kChangeTakenUp, sim::Cover::kChangeTakenUp},
    {Probe::kBegunAgain, sim::Cover::kBegunAgain},
    {Probe::kBegunWithFewer, sim::Cover::kBegunWithFewer},
    {Probe::kInitAgain, sim::Cover::kInitAgain},
    {Probe::kStepWaits, sim::Cover::kStepWaits},
    {Probe::kMeetingOpened, sim::Cover::kMeetingOpened},
    {Probe::kMeetingTimedOut, sim::Cover::kMeetingTimedOut},
    {Probe::kMeetingStale, sim::Cover::kMeetingStale},
    {Probe::kMeetingGivenUp, sim::Cover::kMeetingGivenUp},
    {Probe::kMeetingOlder, sim::Cover::kMeetingOlder},
    {Probe::kMeetingConflict, sim::Cover::kMeetingConflict},
};

}  // namespace

bool MutantIs(Mutant mutant) { return mutant == tried; }

void Met(Probe probe) {
  if (world == nullptr) return;
  const sim::NodeId node = world->present_node();
  if (node == sim::kNobody) return;  // Work begun by an ended process comes to its end.
  for (const auto& [of, cover] : kCovers) {
    if (of == probe) world->Met(cover);
  }
  if (probe >= Probe::kHeldLogEnded) world->Observe(node, probe);
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
