#include "server/net/refusal_log.h"

#include <utility>

#include "common/base/log.h"

namespace ballast::server {

RefusalLog::RefusalLog(MetricRegistry* registry, std::string port) : port_(std::move(port)) {
  if (registry == nullptr) return;
  for (size_t i = 0; i < kRefusalCount; ++i) {
    const absl::string_view name = ConnectionRefusalName(static_cast<ConnectionRefusal>(i));
    registry->Add("ballast_connections_refused_total",
                  {{"reason", std::string(name.data(), name.size())}},
                  std::shared_ptr<const Counter>(reasons_[i].counter));
  }
}

void RefusalLog::Count(ConnectionRefusal refusal, const std::string& address,
                       std::chrono::nanoseconds now) {
  Reason& reason = reasons_[static_cast<size_t>(refusal)];
  reason.counter->Add();
  // A probe of a load balancer, or of this server itself, connects and leaves.
  if (refusal == ConnectionRefusal::kLeft) return;
  const uint64_t unsaid = reason.rate.Due(reason.counter->value(), now);
  if (unsaid == 0) return;
  BALLAST_LOG(WARN, LogField("reason", ConnectionRefusalName(refusal)),
              LogField("address", address), LogField("connections", unsaid))
      << (refusal < ConnectionRefusal::kHeaders ? "closed connections before they were served"
                                                : "closed connections that sent too much")
      << (port_.empty() ? "" : " by the ") << port_;
  ++lines_;
}

}  // namespace ballast::server
