#include "server/rpc/call_metrics.h"

#include <iterator>
#include <utility>

namespace ballast::server {
namespace {

// As the label grpc_code writes them, by number.
constexpr const char* kCodeNames[] = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

const char* TypeName(MethodType type) {
  switch (type) {
    case MethodType::kUnary:
      return "unary";
    case MethodType::kServerStream:
      return "server_stream";
    case MethodType::kBidiStream:
      return "bidi_stream";
  }
  return "unknown";
}

// "/ballast.v1.Data/Exchange" is the service ballast.v1.Data and the method Exchange.
MetricLabels LabelsOf(const std::string& method, MethodType type) {
  const size_t slash = method.rfind('/');
  if (slash == std::string::npos || slash == 0) {
    return {{"grpc_type", "unknown"}, {"grpc_service", "unknown"}, {"grpc_method", "unknown"}};
  }
  return {{"grpc_type", TypeName(type)},
          {"grpc_service", method.substr(1, slash - 1)},
          {"grpc_method", method.substr(slash + 1)}};
}

// An answer out of memory takes a millisecond; a trainer's stream lasts for days.
std::vector<double> HandlingBoundsSeconds() {
  return {0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60, 600, 3600, 86400};
}

}  // namespace

const char* CodeName(grpc::StatusCode code) {
  const auto index = static_cast<size_t>(code);
  return index < std::size(kCodeNames) ? kCodeNames[index] : "Unknown";
}

CallMetrics::CallMetrics(const std::string& method, MethodType type, ServerMetrics* metrics)
    : registry_(&metrics->registry()),
      labels_(LabelsOf(method, type)),
      duration_(std::make_shared<Histogram>(HandlingBoundsSeconds())) {
  for (std::shared_ptr<Counter>& counter : handled_) counter = std::make_shared<Counter>();
  registry_->Add("grpc_server_started_total", labels_, started_);
  registry_->Add("grpc_server_handling_seconds", labels_, duration_);
  Show(grpc::StatusCode::OK);
}

void CallMetrics::End(grpc::StatusCode code, std::chrono::nanoseconds took) {
  size_t index = static_cast<size_t>(code);
  if (index >= kCodes) index = grpc::StatusCode::UNKNOWN;
  handled_[index]->Add();
  duration_->Observe(std::chrono::duration<double>(took).count());
  if (!shown_[index].load(std::memory_order_relaxed)) Show(index);
}

void CallMetrics::Show(size_t code) {
  if (shown_[code].exchange(true)) return;
  MetricLabels labels = labels_;
  labels.emplace_back("grpc_code", kCodeNames[code]);
  registry_->Add("grpc_server_handled_total", std::move(labels), handled_[code]);
}

}  // namespace ballast::server
