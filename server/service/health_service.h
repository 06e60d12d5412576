// grpc.health.v1.Health on the port of the trainers: Check answers at once, Watch answers and then
// reports each change. NOT_SERVING while the server waits for its peers, replays its log, or ends.
// Comes from: server.cc, which knows when jobs are served. Goes to: clients that check health, and
// their load balancers. Thread safety: Health is thread-safe.
// Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "ballast/v1/health.pb.h"
#include "common/base/sync.h"
#include "server/stream/method_registry.h"

namespace ballast::server {

// One open Watch.
class HealthWatch;

class Health {
 public:
  using Status = v1::HealthCheckResponse::ServingStatus;

  Health() = default;
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  // Jobs are served from now on; without effect after End.
  void Serve();
  // The server ends: NOT_SERVING, and then every Watch ends with UNAVAILABLE.
  void End();
  bool ended() const;

  // Of a service of this port, or of all for "". SERVICE_UNKNOWN for any other name.
  Status Of(const std::string& service) const;

 private:
  friend class HealthWatch;
  enum class Phase { kStarting, kServing, kEnded };

  void Add(const std::shared_ptr<HealthWatch>& watch);
  void Change(Phase phase);

  mutable Mutex mu_;
  Phase phase_ ABSL_GUARDED_BY(mu_) = Phase::kStarting;
  std::vector<std::weak_ptr<HealthWatch>> watches_ ABSL_GUARDED_BY(mu_);
};

// Adds Check and Watch to `server`. `health` outlives the server's calls.
void AddHealthMethods(MethodRegistry* server, Health* health);

}  // namespace ballast::server
