#include "server/peer/peer_caller.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ballast/v1/peer.pb.h"
#include "common/threads/thread_executor.h"
#include "grpcpp/client_context.h"
#include "proto/convert/channel.h"
#include "proto/convert/grpc_status.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"
#include "server/peer/peer_sightings.h"
#include "server/rpc/generic_server.h"

namespace ballast::server {
namespace {

constexpr char kToldNoNumber[] =
    "has not told this server its number yet: it starts, waits for its peers file, or does not "
    "reach this server";

grpc::ByteBuffer OwnHello(const PeerLinkConfig& config, uint32_t server) {
  v1::PeerHello hello;
  *hello.mutable_protocol() = OwnProtocolRange();
  hello.set_id(config.self);
  hello.set_incarnation(config.incarnation);
  if (config.sightings != nullptr) config.sightings->Fill(&hello);
  if (config.numbers != nullptr) {
    hello.set_number(config.numbers->NumberFor(server));
    hello.set_held_hash(config.numbers->HeldHash(server));
  }
  return SerializeMessage(hello);
}

absl::Status NotOfThisCluster(uint32_t self, uint32_t server) {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kServerRemoved,
                       absl::StrCat("cluster.peers of server ", self, " lacks server ", server,
                                    ": give all servers the same list, and restart them"),
                       {.server = static_cast<int>(self)});
}

}  // namespace

bool MayPass(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

// One unary call under way. Finish deletes it.
struct PeerCaller::UnderWay : public CompletionTag {
  void OnEvent(bool) override { caller->Finish(this); }

  PeerCaller* caller = nullptr;
  Done done;
  grpc::ClientContext context;
  grpc::ByteBuffer reply;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
};

PeerCaller::PeerCaller(const PeerLinkConfig& config, grpc::CompletionQueue* queue)
    : config_(config), queue_(queue) {
  grpc::ChannelArguments args = MakeChannelArgs(config.time_scale);
  args.SetMaxReceiveMessageSize(config.max_message_bytes);
  args.SetMaxSendMessageSize(config.max_message_bytes);
  const auto credentials =
      config.credentials == nullptr ? PlainChannelCredentials() : config.credentials;
  for (const ServerAddress& server : config.servers) {
    if (server.id == config.self) continue;
    Peer& peer = peers_[server.id];
    peer.address = server.address;
    peer.connection =
        std::make_unique<grpc::GenericStub>(MakeChannel(server.address, args, credentials));
  }
  if (queue_ != nullptr) return;
  own_queue_ = std::make_unique<grpc::CompletionQueue>();
  queue_ = own_queue_.get();
  poller_ = std::make_unique<ThreadExecutor>("peers", 1);
  poller_->Post([this] { PollUntilShutdown(own_queue_.get()); });
}

PeerCaller::~PeerCaller() { Stop(); }

void PeerCaller::Stop() {
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

bool PeerCaller::stopping() const {
  MutexLock lock(&mu_);
  return stopping_;
}

void PeerCaller::Call(uint32_t server, const PeerCallOptions& options,
                      const grpc::ByteBuffer& request, Done done) {
  if (config_.numbers == nullptr) return Send(server, options, "", request, std::move(done));
  const auto number = config_.numbers->HeaderTo(server, config_.self);
  if (number.has_value()) return SendNumbered(server, options, *number, request, std::move(done));
  SayHello(server, options.wait_for_ready,
           [=, this, done = std::move(done)](const absl::Status& said, const grpc::ByteBuffer&) {
             if (!said.ok()) return done(said, {});
             const auto told = config_.numbers->HeaderTo(server, config_.self);
             if (told.has_value()) return SendNumbered(server, options, *told, request, done);
             done(StillStarting({server, AddressOf(server)}, kToldNoNumber), {});
           });
}

void PeerCaller::SendNumbered(uint32_t server, const PeerCallOptions& options,
                              const std::string& number, const grpc::ByteBuffer& request,
                              Done done) {
  Send(server, options, number, request,
       [this, server, done = std::move(done)](const absl::Status& status,
                                              const grpc::ByteBuffer& reply) {
         done(AfterNumbered(server, status), reply);
       });
}

absl::Status PeerCaller::AfterNumbered(uint32_t server, const absl::Status& status) {
  const bool refused = status.code() == absl::StatusCode::kUnauthenticated;
  if (refused || (MayPass(status) && ReasonOf(status) == Reason::kUnspecified)) {
    config_.numbers->Doubt(server);
  }
  if (!refused) return status;
  return StillStarting({server, AddressOf(server)},
                       absl::StrCat(kToldNoNumber, "; it says: ", status.message()));
}

void PeerCaller::Send(uint32_t server, const PeerCallOptions& options, const std::string& number,
                      const grpc::ByteBuffer& request, Done done) {
  const auto peer = peers_.find(server);
  if (peer == peers_.end()) {
    done(NotOfThisCluster(config_.self, server), {});
    return;
  }
  auto call = std::make_unique<UnderWay>();
  call->context.set_deadline(std::chrono::system_clock::now() +
                             std::chrono::ceil<std::chrono::microseconds>(options.timeout));
  call->context.set_wait_for_ready(options.wait_for_ready);
  if (!number.empty()) call->context.AddMetadata(kPeerNumberHeader, number);
  {
    MutexLock lock(&mu_);
    if (!stopping_) {
      call->caller = this;
      call->done = std::move(done);
      call->reader = peer->second.connection->PrepareUnaryCall(&call->context, options.method,
                                                               request, queue_);
      call->reader->StartCall();
      calls_.insert(call.get());
      UnderWay* const tag = call.release();
      tag->reader->Finish(&tag->reply, &tag->status, tag);
      return;
    }
  }
  done(absl::CancelledError("this server is shutting down"), {});
}

void PeerCaller::SayHello(uint32_t server, bool wait_for_ready, Done done) {
  const PeerCallOptions options{method::kPeerHello, config_.report_after, wait_for_ready};
  if (config_.numbers == nullptr) {
    return Send(server, options, "", OwnHello(config_, server), std::move(done));
  }
  Send(server, options, "", OwnHello(config_, server),
       [this, server, done = std::move(done)](const absl::Status& status,
                                              const grpc::ByteBuffer& reply) {
         v1::PeerHello hello;
         if (status.ok() && Parse(reply, &hello).ok() && hello.id() == server) {
           config_.numbers->Answered(server, hello.number_hash());
         } else {
           config_.numbers->Doubt(server);
         }
         done(status, reply);
       });
}

void PeerCaller::CallOnceConnected(uint32_t server, const char* method,
                                   const grpc::ByteBuffer& request, Done done) {
  SayHello(server, true,
           [=, this, done = std::move(done)](const absl::Status&, const grpc::ByteBuffer&) {
             Call(server, {method, kWholeStateTimeout, false}, request, done);
           });
}

void PeerCaller::Finish(UnderWay* call) {
  const std::unique_ptr<UnderWay> owned(call);
  call->done(FromGrpc(call->status), call->reply);
  MutexLock lock(&mu_);
  calls_.erase(call);
  changed_.NotifyAll();
}

}  // namespace ballast::server
