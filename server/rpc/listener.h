// Listener: the port of a GenericServer: its own sockets and accept loop in front of gRPC, which
// gets a connection after its first bytes.
// Comes from: GenericServer. Goes to: server/net, gRPC's external acceptor.
// Thread safety: one thread, the owner's.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/registry.h"
#include "common/threads/executor.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "server/net/accept_loop.h"
#include "server/net/frame_guard.h"
#include "server/net/posix_sockets.h"

namespace ballast::server {

struct ListenerOptions {
  std::string address;
  ConnectionLimits limits;
  FrameLimits frames;
  bool tls = false;  // of `credentials`
  std::shared_ptr<grpc::ServerCredentials> credentials;
  std::chrono::nanoseconds first_bytes{0};
  // See PosixSockets::Listen.
  std::chrono::milliseconds user_timeout{0};
  MetricRegistry* registry = nullptr;  // may be null, outlives the listener
};

class Listener {
 public:
  // Binds, and lets the server that `builder` is going to build take connections from here. Errors:
  // UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const ListenerOptions& options,
                                                        grpc::ServerBuilder* builder);
  // As Stop().
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return sockets_->port(); }
  // To be called once, after the server has been built.
  void Start();
  // Closes the port. Connections already handed to gRPC stay open. Idempotent.
  void Stop();

 private:
  explicit Listener(std::unique_ptr<PosixSockets> sockets) : sockets_(std::move(sockets)) {}
  void Serve(int fd);

  FrameLimits frames_;
  bool tls_ = false;
  std::unique_ptr<PosixSockets> sockets_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<AcceptLoop> loop_;
};

}  // namespace ballast::server
