// Lines of the trace for messages of streams. Comes from: the network. Goes to: World::Trace.
// Thread safety: one thread.
#pragma once

#include <cstdint>

#include "common/bytes/payload.h"
#include "tests/sim/world/world.h"

namespace ballast::sim {

// `node` gets a message of the trainer process `from`, or of the server with index `from`. Nothing
// when the world does not trace, or the message is of no interest.
void TraceUp(const World* world, NodeId node, uint32_t from, const Payload& message);
void TraceDown(const World* world, NodeId node, uint32_t from, const Payload& message);

}  // namespace ballast::sim
