// The number of a new job, by which servers and trainers name it.
// Comes from: HomeJob. Goes to: plans. Thread safety: a pure function.
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

}  // namespace ballast::server
