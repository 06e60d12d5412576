#include "server/status/status_problems.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/status/status_rows.h"

namespace ballast::server {
namespace {

// A server keeps 4 MiB for its own records, and takes them if twice as much is free.
constexpr uint64_t kRoomBytes = uint64_t{8} << 20;

// New jobs will soon be refused above this part of limits.max_jobs.
constexpr double kNearFull = 0.9;
// A smaller limit is meant to be reached.
constexpr uint32_t kManyJobs = 10;
// As the server's own kDiskHangs.
constexpr uint64_t kHangsNs = uint64_t{10} * 1'000'000'000;

// The problem of a disk; empty: none.
std::string ProblemOf(const v1::DiskStatus& disk) {
  const std::string which = absl::StrCat("its ", disk.directory(), " disk ");
  if (!disk.answers()) return absl::StrCat(which, "does not answer");
  if (disk.waits_ns() >= kHangsNs) {
    return absl::StrCat(which, "hangs: a write or flush has not ended for ",
                        SecondsText(Seconds(disk.waits_ns())));
  }
  if (disk.size_bytes() == 0) return "";
  const uint64_t least = std::max(kRoomBytes, disk.size_bytes() / 100);
  if (disk.free_bytes() >= least) return "";
  return absl::StrCat(which, "is full: ", ShortBytes(disk.free_bytes()), " of ",
                      ShortBytes(disk.size_bytes()), " are free");
}

// Memory and jobs.
void AddProblemsOfLimits(const v1::StatusReply& server, std::vector<std::string>* problems) {
  if (server.memory_used_bytes() > server.memory_budget_bytes()) {
    problems->push_back(absl::StrCat("its jobs need ", ShortBytes(server.memory_used_bytes()),
                                     ", over its memory budget of ",
                                     ShortBytes(server.memory_budget_bytes())));
  }
  // Earlier servers do not report it.
  if (server.explained_bytes() > 0 && server.resident_bytes() > server.explained_bytes()) {
    problems->push_back(absl::StrCat("it has ", ShortBytes(server.resident_bytes()),
                                     " of memory, and its jobs and limits explain ",
                                     ShortBytes(server.explained_bytes()),
                                     ": connections took the rest"));
  }
  if (server.jobs_max() >= kManyJobs && server.jobs_under_way() >= server.jobs_max() * kNearFull) {
    problems->push_back(absl::StrCat(server.jobs_under_way(), " jobs are under way, and ",
                                     "limits.max_jobs is ", server.jobs_max()));
  }
}

// A round that takes this long is examined; later if there are no other rounds for comparison.
constexpr double kStallS = 10;
constexpr double kStallWithoutOthersS = 60;
constexpr double kStallTimes = 3;

// Seconds since the newest round of `job` ended, and whether it is a long time; 0 before the first.
std::pair<double, bool> SinceLastRound(const v1::JobStatus& job) {
  if (job.rounds().empty()) return {0, false};
  double longest = 0;
  for (int i = 1; i < job.rounds_size(); ++i) {
    longest =
        std::max(longest, Seconds(job.rounds(i - 1).age_ns()) - Seconds(job.rounds(i).age_ns()));
  }
  const double since = Seconds(job.rounds(job.rounds_size() - 1).age_ns());
  const double most =
      job.rounds_size() < 2 ? kStallWithoutOthersS : std::max(kStallS, kStallTimes * longest);
  return {since, since > most};
}

// "trainer 3", or "trainers 0, 2".
std::string Named(const char* one, const std::vector<uint32_t>& numbers) {
  return absl::StrCat(one, numbers.size() == 1 ? " " : "s ", absl::StrJoin(numbers, ", "));
}

// Trainers that the round or the attach still waits for.
std::vector<uint32_t> Missing(const v1::JobStatus& job) {
  std::vector<uint32_t> slots;
  for (const v1::SlotStatus& slot : job.slots()) {
    const bool here = job.state() == "attaching" && slot.state() != "absent";
    if (!here && slot.state() != "done" && slot.state() != "left") slots.push_back(slot.slot());
  }
  return slots;
}

// Whether the job waits for the vote of an unreachable peer, or for a lost trainer.
bool WaitsForTheLost(const v1::StatusReply& server, const v1::JobStatus& job) {
  for (const v1::PeerStatus& peer : server.peers()) {
    const auto& votes = job.votes_missing();
    const bool missing = std::find(votes.begin(), votes.end(), peer.id()) != votes.end();
    if (missing && !peer.reachable()) return true;
  }
  if (!job.votes_missing().empty()) return false;
  return std::any_of(job.slots().begin(), job.slots().end(), [](const v1::SlotStatus& slot) {
    return slot.state() == "lost" || slot.state() == "absent";
  });
}

}  // namespace

std::string WaitsFor(const v1::StatusReply& server, const v1::JobStatus& job) {
  const bool running = job.state() == "running";
  if (running && !job.votes_missing().empty()) {
    return Named("server", {job.votes_missing().begin(), job.votes_missing().end()});
  }
  if ((running && job.phase() == "collect") || job.state() == "attaching") {
    const std::vector<uint32_t> slots = Missing(job);
    if (!slots.empty()) return Named("trainer", slots);
  }
  const bool open = running && !job.phase().empty() && job.phase() != "idle";
  return open ? absl::StrCat("server ", server.id()) : "";
}

bool Stalls(const v1::StatusReply& server, const v1::JobStatus& job) {
  if (WaitsFor(server, job).empty() || job.state() == "attaching") return false;
  return SinceLastRound(job).second || WaitsForTheLost(server, job);
}

std::vector<std::string> StallsOf(const v1::StatusReply& server) {
  std::vector<std::string> stalls;
  for (const v1::JobStatus& job : server.jobs()) {
    if (!Stalls(server, job)) continue;
    std::string text = absl::StrCat("job ", job.name(), " waits for ", WaitsFor(server, job),
                                    " in round ", job.round());
    if (!job.rounds().empty()) {
      absl::StrAppend(&text, ", ", TimeText(SinceLastRound(job).first), " after its last round");
    }
    stalls.push_back(std::move(text));
  }
  return stalls;
}

Verdict VerdictOf(const v1::StatusReply& server) {
  std::vector<std::string> wrong = ProblemsOf(server);
  for (std::string& stall : StallsOf(server)) wrong.push_back(std::move(stall));
  if (!wrong.empty()) return {false, absl::StrCat("Not well: ", absl::StrJoin(wrong, "; "))};
  int jobs = 0;
  for (const v1::JobStatus& job : server.jobs()) jobs += job.state() == "running" ? 1 : 0;
  const int peers = server.peers_size();
  return {true,
          absl::StrCat("All is well: it serves, ", jobs, jobs == 1 ? " job runs" : " jobs run",
                       peers == 0   ? ""
                       : peers == 1 ? ", and it reaches its peer"
                                    : ", and it reaches its peers")};
}

std::vector<std::string> ProblemsOf(const v1::StatusReply& server) {
  std::vector<std::string> problems;
  if (!server.serving()) {
    problems.push_back(absl::StrCat("it does not serve jobs: ", StateOf(server)));
  }
  AddProblemsOfLimits(server, &problems);
  for (const v1::DiskStatus& disk : server.disks()) {
    if (std::string wrong = ProblemOf(disk); !wrong.empty()) problems.push_back(std::move(wrong));
  }
  for (const std::string& fault : server.file_faults()) {
    problems.push_back(absl::StrCat("a file is not in force, its older content is: ", fault));
  }
  for (const v1::PeerStatus& peer : server.peers()) {
    if (!peer.reachable()) problems.push_back(absl::StrCat("it does not reach server ", peer.id()));
  }
  problems.insert(problems.end(), server.cluster_problems().begin(),
                  server.cluster_problems().end());
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
