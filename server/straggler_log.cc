#include "server/straggler_log.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast::server {
namespace {

std::string WhoOwes(const JobStatus& job) {
  std::vector<std::string> parts;
  for (const SlotStatus& slot : job.slots) {
    if (slot.state == "done" || slot.state == "left") continue;
    parts.push_back(slot.owed_extents == 0
                        ? absl::StrCat("slot ", slot.slot, " has not begun (", slot.state, ")")
                        : absl::StrCat("slot ", slot.slot, " owes ", slot.owed_extents,
                                       " extents, first extent ", slot.first_owed));
  }
  for (const uint32_t server : job.votes_missing) {
    parts.push_back(absl::StrCat("server ", server, " owes its vote"));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace

std::vector<std::string> StragglerLog::Lines(const std::vector<JobStatus>& jobs) {
  std::vector<std::string> lines;
  std::map<uint64_t, uint64_t> open;
  for (const JobStatus& job : jobs) {
    if (job.state != "running" || job.phase == "idle") continue;
    open[job.job] = job.round;
    const auto before = open_.find(job.job);
    if (before == open_.end() || before->second != job.round) continue;
    lines.push_back(absl::StrCat("job ", job.name, ": round ", job.round, " is in phase ",
                                 job.phase, " and waits: ", WhoOwes(job)));
  }
  open_ = std::move(open);
  return lines;
}

}  // namespace ballast::server
