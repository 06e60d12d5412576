// Control service: Attach and Extend, parsed here and decided by the job directory; and the status
// of one job, for a trainer that waits.
// Comes from: the transport. Goes to: TrainerApi, JobsApi. Thread safety: any thread.
#pragma once

#include <functional>

#include "server/convert/control_convert.h"
#include "server/service/admin_service.h"
#include "server/service/directory_holder.h"
#include "server/stream/method_registry.h"

namespace ballast::server {

// Adds the methods of ballast.v1.Control to `server`. `directory` outlives it, and so does
// `metrics`, which counts refusals and may be null. `facts` may be called from any thread.
void AddControlMethods(MethodRegistry* server, const DirectoryHolder* directory,
                       const TransportTerms& terms, std::function<ServerFacts()> facts,
                       ServerMetrics* metrics = nullptr);

}  // namespace ballast::server
