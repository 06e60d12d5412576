// One unary gRPC call with raw bytes, waited for on the calling thread in small steps so that the
// caller can give up at any time.
// Comes from: attaching and extending. Goes to: the Control service.
// Thread safety: the function may be called from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/channel.h"

namespace ballast::client {

// Calls `method` (proto/convert/methods.h) and parses the answer into `reply`. `poll` is called
// about ten times a second while the call waits; an error of it cancels the call and is returned.
// Errors: those of the server, with their reason; DEADLINE_EXCEEDED after `timeout`; UNAVAILABLE
// without a reason when the server cannot be reached.
absl::Status CallUnary(const std::shared_ptr<grpc::Channel>& channel, const char* method,
                       const google::protobuf::MessageLite& request,
                       std::chrono::milliseconds timeout, const std::function<absl::Status()>& poll,
                       google::protobuf::MessageLite* reply);

}  // namespace ballast::client
