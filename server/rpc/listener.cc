#include "server/rpc/listener.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/threads/thread_executor.h"
#include "server/net/descriptors.h"
#include "server/net/read_guards.h"

namespace ballast::server {

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(const ListenerOptions& options,
                                                         grpc::ServerBuilder* builder) {
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<PosixSockets> sockets,
                           PosixSockets::Listen(options.address, options.user_timeout));
  std::unique_ptr<Listener> listener(new Listener(std::move(sockets)));
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  listener->acceptor_ =
      builder->experimental().AddExternalConnectionAcceptor(Type::FROM_FD, options.credentials);
  listener->frames_ = options.frames;
  listener->tls_ = options.tls;
  listener->executor_ = std::make_unique<ThreadExecutor>("accept", 1);
  AcceptOptions accept;
  accept.limits = options.limits;
  accept.tls = options.tls;
  accept.first_bytes = options.first_bytes;
  accept.descriptor_end =
      std::min(ConnectionDescriptorEnd(DescriptorLimit()), ReadGuards::kDescriptorEnd);
  listener->loop_ = std::make_unique<AcceptLoop>(
      accept, listener->sockets_.get(), RealClock::Get(), listener->executor_.get(),
      options.registry, [raw = listener.get()](int fd) { raw->Serve(fd); });
  return listener;
}

Listener::~Listener() { Stop(); }

void Listener::Start() {
  ReadGuards::Begin(this, [loop = loop_.get()](int fd, uint64_t identity, ConnectionRefusal why) {
    loop->Cut(fd, identity, why);
  });
  loop_->Start();
}

void Listener::Stop() {
  if (sockets_ == nullptr) return;
  loop_->Stop();
  ReadGuards::Forget(this);
  sockets_.reset();
}

void Listener::Serve(int fd) {
  ReadGuards::Guard(fd, sockets_->Identity(fd), tls_, frames_, this);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = fd;
  acceptor_->HandleNewConnection(&connection);
}

}  // namespace ballast::server
