#include "tests/sim/net/server_unary.h"

#include <utility>

#include "tests/sim/net/server_stream.h"

namespace ballast::sim {

SimUnary::SimUnary(World* world, NodeId node, std::string method, UnaryDone answer)
    : world_(world), node_(node), life_(world->Life(node)), answer_(std::move(answer)) {
  facts_.method = std::move(method);
  facts_.peer = "node";
  facts_.directory_names = NoDirectoryNames();
}

void SimUnary::Begin(const server::StreamFactory& factory, const Payload& request) {
  handler_ = factory(shared_from_this());
  const std::shared_ptr<server::StreamHandler> handler = handler_;
  if (reading_) handler->OnMessage(request);
}

void SimUnary::Finish(const absl::Status& status) {
  if (final_status_.has_value()) return;
  final_status_ = status;
  world_->AfterInLife(0, node_, life_, EventKind::kStrand,
                      [self = shared_from_this()] { self->End(); });
}

void SimUnary::Drop() {
  const std::shared_ptr<server::StreamHandler> handler = std::move(handler_);
  if (handler != nullptr) handler->OnDone(/*cancelled=*/true);
}

void SimUnary::End() {
  const std::shared_ptr<server::StreamHandler> handler = std::move(handler_);
  const std::optional<Outgoing> message = handler->NextMessage();
  if (!final_status_->ok()) {
    answer_(OverTheWire(*final_status_));
  } else if (message.has_value()) {
    answer_(Payload::FromString(message->head + message->body.ToString()));
  }
  handler->OnDone(/*cancelled=*/false);
}

}  // namespace ballast::sim
