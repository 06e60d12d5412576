#include "server/rpc/grpc_peer_transport.h"

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "common/threads/thread_executor.h"
#include "grpcpp/client_context.h"
#include "proto/convert/channel.h"
#include "proto/convert/grpc_message.h"
#include "proto/convert/grpc_status.h"
#include "server/rpc/generic_server.h"
#include "server/security/peer_numbers.h"

namespace ballast::server {

// One call under way. Finish deletes it.
struct GrpcPeerTransport::UnderWay : public CompletionTag {
  void OnEvent(bool) override { transport->Finish(this); }

  GrpcPeerTransport* transport = nullptr;
  Done done;
  grpc::ClientContext context;
  grpc::ByteBuffer reply;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
};

GrpcPeerTransport::GrpcPeerTransport(const GrpcPeerOptions& options,
                                     std::shared_ptr<grpc::ChannelCredentials> credentials,
                                     grpc::CompletionQueue* queue)
    : options_(options),
      credentials_(credentials == nullptr ? PlainChannelCredentials() : std::move(credentials)),
      queue_(queue) {
  if (queue_ != nullptr) return;
  own_queue_ = std::make_unique<grpc::CompletionQueue>();
  queue_ = own_queue_.get();
  poller_ = std::make_unique<ThreadExecutor>("peers", 1);
  poller_->Post([this] { PollUntilShutdown(own_queue_.get()); });
}

GrpcPeerTransport::~GrpcPeerTransport() { Stop(); }

void GrpcPeerTransport::Stop() {
  {
    MutexLock lock(&mu_);
    if (std::exchange(stopping_, true)) return;
    for (UnderWay* call : calls_) call->context.TryCancel();
    while (!calls_.empty()) changed_.Wait(&mu_);
  }
  if (own_queue_ == nullptr) return;
  own_queue_->Shutdown();
  poller_->Shutdown();
}

grpc::GenericStub* GrpcPeerTransport::ConnectionTo(const std::string& address) {
  std::unique_ptr<grpc::GenericStub>& connection = connections_[address];
  if (connection == nullptr) {
    grpc::ChannelArguments args = MakeChannelArgs(options_.time_scale);
    args.SetMaxReceiveMessageSize(options_.max_message_bytes);
    args.SetMaxSendMessageSize(options_.max_message_bytes);
    connection = std::make_unique<grpc::GenericStub>(MakeChannel(address, args, credentials_));
  }
  return connection.get();
}

void GrpcPeerTransport::Call(const std::string& address, const PeerCallOptions& options,
                             const Payload& request, Done done) {
  auto call = std::make_unique<UnderWay>();
  call->context.set_deadline(std::chrono::system_clock::now() +
                             std::chrono::ceil<std::chrono::microseconds>(options.timeout));
  call->context.set_wait_for_ready(options.wait_for_ready);
  if (!options.number.empty()) call->context.AddMetadata(kPeerNumberHeader, options.number);
  {
    MutexLock lock(&mu_);
    if (!stopping_) {
      call->transport = this;
      call->done = std::move(done);
      call->reader = ConnectionTo(address)->PrepareUnaryCall(&call->context, options.method,
                                                             ToByteBuffer({"", request}), queue_);
      call->reader->StartCall();
      calls_.insert(call.get());
      UnderWay* const tag = call.release();
      tag->reader->Finish(&tag->reply, &tag->status, tag);
      return;
    }
  }
  done(absl::CancelledError("this server is shutting down"));
}

void GrpcPeerTransport::Finish(UnderWay* call) {
  const std::unique_ptr<UnderWay> owned(call);
  if (call->status.ok()) {
    call->done(ToPayload(call->reply));
  } else {
    call->done(FromGrpc(call->status));
  }
  MutexLock lock(&mu_);
  calls_.erase(call);
  changed_.NotifyAll();
}

}  // namespace ballast::server
