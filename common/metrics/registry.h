// Counters, gauges and histograms, and the registry through which a scrape finds them.
// Comes from: metrics.h and rooms with metrics of their own. Goes to: server/admin, which
// writes the exposition format; nothing here knows Prometheus.
// Thread safety: everything here may be used from any thread. Updates are relaxed atomics, so a
// scrape sees each value whole but may see two values of different instants.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/base/sync.h"

namespace ballast {

// Counts up. A cache line of its own, because several threads add to it while they stream.
class alignas(64) Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// A value that goes up and down.
class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double delta) { value_.fetch_add(delta, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0.0};
};

// Counts observations by size.
class Histogram {
 public:
  struct Reading {
    std::vector<uint64_t> cumulative;  // Per bound: observations <= bound.
    uint64_t count = 0;                // All observations.
    double sum = 0.0;
  };

  // `bounds`: upper bounds of the buckets, ascending; a last one for everything is implied.
  explicit Histogram(std::vector<double> bounds);

  void Observe(double value);
  Reading Read() const;
  const std::vector<double>& bounds() const { return bounds_; }

 private:
  const std::vector<double> bounds_;
  const std::unique_ptr<std::atomic<uint64_t>[]> buckets_;  // bounds_.size() + 1 of them.
  std::atomic<double> sum_{0.0};
};

enum class MetricKind { kCounter, kGauge, kHistogram };

// Label names and values of one series, for example {{"run", "gpt"}, {"result", "committed"}}.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// One series and one family as a scrape sees them.
struct MetricSample {
  MetricLabels labels;
  double value = 0.0;            // Of a counter or gauge.
  Histogram::Reading histogram;  // Of a histogram, with its bounds.
  std::vector<double> bounds;
};
struct MetricFamily {
  std::string name;
  std::string help;
  MetricKind kind = MetricKind::kCounter;
  std::vector<MetricSample> samples;
};

// Families by name, each with its series. Names, labels and kinds are ours, so mistakes in them
// end the process. Values live with the code that updates them; the registry shares their ownership
// and no lookup stands between a thread and its counter.
class MetricRegistry {
 public:
  MetricRegistry() = default;
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // Declares a family, once. `name` is [a-z][a-z0-9_]*, counters end in _total; `help` is one
  // sentence.
  void Declare(absl::string_view name, MetricKind kind, absl::string_view help);

  // Adds a series to a declared family of that kind, with labels that no series of the family has.
  void Add(absl::string_view family, MetricLabels labels, std::shared_ptr<const Counter> series);
  void Add(absl::string_view family, MetricLabels labels, std::shared_ptr<const Gauge> series);
  void Add(absl::string_view family, MetricLabels labels, std::shared_ptr<const Histogram> series);
  // A counter or gauge read by calling `read` at each scrape, from the scraping thread. No lock is
  // held then; a read may outlast the series' removal. `read` asks no disk or peer: threads that
  // also answer /healthz wait for the page.
  void AddCallback(absl::string_view family, MetricLabels labels, std::function<double()> read);

  // Removes every series, of any family, that carries all of these labels. Handles stay usable;
  // their values are not shown any more.
  void RemoveSeries(const MetricLabels& labels);

  // All families with series, sorted by name, with series in order of addition.
  std::vector<MetricFamily> Collect() const;

 private:
  struct Series {
    MetricLabels labels;
    std::function<void(MetricSample*)> read;  // Owns the value.
  };
  struct Family {
    MetricKind kind;
    std::string help;
    std::vector<Series> series;
  };

  void AddSeries(absl::string_view family, MetricKind kind, Series series);
  void AddSeriesLocked(Family* family, Series series) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  std::map<std::string, Family> families_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast
