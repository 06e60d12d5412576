#include "server/rpc/status_problems.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/status_rows.h"

namespace ballast::server {
namespace {

// A server keeps 4 MiB for its own records, and takes them where twice as much is free.
constexpr uint64_t kRoomBytes = uint64_t{8} << 20;

// What is wrong with a disk; empty: nothing.
std::string ProblemOf(const v1::DiskStatus& disk) {
  const std::string which = absl::StrCat("its ", disk.directory(), " disk ");
  if (!disk.answers()) return absl::StrCat(which, "does not answer");
  if (disk.size_bytes() == 0) return "";
  const uint64_t least = std::max(kRoomBytes, disk.size_bytes() / 100);
  if (disk.free_bytes() >= least) return "";
  return absl::StrCat(which, "is full: ", ShortBytes(disk.free_bytes()), " of ",
                      ShortBytes(disk.size_bytes()), " are free");
}

}  // namespace

std::vector<std::string> ProblemsOf(const v1::StatusReply& server) {
  std::vector<std::string> problems;
  if (!server.serving()) {
    problems.push_back(absl::StrCat("it does not serve jobs: ", StateOf(server)));
  }
  if (server.memory_used_bytes() > server.memory_budget_bytes()) {
    problems.push_back(absl::StrCat("its jobs need ", ShortBytes(server.memory_used_bytes()),
                                    ", over its memory budget of ",
                                    ShortBytes(server.memory_budget_bytes())));
  }
  for (const v1::DiskStatus& disk : server.disks()) {
    if (std::string wrong = ProblemOf(disk); !wrong.empty()) problems.push_back(std::move(wrong));
  }
  for (const std::string& fault : server.file_faults()) {
    problems.push_back(absl::StrCat("a file is not in force, its older content is: ", fault));
  }
  for (const v1::PeerStatus& peer : server.peers()) {
    if (!peer.reachable()) problems.push_back(absl::StrCat("it does not reach server ", peer.id()));
  }
  for (const v1::JobStatus& job : server.jobs()) {
    if (job.state() == "failed") {
      problems.push_back(absl::StrCat("job ", job.name(), " failed: ", job.error()));
    }
    if (job.state() == "damaged" || job.state() == "unopened") {
      problems.push_back(absl::StrCat("job ", job.name(), " is ", job.state(), ": ", job.error()));
    }
    if (job.state() != "running") continue;
    for (const v1::SlotStatus& slot : job.slots()) {
      if (slot.state() != "lost") continue;
      problems.push_back(absl::StrCat("trainer ", slot.slot(), " of job ", job.name(), " is lost"));
    }
  }
  return problems;
}

}  // namespace ballast::server
