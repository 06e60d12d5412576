// SimSlotIo: the SlotIo of JobStorage::MakeRoundLog with its threads replaced by events: reads and
// writes of different extents end in any order, and a process can end between any two of them.
// Comes from: SimRoundLog, for a tier on NVMe. Goes to: SlotFile. Thread safety: one thread.
#pragma once

#include <functional>

#include "server/durability/slot_file.h"
#include "server/durability/slot_io.h"
#include "tests/sim/mutants.h"
#include "tests/sim/swarm.h"
#include "tests/sim/world.h"

namespace ballast::sim {

class SimSlotIo final : public server::SlotIo {
 public:
  struct Deps {
    World* world = nullptr;
    const Pace* pace = nullptr;
    NodeId node = kNobody;
    Mutant mutant = Mutant::kNone;
  };
  // `slots` outlives it. `flushed` runs after every flush.
  SimSlotIo(const Deps& deps, server::SlotFile* slots, std::function<void()> flushed)
      : deps_(deps),
        life_(deps.world->Life(deps.node)),
        slots_(slots),
        flushed_(std::move(flushed)) {}

  void Read(uint32_t extent, void* to, Done done) override;
  void Write(server::ExtentImage image, Done done) override;
  void Flush(Done done) override;

  // Nothing is under way.
  bool idle() const { return under_way_ == 0; }

 private:
  void Later(Tick full, std::function<absl::Status()> work, Done done);
  absl::Status WriteNow(const server::ExtentImage& image);
  absl::Status FlushNow();

  const Deps deps_;
  const uint64_t life_;
  server::SlotFile* const slots_;
  const std::function<void()> flushed_;
  size_t under_way_ = 0;
};

}  // namespace ballast::sim
