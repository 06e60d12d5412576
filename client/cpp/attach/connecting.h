// Turns a caller's Security into the factory of its connections.
// Comes from: Client::Attach, Admin. Goes to: ChannelFactory. Thread safety: pure but for the
// files.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "ballast/security.h"
#include "proto/convert/channel_factory.h"

namespace ballast::client {

// Also opens /dev/null for each closed standard descriptor, so that no socket gets its number.
// Error: INVALID_ARGUMENT BAD_ARGUMENT, which names the file or variable and its fault.
absl::StatusOr<std::shared_ptr<ChannelFactory>> OpenSecurity(const Security& security);

}  // namespace ballast::client
