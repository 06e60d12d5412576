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
#include "common/base/sync.h"
#include "common/system/malloc_arenas.h"
#include "common/threads/executor.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "server/rpc/generic_call.h"
#include "server/rpc/listener.h"
#include "server/security/audit.h"
#include "server/security/gate.h"
#include "server/stream/method_registry.h"

namespace ballast::server {

struct GenericServerOptions {
  std::string address = "127.0.0.1:0";
  int pollers = 0;  // threads; 0: half the processors
  int max_message_bytes = 16 << 20;
  size_t max_parse_bytes = 512 << 20;  // of all requests being parsed, in memory
  // Of gRPC for connections and incoming messages, in all; beyond it gRPC breaks calls off and
  // closes connections. 0: without bound.
  uint64_t rpc_memory_bytes = 0;
  int max_metadata_bytes = 8192;
  int max_streams_per_connection = 64;
  std::chrono::milliseconds keepalive_time{2000};
  std::chrono::milliseconds keepalive_timeout{1000};
  // After it a connection takes no further call; open ones stay. 0: never.
  std::chrono::milliseconds max_connection_age{0};
  ConnectionLimits connections;
  double time_scale = 1;             // of the keepalive's lower bounds, and of handshakes
  ServerMetrics* metrics = nullptr;  // of the calls; may be null, outlives the server
  // Of the port; null: plaintext, and callers prove nothing.
  std::shared_ptr<grpc::ServerCredentials> credentials;
  // Decides about each call; null: all are let in, as by a gate without security. Outlives the
  // server.
  const Gate* gate = nullptr;
  AuditLog* audit = nullptr;       // may be null, outlives the server
  DirectoryNames directory_names;  // of this server, in its answers
};

class GenericServer final : public MethodRegistry {
 public:
  GenericServer() = default;
  // As Shutdown(0).
  ~GenericServer() override;
  GenericServer(const GenericServer&) = delete;
  GenericServer& operator=(const GenericServer&) = delete;

  void AddMethod(absl::string_view method, StreamFactory factory,
                 MethodType type = MethodType::kUnary) override;

  // Binds and serves. Errors: UNAVAILABLE when the address cannot be bound; INTERNAL for a method
  // missing from the table of methods: our own mistake, and no port is open then.
  absl::Status Start(const GenericServerOptions& options);
  // The port bound; valid after Start.
  int port() const { return port_; }
  // Memory of requests while they are parsed; valid from Start to Shutdown.
  ParseBudget* parsing() { return parsing_.get(); }
  // Of the threads that poll.
  MallocArenas* arenas() { return &arenas_; }
  // A queue polled from Start until Shutdown, for calls to other servers; their tags are
  // CompletionTags, and all of them have come back before Shutdown.
  grpc::CompletionQueue* queue() const { return queues_.front().get(); }

  // Takes no new calls, gives the open ones `grace` to end, breaks off the rest and joins the
  // pollers. Idempotent. Handlers must not be called from outside afterwards, but may be destroyed.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  struct Method {
    StreamFactory factory;
    const MethodRow* row = nullptr;  // in the table of methods; set by Start
    MethodType type = MethodType::kUnary;
    std::unique_ptr<CallMetrics> metrics;  // null without
  };

  // Finds each method's row.
  absl::Status FindRows();
  // Binds the port and builds gRPC's server.
  absl::Status Build(const GenericServerOptions& options);
  void AddMetrics(ServerMetrics* metrics);
  void BeginToAccept();
  void AcceptNext(const CallEnvironment* environment);
  std::shared_ptr<StreamHandler> Dispatch(const CallEnvironment* environment,
                                          std::shared_ptr<GenericCall> call);
  std::shared_ptr<StreamHandler> Admit(const Method& method, std::shared_ptr<GenericCall> call);
  void Audit(const GenericCall& call, grpc::StatusCode code);
  void OnReleased();

  std::map<std::string, Method> methods_;
  std::unique_ptr<CallMetrics> unknown_;  // of all unknown methods
  grpc::AsyncGenericService service_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  MallocArenas arenas_;
  std::unique_ptr<ParseBudget> parsing_;
  DirectoryNames directory_names_;                              // constant from Start on
  std::vector<std::unique_ptr<CallEnvironment>> environments_;  // one per queue
  std::unique_ptr<Listener> listener_;  // null before Start and after a failed one
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Executor> pollers_;
  int port_ = 0;
  const Gate* gate_ = nullptr;  // constant from Start on, as audit_
  AuditLog* audit_ = nullptr;

  Mutex mu_;
  CondVar released_;
  int open_calls_ ABSL_GUARDED_BY(mu_) = 0;  // those waiting to be accepted included
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

// Hands back everything that comes out of `queue` until it is shut down and empty. `arenas`, which
// may be null, notes the thread's.
void PollUntilShutdown(grpc::CompletionQueue* queue, MallocArenas* arenas = nullptr);

}  // namespace ballast::server
