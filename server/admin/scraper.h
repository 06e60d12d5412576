// Scraper makes the /metrics page, on one thread for all callers. A page takes some ten times its
// size while it is made, and malloc keeps that in the arena of the thread that made it: made on the
// threads of HTTP, it is kept in every arena there is, eight for each processor.
// Comes from: AdminServer. Goes to: RenderMetrics. Thread safety: thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/metrics/registry.h"
#include "common/threads/thread_executor.h"

namespace ballast {

class Scraper {
 public:
  // `registry` outlives it.
  explicit Scraper(const MetricRegistry* registry) : registry_(registry) {}

  // A page begun after this call. The calls that come while a page is made get the next
  // one together, so each waits for two pages at most. No call is under way when the Scraper ends.
  std::shared_ptr<const std::string> Page();
  // How many calls of Page wait for theirs.
  int waiting();

 private:
  // Empty until it is made. The calls that wait for it and then use it own it.
  struct ScrapeRequest {
    std::shared_ptr<const std::string> page;
  };

  void Make();

  const MetricRegistry* const registry_;
  Mutex mu_;
  CondVar made_;
  std::shared_ptr<ScrapeRequest> next_
      ABSL_GUARDED_BY(mu_);  // Not begun; null while no call waits for it.
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  ThreadExecutor thread_{"admin-scraper", 1};  // Last: its tasks use the others.
};

}  // namespace ballast
