// Problems of a server by its own report, and the peers and trainers that its jobs wait for.
// Comes from: StatusReply. Goes to: /statusz, ballastctl health.
// Thread safety: pure functions. Texts are as sent by peers: the code that shows them escapes them.
#pragma once

#include <string>
#include <vector>

#include "ballast/v1/admin.pb.h"

namespace ballast::server {

// The problems of a server, one sentence each; empty: none. Problems are a disk that is full (less
// than 1 % or 8 MiB free) or hangs (a call unfinished for 10 s); unexplained memory; nine tenths of
// limits.max_jobs; and lost trainers in its share of running jobs, among others.
std::vector<std::string> ProblemsOf(const v1::StatusReply& server);

// The peers or trainers that the open round of `job` waits for at `server`: "trainer 3", "trainers
// 0, 2" or "server 1"; empty without an open round.
std::string WaitsFor(const v1::StatusReply& server, const v1::JobStatus& job);

// One sentence for each job whose open round waits for an unreachable peer or a lost trainer, or
// takes unusually long: more than 10 s and three times the longest interval between its last
// rounds, or a minute if the reply has fewer than two.
std::vector<std::string> StallsOf(const v1::StatusReply& server);
// Whether `job` is one of these.
bool Stalls(const v1::StatusReply& server, const v1::JobStatus& job);

// One sentence: that all is well at `server`, or the problems; and which of the two.
struct Verdict {
  bool well = true;
  std::string text;
};
Verdict VerdictOf(const v1::StatusReply& server);

}  // namespace ballast::server
