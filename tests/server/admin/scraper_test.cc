// Tests of server/admin/scraper.h: calls that come while a page is made share the next one.
#include "server/admin/scraper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "common/metrics/registry.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

TEST(Scraper, ManyCallsAtOnceGetTheNextPageTogether) {
  constexpr int kCalls = 32;
  MetricRegistry registry;
  Scraper scraper(&registry);
  std::atomic<int> pages{0};
  registry.Declare("pages", MetricKind::kGauge, "How many pages have been begun.");
  registry.AddCallback("pages", {}, [&] {
    const int page = ++pages;
    // The first page is not made before all have asked.
    while (page == 1 && scraper.waiting() < kCalls) std::this_thread::yield();
    return static_cast<double>(page);
  });
  std::string first;
  std::thread first_caller([&] { first = *scraper.Page(); });
  while (pages == 0) std::this_thread::yield();
  std::vector<std::string> others(kCalls - 1);
  std::vector<std::thread> callers;
  for (std::string& page : others) callers.emplace_back([&] { page = *scraper.Page(); });
  for (std::thread& caller : callers) caller.join();
  first_caller.join();
  EXPECT_THAT(first, HasSubstr("pages 1\n"));
  // Their values are not older than their calls.
  for (const std::string& page : others) EXPECT_THAT(page, HasSubstr("pages 2\n"));
  EXPECT_EQ(pages, 2);
  EXPECT_EQ(scraper.waiting(), 0);
}

}  // namespace
}  // namespace ballast
