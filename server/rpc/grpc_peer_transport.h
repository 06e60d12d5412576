// The calls to other servers over gRPC: one connection to each, and the set of calls under way.
// Comes from: server main. Goes to: the ports of the other servers.
// Thread safety: thread-safe. `done` runs on the thread that polls the completion queue.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "common/base/sync.h"
#include "common/threads/executor.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "server/stream/peer_transport.h"

namespace ballast::server {

struct GrpcPeerOptions {
  int max_message_bytes = 16 << 20;
  double time_scale = 1;
};

class GrpcPeerTransport final : public PeerTransport {
 public:
  // `credentials`: null for plaintext. `queue` is polled (PollUntilShutdown) until Stop() has
  // returned; null means a private queue and thread. A server passes its own queue: gRPC lets every
  // polling thread read from every connection, so a second one would take the trainers' messages
  // off their sockets and then have to wake the first.
  explicit GrpcPeerTransport(const GrpcPeerOptions& options,
                             std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr,
                             grpc::CompletionQueue* queue = nullptr);
  // As Stop.
  ~GrpcPeerTransport() override;

  void Call(const std::string& address, const PeerCallOptions& options, const Payload& request,
            Done done) override;
  void Stop() override;

 private:
  struct UnderWay;

  grpc::GenericStub* ConnectionTo(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Finish(UnderWay* call);

  const GrpcPeerOptions options_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  grpc::CompletionQueue* queue_;  // constant after construction

  Mutex mu_;
  CondVar changed_;
  std::map<std::string, std::unique_ptr<grpc::GenericStub>> connections_ ABSL_GUARDED_BY(mu_);
  std::set<UnderWay*> calls_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Null if the caller's queue is used. Last: the thread uses all of the above.
  std::unique_ptr<grpc::CompletionQueue> own_queue_;
  std::unique_ptr<Executor> poller_;
};

}  // namespace ballast::server
