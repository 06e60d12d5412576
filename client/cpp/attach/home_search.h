// Finds the server that answers an attach.
// Comes from: Client::Attach. Goes to: the servers of `options.endpoints` and the job's home, over
// HomeSearchDeps. Thread safety: the function blocks the calling thread, and calls the functions of
// its dependencies, JobOptions::should_stop and on_pause on it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "ballast/v1/control.pb.h"
#include "client/cpp/session/retry.h"

namespace ballast::client {

// A connection to one server, for calls that block their caller. Over gRPC: grpc_connection.h.
class HomeConnection {
 public:
  virtual ~HomeConnection() = default;
  // Whether it is established. Asked while a call waits.
  virtual bool ready() const = 0;
  // Calls `method` (proto/convert/methods.h) and parses the answer into `reply`. `poll`, if any, is
  // called about ten times a second while the call waits, and may make another call on this
  // connection; an error of it cancels the call and is returned. Errors: those of the server, with
  // their reason; DEADLINE_EXCEEDED after `timeout`; UNAVAILABLE without a reason when the server
  // cannot be reached.
  virtual absl::Status Call(const char* method, const google::protobuf::MessageLite& request,
                            std::chrono::milliseconds timeout,
                            const std::function<absl::Status()>& poll,
                            google::protobuf::MessageLite* reply) = 0;
};

// The surroundings of a search.
struct HomeSearchDeps {
  // A new connection to `address`; it need not be ready yet.
  std::function<std::unique_ptr<HomeConnection>(const std::string& address)> connect;
  // Why no connection to `address` is established: the error of a TLS handshake, or "".
  std::function<std::string(const std::string& address)> explain;
  std::function<std::chrono::steady_clock::time_point()> now;
  std::function<void(std::chrono::milliseconds)> sleep = SleepFor;
};

// Finds the job's home through any of `options.endpoints` and attaches there; returns when the
// whole world has attached. Servers that do not answer get another try, in turn, until the attach
// timeout. When the attach may resume a job, so does a home that misses one of the job's servers.
// Errors: the server's; UNAVAILABLE UNREACHABLE when no server has answered in time;
// DEADLINE_EXCEEDED ATTACH_TIMEOUT; CANCELLED when should_stop returned true. After the third
// failed try, the error of a TLS handshake with the server is logged once.
absl::StatusOr<v1::AttachReply> AttachToHome(const JobOptions& options, HomeSearchDeps deps,
                                             v1::AttachRequest request);

}  // namespace ballast::client
