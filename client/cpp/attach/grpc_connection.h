// The connections of a search for a job's home, over gRPC.
// Comes from: Client::Attach. Goes to: AttachToHome. Thread safety: as AttachToHome's.
#pragma once

#include <memory>

#include "client/cpp/attach/home_search.h"
#include "proto/convert/channel_factory.h"

namespace ballast::client {

// With the steady clock and the sleep of this process. `time_scale` stretches keepalives.
HomeSearchDeps GrpcHomeSearch(std::shared_ptr<ChannelFactory> channels, double time_scale);

}  // namespace ballast::client
