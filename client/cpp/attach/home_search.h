// Finds the server that answers an attach.
// Comes from: Client::Attach. Goes to: the servers of `options.endpoints`, and the job's home.
// Thread safety: the function blocks the calling thread, and calls JobOptions::should_stop and
// on_pause on it.
#pragma once

#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "ballast/v1/control.pb.h"
#include "proto/convert/channel_factory.h"

namespace ballast::client {

// Finds the job's home through any of `options.endpoints` and attaches there; returns when the
// whole world has attached. Servers that do not answer get another try, in turn, until the attach
// timeout. When the attach may resume a job, so does a home that misses one of the job's servers.
// Errors: the server's; UNAVAILABLE UNREACHABLE when no server has answered in time;
// DEADLINE_EXCEEDED ATTACH_TIMEOUT; CANCELLED when should_stop returned true. After the third
// failed try, the error of a TLS handshake with the server is logged once.
absl::StatusOr<v1::AttachReply> AttachToHome(const JobOptions& options, ChannelFactory* channels,
                                             v1::AttachRequest request);

}  // namespace ballast::client
