// The metric types and the registry; see registry.h.
// Thread safety: families and series are under the registry's mutex, values are atomics.
#include "common/metrics/registry.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/base/check.h"

namespace ballast {
namespace {

bool IsMetricName(absl::string_view name) {
  if (name.empty() || !absl::ascii_islower(static_cast<unsigned char>(name[0]))) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '_';
  });
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), buckets_(new std::atomic<uint64_t>[bounds_.size() + 1]()) {
  BALLAST_CHECK(std::is_sorted(bounds_.begin(), bounds_.end()));
}

void Histogram::Observe(double value) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  const size_t bucket = static_cast<size_t>(bound - bounds_.begin());
  buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

Histogram::Reading Histogram::Read() const {
  Reading reading;
  reading.cumulative.reserve(bounds_.size());
  for (size_t i = 0; i < bounds_.size(); ++i) {
    reading.count += buckets_[i].load(std::memory_order_relaxed);
    reading.cumulative.push_back(reading.count);
  }
  reading.count += buckets_[bounds_.size()].load(std::memory_order_relaxed);
  reading.sum = sum_.load(std::memory_order_relaxed);
  return reading;
}

void MetricRegistry::Declare(absl::string_view name, MetricKind kind, absl::string_view help) {
  BALLAST_CHECK(IsMetricName(name));
  BALLAST_CHECK(!help.empty());
  BALLAST_CHECK((kind == MetricKind::kCounter) == absl::EndsWith(name, "_total"));
  MutexLock lock(&mu_);
  const bool added = families_.emplace(name, Family{kind, std::string(help), {}}).second;
  BALLAST_CHECK(added);
}

void MetricRegistry::AddSeries(absl::string_view family, MetricKind kind, Series series) {
  for (const auto& label : series.labels) BALLAST_CHECK(IsMetricName(label.first));
  MutexLock lock(&mu_);
  const auto found = families_.find(std::string(family));
  BALLAST_CHECK(found != families_.end() && found->second.kind == kind);
  AddSeriesLocked(&found->second, std::move(series));
}

void MetricRegistry::AddSeriesLocked(Family* family, Series series) {
  for (const Series& other : family->series) BALLAST_CHECK(other.labels != series.labels);
  family->series.push_back(std::move(series));
}

void MetricRegistry::Add(absl::string_view family, MetricLabels labels,
                         std::shared_ptr<const Counter> series) {
  AddSeries(family, MetricKind::kCounter,
            Series{std::move(labels), [series = std::move(series)](MetricSample* sample) {
                     sample->value = static_cast<double>(series->value());
                   }});
}

void MetricRegistry::Add(absl::string_view family, MetricLabels labels,
                         std::shared_ptr<const Gauge> series) {
  AddSeries(family, MetricKind::kGauge,
            Series{std::move(labels), [series = std::move(series)](MetricSample* sample) {
                     sample->value = series->value();
                   }});
}

void MetricRegistry::Add(absl::string_view family, MetricLabels labels,
                         std::shared_ptr<const Histogram> series) {
  AddSeries(family, MetricKind::kHistogram,
            Series{std::move(labels), [series = std::move(series)](MetricSample* sample) {
                     sample->histogram = series->Read();
                     sample->bounds = series->bounds();
                   }});
}

void MetricRegistry::AddCallback(absl::string_view family, MetricLabels labels,
                                 std::function<double()> read) {
  MutexLock lock(&mu_);
  const auto found = families_.find(std::string(family));
  BALLAST_CHECK(found != families_.end() && found->second.kind != MetricKind::kHistogram);
  AddSeriesLocked(&found->second,
                  Series{std::move(labels), [read = std::move(read)](MetricSample* sample) {
                           sample->value = read();
                         }});
}

void MetricRegistry::RemoveSeries(const MetricLabels& labels) {
  MutexLock lock(&mu_);
  for (auto& [name, family] : families_) {
    std::erase_if(family.series, [&](const Series& series) {
      return std::all_of(labels.begin(), labels.end(), [&](const auto& carried) {
        const MetricLabels& own = series.labels;
        return std::find(own.begin(), own.end(), carried) != own.end();
      });
    });
  }
}

std::vector<MetricFamily> MetricRegistry::Collect() const {
  std::vector<MetricFamily> collected;
  std::vector<std::function<void(MetricSample*)>> reads;  // in the order of the samples
  {
    MutexLock lock(&mu_);
    for (const auto& [name, family] : families_) {
      if (family.series.empty()) continue;
      MetricFamily& out = collected.emplace_back(MetricFamily{name, family.help, family.kind, {}});
      for (const Series& series : family.series) {
        out.samples.emplace_back().labels = series.labels;
        reads.push_back(series.read);
      }
    }
  }
  auto read = reads.begin();
  for (MetricFamily& family : collected) {
    for (MetricSample& sample : family.samples) (*read++)(&sample);
  }
  return collected;
}

}  // namespace ballast
