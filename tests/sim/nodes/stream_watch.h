// StreamWatch: looks at the messages of one trainer's stream at its server: what must never be
// sent, and situations that are counted. Comes from: SimPort. Goes to: the world. Thread safety:
// one thread.
#pragma once

#include "ballast/v1/data.pb.h"
#include "common/bytes/outgoing.h"
#include "tests/sim/nodes/context.h"
#include "tests/sim/nodes/process.h"

namespace ballast::sim {

class StreamWatch {
 public:
  // `process` outlives it.
  StreamWatch(World* world, SimProcess* process) : world_(world), process_(process) {}

  void OnUp(const Payload& message);
  void OnDown(const Outgoing& message);

 private:
  void OnControl(const v1::ServerMessage& message);
  void OnWelcome(const v1::Welcome& welcome);
  void OnResult(const RoundResult& result) const;
  void OnRefused(Reason reason) const;

  World* const world_;
  SimProcess* const process_;
  bool said_hello_ = false;
  v1::Hello hello_;
  uint64_t welcome_round_ = 0;
};

}  // namespace ballast::sim
