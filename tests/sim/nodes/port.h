// SimPort: the port of one simulated server process: the shipped services, and the directory whose
// interfaces they go through. Comes from: SimServer. Goes to: TrainerStream, the services of
// trainers and peers. Thread safety: one thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/service/directory_holder.h"
#include "server/service/trainer_stream.h"
#include "server/stream/method_registry.h"
#include "tests/sim/net/server_stream.h"
#include "tests/sim/nodes/server.h"

namespace ballast::sim {

class SimUnary;

class SimPort final : public server::MethodRegistry {
 public:
  // Of the present process of `server`, which serves, and outlives this. `index`: of the server.
  SimPort(const Context& context, SimServer* server, uint32_t index);
  ~SimPort() override;

  void AddMethod(absl::string_view method, server::StreamFactory factory,
                 server::MethodType type = server::MethodType::kUnary) override;
  // A trainer's data stream has come in.
  void Open(const StreamPtr& stream);
  // A unary call has come in.
  void Call(const char* method, const Payload& request, UnaryDone answer);

 private:
  class Jobs;

  const Context context_;
  SimProcess* const process_;
  const NodeId node_;
  const std::unique_ptr<Executor> timers_;
  server::DirectoryHolder holder_;
  server::TrainerStreamDeps deps_;
  std::map<std::string, server::StreamFactory> methods_;
  std::vector<std::shared_ptr<SimStream>> streams_;  // some have ended
  std::vector<std::weak_ptr<SimUnary>> calls_;       // some have been answered
};

}  // namespace ballast::sim
