// Turns collected families into prometheus-cpp's structs and lets it write them: it owns the
// format's escaping and number rules. The only file that includes prometheus-cpp.
// Thread safety: pure function.
#include "server/admin/exposition.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace ballast {
namespace {

prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricKind::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::ClientMetric Convert(MetricKind kind, const MetricSample& sample) {
  prometheus::ClientMetric out;
  for (const auto& [name, value] : sample.labels) out.label.push_back({name, value});
  if (kind == MetricKind::kCounter) out.counter.value = sample.value;
  if (kind == MetricKind::kGauge) out.gauge.value = sample.value;
  if (kind == MetricKind::kHistogram) {
    out.histogram.sample_count = sample.histogram.count;
    out.histogram.sample_sum = sample.histogram.sum;
    for (size_t i = 0; i < sample.bounds.size(); ++i) {
      out.histogram.bucket.push_back({sample.histogram.cumulative[i], sample.bounds[i]});
    }
    out.histogram.bucket.push_back(
        {sample.histogram.count, std::numeric_limits<double>::infinity()});
  }
  return out;
}

}  // namespace

std::string RenderMetrics(const MetricRegistry& registry) {
  std::ostringstream text;
  std::vector<MetricFamily> collected = registry.Collect();
  // One family at a time, so that only one exists in both forms.
  for (MetricFamily& next : collected) {
    const MetricFamily family = std::move(next);
    std::vector<prometheus::MetricFamily> one(1);
    one[0].name = family.name;
    one[0].help = family.help;
    one[0].type = TypeOf(family.kind);
    for (const MetricSample& sample : family.samples) {
      one[0].metric.push_back(Convert(family.kind, sample));
    }
    prometheus::TextSerializer().Serialize(text, one);
  }
  return std::move(text).str();
}

}  // namespace ballast
