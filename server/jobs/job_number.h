// The number of a new job, by which servers and trainers name it, and numbers by chance.
// Comes from: HomeJob, DirectoryConfig. Goes to: plans. Thread safety: pure functions, but for
// chance.
#pragma once

#include <cstdint>
#include <vector>

#include "common/text/qualified_name.h"
#include "server/round/round_types.h"

namespace ballast::server {

// Never 0. A number differs between two lives of a name, and only the home chooses it: the random
// incarnations of its trainers provide that. All of them count: a server may still have an earlier
// attempt to make the job, with other trainers. The same trainers may try again, too. Servers may
// have been told to drop their earlier attempt, and an order that comes late must not meet the new
// one, so every attempt has another number.
// Trainers choose their incarnations, so it is 64 bits of SHA-256, which none can invert to meet
// the number of another job.
uint64_t NewJobNumber(const QualifiedName& name, const std::vector<Member>& members,
                      const MakingAttempt& attempt);

// A number for a snapshot, or for a job or a seat made from one. Never 0.
uint64_t RandomId();

}  // namespace ballast::server
