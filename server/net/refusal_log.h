// RefusalLog: counts refused connections by reason, and says in the log that there are some: at
// once for the first, and then once a minute with their number. So a flood of strangers does not
// flood the log. Comes from: AcceptLoop. Goes to: the log, ballast_connections_refused_total.
// Thread safety: thread-compatible; the counters may be read by any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/metrics/registry.h"
#include "server/net/connection_gate.h"
#include "server/net/line_rate.h"

namespace ballast::server {

class RefusalLog {
 public:
  // `registry`, which may be null, has a series for each reason from now on.
  // `port`: owner of the connections, for the log; empty: gRPC.
  explicit RefusalLog(MetricRegistry* registry, std::string port = "");

  void Count(ConnectionRefusal refusal, const std::string& address, std::chrono::nanoseconds now);
  uint64_t counted(ConnectionRefusal refusal) const { return Of(refusal).counter->value(); }
  uint64_t lines() const { return lines_; }

 private:
  struct Reason {
    std::shared_ptr<Counter> counter = std::make_shared<Counter>();
    LineRate rate;
  };

  const Reason& Of(ConnectionRefusal refusal) const {
    return reasons_[static_cast<size_t>(refusal)];
  }

  const std::string port_;
  std::array<Reason, kRefusalCount> reasons_;
  uint64_t lines_ = 0;
};

}  // namespace ballast::server
