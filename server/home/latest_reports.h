// LatestReports: the latest activity report of each trainer, until the directory's strand reads it.
// Trainers may report faster than the strand reads, so an unread report is replaced by a newer one
// of the same process.
// Comes from: HomeJobs, on any thread. Goes to: HomeJobs, on the strand. Thread safety:
// thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "server/jobs/trainer_calls.h"

namespace ballast::server {

class LatestReports {
 public:
  // True when there was none: then they have to be taken.
  bool Put(DoingReport report) {
    MutexLock lock(&mu_);
    const bool was_empty = reports_.empty();
    const Key key{report.job, report.rank.slot, report.rank.incarnation};
    reports_.insert_or_assign(key, std::move(report));
    return was_empty;
  }

  // One per process; none is left.
  std::vector<DoingReport> Take() {
    std::map<Key, DoingReport> taken;
    {
      MutexLock lock(&mu_);
      taken.swap(reports_);
    }
    std::vector<DoingReport> reports;
    for (auto& [key, report] : taken) reports.push_back(std::move(report));
    return reports;
  }

 private:
  using Key = std::tuple<uint64_t, uint32_t, uint64_t>;  // job, slot, incarnation

  Mutex mu_;
  std::map<Key, DoingReport> reports_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
