// Problems of a server by its own report, and the peers and trainers its jobs wait for.
// Comes from: StatusReply. Goes to: /statusz, ballastctl health.
// Thread safety: pure functions. Texts are as peers sent them: whatever shows them escapes them.
#pragma once

#include <string>
#include <vector>

#include "ballast/v1/admin.pb.h"

namespace ballast::server {

// What is wrong with a server, a sentence each; empty: nothing. Its disks count, which are full
// where less than 1 % or 8 MiB is free and hang where a call has not ended for 10 s; memory that
// nothing explains; nine tenths of limits.max_jobs; and its share of jobs that run, with trainers
// that are lost.
std::vector<std::string> ProblemsOf(const v1::StatusReply& server);

// The peers or trainers that the open round of `job` waits for at `server`: "trainer 3", "trainers
// 0, 2" or "server 1"; empty without an open round.
std::string WaitsFor(const v1::StatusReply& server, const v1::JobStatus& job);

// A sentence for each job whose open round waits for a peer that is not reached or a trainer that
// is gone, or takes longer than its last rounds give reason for: more than 10 s and three times the
// longest time between two of them, or a minute where the reply has fewer than two.
std::vector<std::string> StallsOf(const v1::StatusReply& server);
// Whether `job` is one of these.
bool Stalls(const v1::StatusReply& server, const v1::JobStatus& job);

// One sentence: whether all is well at `server`, or the problems; and whether it is.
struct Verdict {
  bool well = true;
  std::string text;
};
Verdict VerdictOf(const v1::StatusReply& server);

}  // namespace ballast::server
