// SimHomeSearch: the thread of one trainer process that searches for the job's home and asks for a
// seat there, over the shipped AttachToHome. It knows all servers, in an order of its own. Comes
// from: SimTrainer. Goes to: AttachToHome over a SimTransport. Thread safety: one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/control.pb.h"
#include "client/cpp/attach/home_search.h"
#include "tests/sim/net/transport.h"
#include "tests/sim/nodes/context.h"
#include "tests/sim/world/program.h"
#include "tests/sim/world/random.h"

namespace ballast::sim {

class SimHomeSearch {
 public:
  using Done = std::function<void(const absl::StatusOr<v1::AttachReply>& answer)>;

  // Of the trainer process `process`, over its `transport`, which outlives this. `options` need no
  // endpoints. `done` runs once, in an event of its own, unless the process has ended before.
  SimHomeSearch(const Context& context, uint32_t process, SimTransport* transport,
                client::JobOptions options, const v1::AttachRequest& request, Done done);

  // The process has ended.
  void End() { program_.End(); }

 private:
  class Connection;

  client::HomeSearchDeps Deps();
  // Both fail at once when the process has ended.
  bool WaitFor(Tick time);
  absl::Status Call(const client::CallTarget& target, const google::protobuf::MessageLite& request,
                    const std::function<absl::Status()>& poll,
                    google::protobuf::MessageLite* reply);
  // A call of `method` has ended so.
  void OnEnded(const std::string& method, const absl::Status& status) const;
  // The thread.
  void Run(const v1::AttachRequest& request);

  const Context context_;
  const NodeId node_;
  SimTransport* const transport_;
  client::JobOptions options_;
  const Done done_;
  bool ended_ = false;
  SimProgram program_;
};

}  // namespace ballast::sim
