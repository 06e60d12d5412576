// SimPort: the port of one simulated server process: the shipped services over the simulated
// network. Comes from: SimServer. Goes to: TrainerStream, the services of trainers and peers.
// Thread safety: one thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/service/trainer_stream.h"
#include "server/stream/method_registry.h"
#include "tests/sim/net/server_stream.h"
#include "tests/sim/nodes/process.h"

namespace ballast::sim {

class SimUnary;

class SimPort final : public server::MethodRegistry {
 public:
  // Of `process`, which outlives this, of the server `index`.
  SimPort(const Context& context, SimProcess* process, uint32_t index);
  ~SimPort() override;

  void AddMethod(absl::string_view method, server::StreamFactory factory,
                 server::MethodType type = server::MethodType::kUnary) override;
  // A trainer's data stream or unary call has come in.
  void Open(const StreamPtr& stream);
  // A unary call of another server has come in.
  void Call(const char* method, const Payload& request, UnaryDone answer);

 private:
  const Context context_;
  SimProcess* const process_;
  const NodeId node_;
  const std::unique_ptr<Executor> timers_;
  server::TrainerStreamDeps deps_;
  std::map<std::string, server::StreamFactory> methods_;
  std::vector<std::shared_ptr<SimStream>> streams_;  // some have ended
  std::vector<std::weak_ptr<SimUnary>> calls_;       // some have been answered
};

}  // namespace ballast::sim
