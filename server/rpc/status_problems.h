// What is wrong with a server by what it says of itself.
// Comes from: StatusReply. Goes to: /statusz, ballastctl health.
// Thread safety: pure functions. Texts are as peers sent them: whatever shows them escapes them.
#pragma once

#include <string>
#include <vector>

#include "ballast/v1/admin.pb.h"

namespace ballast::server {

// What is wrong with a server, a sentence each; empty: nothing. Its disks count, which are full
// where less than 1 % or 8 MiB is free, and its share of jobs that run, with trainers that are
// lost.
std::vector<std::string> ProblemsOf(const v1::StatusReply& server);

}  // namespace ballast::server
