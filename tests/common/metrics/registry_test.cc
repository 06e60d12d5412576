// Tests of common/metrics/registry.h.
#include "common/metrics/registry.h"

#include <gtest/gtest.h>

#include <thread>

namespace ballast {
namespace {

TEST(CounterTest, AddsUpFromManyThreads) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) counter.Add(2);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 8000u);
}

TEST(GaugeTest, GoesUpAndDown) {
  Gauge gauge;
  gauge.Set(2.5);
  gauge.Add(-4.0);
  EXPECT_EQ(gauge.value(), -1.5);
}

TEST(HistogramTest, ABoundBelongsToItsBucket) {
  Histogram histogram({1.0, 10.0});
  for (double value : {0.5, 1.0, 1.5, 10.0, 11.0}) histogram.Observe(value);
  const Histogram::Reading reading = histogram.Read();
  EXPECT_EQ(reading.cumulative, (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ(reading.count, 5u);
  EXPECT_EQ(reading.sum, 24.0);
}

TEST(MetricRegistryTest, CollectsFamiliesByNameWithCurrentValues) {
  MetricRegistry registry;
  registry.Declare("b_bytes", MetricKind::kGauge, "Bytes.");
  registry.Declare("a_total", MetricKind::kCounter, "Count.");
  registry.Declare("empty_total", MetricKind::kCounter, "Has no series and is left out.");
  const auto counter = std::make_shared<Counter>();
  registry.Add("a_total", {{"op", "x"}}, counter);
  registry.AddCallback("b_bytes", {}, [] { return 7.0; });
  counter->Add(3);
  const std::vector<MetricFamily> families = registry.Collect();
  ASSERT_EQ(families.size(), 2u);
  EXPECT_EQ(families[0].name, "a_total");
  EXPECT_EQ(families[0].help, "Count.");
  EXPECT_EQ(families[0].samples[0].labels, (MetricLabels{{"op", "x"}}));
  EXPECT_EQ(families[0].samples[0].value, 3.0);
  EXPECT_EQ(families[1].samples[0].value, 7.0);
}

TEST(MetricRegistryTest, RemovesTheSeriesThatCarryALabel) {
  MetricRegistry registry;
  registry.Declare("a_total", MetricKind::kCounter, "Count.");
  auto gone = std::make_shared<Counter>();
  const std::weak_ptr<Counter> watch = gone;
  registry.Add("a_total", {{"run", "one"}, {"op", "x"}}, std::move(gone));
  registry.Add("a_total", {{"run", "two"}, {"op", "x"}}, std::make_shared<Counter>());
  registry.Add("a_total", {{"op", "one"}}, std::make_shared<Counter>());
  registry.RemoveSeries({{"run", "one"}});
  EXPECT_EQ(registry.Collect()[0].samples.size(), 2u);
  EXPECT_TRUE(watch.expired());
}

TEST(MetricRegistryDeathTest, OurOwnMistakesEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  MetricRegistry registry;
  registry.Declare("a_total", MetricKind::kCounter, "Count.");
  registry.Add("a_total", {}, std::make_shared<Counter>());
  EXPECT_DEATH(registry.Declare("a_total", MetricKind::kCounter, "Again."), "added");
  EXPECT_DEATH(registry.Declare("a_count", MetricKind::kCounter, "No suffix."), "_total");
  EXPECT_DEATH(registry.Declare("Upper", MetricKind::kGauge, "Bad name."), "IsMetricName");
  EXPECT_DEATH(registry.Add("a_total", {}, std::make_shared<Counter>()), "labels");
  EXPECT_DEATH(registry.Add("a_total", {}, std::make_shared<Gauge>()), "kind");
  EXPECT_DEATH(registry.Add("b_total", {}, std::make_shared<Counter>()), "found");
}

// A disk that hangs must hold up its scrape only: here a read waits for a thread that adds a
// series.
TEST(MetricRegistryTest, NoLockIsHeldWhileAValueIsRead) {
  MetricRegistry registry;
  registry.Declare("a_bytes", MetricKind::kGauge, "Bytes.");
  registry.Declare("b_total", MetricKind::kCounter, "Count.");
  registry.AddCallback("a_bytes", {}, [&registry] {
    std::thread([&registry] { registry.Add("b_total", {}, std::make_shared<Counter>()); }).join();
    return 3.0;
  });
  EXPECT_EQ(registry.Collect().at(0).samples.at(0).value, 3.0);
}

}  // namespace
}  // namespace ballast
