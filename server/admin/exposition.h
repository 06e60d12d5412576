// The Prometheus text format of a MetricRegistry.
// Comes from: common/metrics. Goes to: /metrics. Thread safety: pure function.
#pragma once

#include <string>

#include "common/metrics/registry.h"

namespace ballast {

// Content type of the text below.
inline constexpr char kExpositionContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// All series of `registry` in Prometheus text format 0.0.4.
std::string RenderMetrics(const MetricRegistry& registry);

}  // namespace ballast
