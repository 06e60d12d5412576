// gRPC's metrics of one method: calls begun, calls ended by status code, and their durations, under
// the names and labels used by dashboards for gRPC servers.
// Comes from: GenericServer, one for each method it knows, and one for all others. Goes to:
// ServerMetrics. Thread safety: thread-safe; a call costs atomic additions. Only the first end of a
// method with a status code adds a series to the registry, which takes its lock.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "common/metrics/metrics.h"
#include "grpcpp/support/status.h"
#include "server/stream/method_registry.h"

namespace ballast::server {

// As the label grpc_code writes it: "OK", "PermissionDenied".
const char* CodeName(grpc::StatusCode code);

class CallMetrics {
 public:
  // `method` as in proto/convert/methods.h; "" stands for all methods that the server does not
  // know. `metrics` outlives this.
  CallMetrics(const std::string& method, MethodType type, ServerMetrics* metrics);
  CallMetrics(const CallMetrics&) = delete;
  CallMetrics& operator=(const CallMetrics&) = delete;

  void Begin() { started_->Add(); }
  // A call has ended with `code` as its client sees it.
  void End(grpc::StatusCode code, std::chrono::nanoseconds took);

 private:
  static constexpr size_t kCodes = 17;

  void Show(size_t code);

  MetricRegistry* const registry_;
  const MetricLabels labels_;
  const std::shared_ptr<Counter> started_ = std::make_shared<Counter>();
  const std::shared_ptr<Histogram> duration_;
  std::array<std::shared_ptr<Counter>, kCodes> handled_;
  std::array<std::atomic<bool>, kCodes> shown_{};  // the code's series is in the registry
};

// One call of a measured method.
class CallTimer {
 public:
  // `metrics`, which may be null and outlives the call, hear of its beginning now.
  void Begin(CallMetrics* metrics, std::chrono::nanoseconds now) {
    metrics_ = metrics;
    began_ = now;
    if (metrics_ != nullptr) metrics_->Begin();
  }
  void End(grpc::StatusCode code, std::chrono::nanoseconds now) const {
    if (metrics_ != nullptr) metrics_->End(code, now - began_);
  }

 private:
  CallMetrics* metrics_ = nullptr;
  std::chrono::nanoseconds began_{0};
};

}  // namespace ballast::server
