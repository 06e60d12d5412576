#include "tests/sim/nodes/port.h"

#include <utility>
#include <vector>

#include "proto/convert/channel.h"
#include "proto/convert/methods.h"
#include "server/service/control_service.h"
#include "server/service/peer_service.h"
#include "tests/sim/net/server_unary.h"
#include "tests/sim/nodes/stream_watch.h"

namespace ballast::sim {

SimPort::SimPort(const Context& context, SimProcess* process, uint32_t index)
    : context_(context),
      process_(process),
      node_(process->node()),
      timers_(process->MakeExecutor("grpc")) {
  const Shape& shape = context.swarm->shape;
  deps_.directory = process->directory();
  deps_.executor = timers_.get();
  deps_.clock = process->clock();
  deps_.config.chunk_bytes = shape.chunk_bytes;
  deps_.config.credit_bytes = shape.credit_bytes;
  deps_.config.max_frame_bytes = kMaxMessageBytes;
  deps_.config.max_control_bytes = kMaxMessageBytes;
  AddMethod(method::kExchange, server::TrainerStream::Factory(&deps_));
  server::AddControlMethods(this, process->directory(), {shape.chunk_bytes, shape.credit_bytes},
                            [] { return server::ServerFacts(); });
  server::AddPeerMethods(this, process->directory(),
                         {.id = context.plan->servers[index], .incarnation = process_->life()});
}

SimPort::~SimPort() {
  for (const auto& stream : streams_) stream->Drop();
  for (const std::weak_ptr<SimUnary>& weak : calls_) {
    if (const auto call = weak.lock()) call->Drop();
  }
}

void SimPort::AddMethod(absl::string_view method, server::StreamFactory factory,
                        server::MethodType) {
  methods_[std::string(method)] = std::move(factory);
}

void SimPort::Open(const StreamPtr& stream) {
  std::erase_if(streams_, [](const auto& old) { return old->over(); });
  SimStream::Sees sees;
  if (stream->timeout == 0) {
    const auto watch = std::make_shared<StreamWatch>(context_.world, process_);
    sees.up = [watch](const Payload& message) { watch->OnUp(message); };
    sees.down = [watch](const Outgoing& message) { watch->OnDown(message); };
  }
  streams_.push_back(
      std::make_shared<SimStream>(context_.world, context_.network, stream, std::move(sees)));
  streams_.back()->Begin(methods_.at(stream->method));
}

void SimPort::Call(const char* method, const Payload& request, UnaryDone answer) {
  std::erase_if(calls_, [](const std::weak_ptr<SimUnary>& weak) { return weak.expired(); });
  const auto call = std::make_shared<SimUnary>(context_.world, node_, method, std::move(answer));
  calls_.push_back(call);
  call->Begin(methods_.at(method), request);
}

}  // namespace ballast::sim
