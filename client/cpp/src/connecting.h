// From what a caller says about security to how the client connects.
// Comes from: Client::Attach, Admin. Goes to: ChannelFactory. Thread safety: pure but for the
// files.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "ballast/security.h"
#include "proto/convert/channel_factory.h"

namespace ballast::client {

// Also sees to it that no socket gets the number of a standard descriptor that is closed. Error:
// INVALID_ARGUMENT BAD_ARGUMENT, with the file or the variable and what is wrong.
absl::StatusOr<std::shared_ptr<ChannelFactory>> OpenSecurity(const Security& security);

}  // namespace ballast::client
