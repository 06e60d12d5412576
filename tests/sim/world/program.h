// SimProgram: one thread of a trainer's program, for shipped code that blocks its caller. It runs
// on a fiber and pauses while it waits, until an event wakes it or time has passed. Comes from:
// SimMeeting. Goes to: the world. Thread safety: one thread.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "tests/sim/world/fiber.h"
#include "tests/sim/world/world.h"

namespace ballast::sim {

class SimProgram {
 public:
  // A thread of the present process of `node`; `body` begins soon.
  SimProgram(World* world, NodeId node, std::function<void()> body);
  ~SimProgram() { End(); }

  // The process has ended: every wait fails at once, and the body runs to its end.
  void End();
  // Ends the body's present wait, soon.
  void Wake() { world_->After(0, node_, EventKind::kTimer, Ends(waits_)); }

  // In the body: waits for Wake, or until `at_most` has passed on the machine's clock. False: the
  // process has ended.
  bool Wait();
  bool WaitFor(Tick at_most);

 private:
  // Ends the wait of this number, if the body is in it.
  std::function<void()> Ends(uint64_t wait);

  World* const world_;
  const NodeId node_;
  const std::shared_ptr<Fiber> fiber_;
  uint64_t waits_ = 0;
  bool ended_ = false;
};

}  // namespace ballast::sim
