// Lines of the trace for messages of streams and of calls. Comes from: the network. Goes to:
// World::Trace. Thread safety: one thread.
#pragma once

#include "common/bytes/payload.h"
#include "tests/sim/world/world.h"

namespace ballast::sim {

struct Stream;

// `node`, the server or the trainer of `stream`, gets a message. Nothing when the world does not
// trace, or the message is of no interest.
void TraceUp(const World* world, NodeId node, const Stream& stream, const Payload& message);
void TraceDown(const World* world, NodeId node, const Stream& stream, const Payload& message);

}  // namespace ballast::sim
