// SimUnary: a server's end of one unary call of another server, as a MessageStream: one request,
// and at most one message back. Servers do not hang up; a trainer's call is a SimStream. Comes
// from: SimPort. Goes to: the shipped UnaryCall and its handlers. Thread safety: one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/stream/method_registry.h"
#include "tests/sim/net/network.h"

namespace ballast::sim {

class SimUnary final : public server::MessageStream, public std::enable_shared_from_this<SimUnary> {
 public:
  // At the present process of `node`. `answer` gets the message, or the error.
  SimUnary(World* world, NodeId node, std::string method, UnaryDone answer);

  // Makes its handler, which reads the request at once.
  void Begin(const server::StreamFactory& factory, const Payload& request);
  void Read() override { reading_ = true; }
  // The answer goes out with the status.
  void Kick() override {}
  void Finish(const absl::Status& status) override;
  // The process has ended: lets go of the handler, which holds this.
  void Drop();
  void Cancel() override { Finish(absl::CancelledError("the server broke the call off")); }

 private:
  void End();

  World* const world_;
  const NodeId node_;
  const uint64_t life_;
  UnaryDone answer_;
  std::shared_ptr<server::StreamHandler> handler_;
  bool reading_ = false;
  std::optional<absl::Status> final_status_;
};

}  // namespace ballast::sim
