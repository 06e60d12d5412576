// The gRPC server of a state server: one port, every method by its name, on its own poller threads.
// Comes from: server main. Goes to: the handlers of control_service, peer_service, admin_service
// and trainer_stream. Thread safety: AddMethod before Start; the rest from one thread, the owner's.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/executor.h"
#include "common/base/sync.h"
#include "grpcpp/server.h"
#include "server/rpc/generic_call.h"

namespace ballast::server {

struct GenericServerOptions {
  std::string address = "127.0.0.1:0";
  int pollers = 0;  // threads; 0: half the processors
  int max_message_bytes = 16 << 20;
  int max_metadata_bytes = 8192;
  int max_streams_per_connection = 64;
  std::chrono::milliseconds keepalive_time{2000};
  std::chrono::milliseconds keepalive_timeout{1000};
  double time_scale = 1;             // of the keepalive's lower bounds
  ServerMetrics* metrics = nullptr;  // of the calls; may be null, outlives the server
};

class GenericServer {
 public:
  // Returns the handler of a new call, which keeps `call` as long as it answers.
  using HandlerFactory = std::function<std::shared_ptr<CallHandler>(std::shared_ptr<GenericCall>)>;

  GenericServer() = default;
  // As Shutdown(0).
  ~GenericServer();
  GenericServer(const GenericServer&) = delete;
  GenericServer& operator=(const GenericServer&) = delete;

  // `method` as in proto/convert/methods.h; `type` is for its metrics. Calls of other methods are
  // answered UNIMPLEMENTED.
  void AddMethod(absl::string_view method, HandlerFactory factory,
                 MethodType type = MethodType::kUnary);

  // Binds and serves. Errors: UNAVAILABLE when the address cannot be bound.
  absl::Status Start(const GenericServerOptions& options);
  // The port bound; valid after Start.
  int port() const { return port_; }
  // A queue that is polled from Start until Shutdown, for calls to other servers; their tags are
  // CompletionTags, and all of them have come back before Shutdown.
  grpc::CompletionQueue* queue() const { return queues_.front().get(); }

  // Takes no new calls, gives the open ones `grace` to end, breaks off the rest and joins the
  // pollers. Idempotent. Handlers must not be called from outside afterwards, but may be destroyed.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  struct Method {
    HandlerFactory factory;
    MethodType type = MethodType::kUnary;
    std::unique_ptr<CallMetrics> metrics;  // null without
  };

  void AddMetrics(ServerMetrics* metrics);
  void AcceptNext(const CallEnvironment* environment);
  std::shared_ptr<CallHandler> Dispatch(const CallEnvironment* environment,
                                        std::shared_ptr<GenericCall> call);
  void OnReleased();

  std::map<std::string, Method> methods_;
  std::unique_ptr<CallMetrics> unknown_;  // of all methods that are not there
  grpc::AsyncGenericService service_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::vector<std::unique_ptr<CallEnvironment>> environments_;  // one per queue
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Executor> pollers_;
  int port_ = 0;

  Mutex mu_;
  CondVar released_;
  int open_calls_ ABSL_GUARDED_BY(mu_) = 0;  // those waiting to be accepted included
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

// Hands back everything that comes out of `queue` until it is shut down and empty.
void PollUntilShutdown(grpc::CompletionQueue* queue);

}  // namespace ballast::server
