#include "server/quota/job_share.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast::server {

size_t HalfOfJobs(uint32_t jobs_max) { return std::max<size_t>(jobs_max / 2, 1); }

JobRoom RoomForJob(const JobCounts& counts, const std::string& tenant, uint32_t jobs_max,
                   bool halves) {
  size_t all = 0;
  for (const auto& [name, jobs] : counts) all += jobs;
  const auto own = counts.find(tenant);
  const size_t has = own == counts.end() ? 0 : own->second;
  if (halves && has >= HalfOfJobs(jobs_max)) return JobRoom::kShareFull;
  return all >= jobs_max ? JobRoom::kFull : JobRoom::kFree;
}

std::string CountsText(const JobCounts& counts) {
  std::vector<std::pair<std::string, size_t>> rows(counts.begin(), counts.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return absl::StrJoin(rows, ", ", [](std::string* out, const auto& row) {
    absl::StrAppend(out, row.first, " ", row.second);
  });
}

}  // namespace ballast::server
