// Scraper makes the /metrics page, on one thread however many ask. A page takes some ten times its
// size while it is made, and malloc keeps that in the arena of the thread that made it: made on the
// threads of HTTP, it is kept in every arena there is, eight for each processor.
// Comes from: AdminServer. Goes to: RenderMetrics. Thread safety: thread-safe.
#pragma once

#include <string>

#include "common/base/thread_executor.h"
#include "common/metrics/registry.h"

namespace ballast {

class Scraper {
 public:
  // `registry` outlives it.
  explicit Scraper(const MetricRegistry* registry) : registry_(registry) {}

  // The page as it is now; waits for pages that others asked for before. No call is under way when
  // the Scraper ends.
  std::string Page();

 private:
  const MetricRegistry* const registry_;
  ThreadExecutor thread_{"admin-scraper", 1};
};

}  // namespace ballast
