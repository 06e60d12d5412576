// Control service: Attach and Extend, parsed here and decided by the job directory.
// Comes from: GenericServer. Goes to: TrainerDoor. Thread safety: any thread.
#pragma once

#include "server/rpc/convert.h"
#include "server/rpc/directory_holder.h"
#include "server/rpc/generic_server.h"

namespace ballast::server {

// Adds the methods of ballast.v1.Control to `server`. `directory` outlives it, and so does
// `metrics`, which counts refusals and may be null.
void AddControlMethods(GenericServer* server, const DirectoryHolder* directory,
                       const TransportTerms& terms, ServerMetrics* metrics = nullptr);

}  // namespace ballast::server
