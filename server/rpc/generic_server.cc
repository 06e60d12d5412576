#include "server/rpc/generic_server.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/threads/thread_executor.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "proto/convert/channel.h"

namespace ballast::server {
namespace {

// Time that cancelled calls may take to come back before a warning.
constexpr std::chrono::seconds kReleaseWarning{10};
// How long a connection may take to say its first bytes, and then for its handshake.
constexpr int kFirstBytesMs = 5000;
constexpr int kHandshakeMs = 10000;

// A connection says goodbye at its age, 10 % earlier or later by chance, and keeps the calls that
// it has: a trainer's stream ends when its round allows (StreamAge), and others end by themselves.
void SetConnectionAge(std::chrono::milliseconds age, grpc::ServerBuilder* builder) {
  if (age.count() == 0) return;
  constexpr int64_t kMost = std::numeric_limits<int>::max();  // to gRPC, no end
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                              static_cast<int>(std::min<int64_t>(age.count(), kMost)));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, static_cast<int>(kMost));
}

// The last wall: gRPC narrows its windows near the bound, and breaks calls off beyond it. Near and
// beyond are counted over all connections, also over those that the listener hands on.
void BoundMemory(uint64_t bytes, grpc::ServerBuilder* builder) {
  if (bytes == 0) return;
  grpc::ResourceQuota quota("ballast");
  quota.Resize(static_cast<size_t>(bytes));
  builder->SetResourceQuota(quota);
}

int Scaled(int ms, double time_scale) { return static_cast<int>(ms * time_scale); }

ListenerOptions ListenerOf(const GenericServerOptions& options) {
  ListenerOptions listener;
  listener.address = options.address;
  listener.limits = options.connections;
  listener.frames = FrameLimits::Of(static_cast<size_t>(options.max_metadata_bytes),
                                    static_cast<size_t>(options.max_streams_per_connection));
  listener.tls = options.credentials != nullptr;
  listener.credentials = listener.tls ? options.credentials : MakeServerCredentials();
  listener.first_bytes = std::chrono::milliseconds(Scaled(kFirstBytesMs, options.time_scale));
  listener.user_timeout = options.keepalive_timeout;
  listener.registry = options.metrics == nullptr ? nullptr : &options.metrics->registry();
  return listener;
}

}  // namespace

void PollUntilShutdown(grpc::CompletionQueue* queue, MallocArenas* arenas) {
  void* tag = nullptr;
  bool ok = false;
  do {
    // gRPC reads and parses on this thread: most of the memory left by a flood is in its arena.
    if (arenas != nullptr) arenas->Note();
    if (tag != nullptr) static_cast<CompletionTag*>(tag)->OnEvent(ok);
  } while (queue->Next(&tag, &ok));
}

GenericServer::~GenericServer() { Shutdown(std::chrono::milliseconds(0)); }

void GenericServer::AddMethod(absl::string_view method, StreamFactory factory, MethodType type) {
  Method& added = methods_[std::string(method.data(), method.size())];
  added.factory = std::move(factory);
  added.type = type;
}

void GenericServer::AddMetrics(ServerMetrics* metrics) {
  if (metrics == nullptr) return;
  unknown_ = std::make_unique<CallMetrics>("", MethodType::kUnary, metrics);
  for (auto& [name, method] : methods_) {
    method.metrics = std::make_unique<CallMetrics>(name, method.type, metrics);
  }
}

absl::Status GenericServer::FindRows() {
  for (auto& [name, method] : methods_) {
    method.row = FindMethod(name);
    if (method.row != nullptr) continue;
    return absl::InternalError(absl::StrCat(
        "method ", name, " is not in the table of methods; add it to server/security"));
  }
  return absl::OkStatus();
}

absl::Status GenericServer::Build(const GenericServerOptions& options) {
  grpc::ServerBuilder builder;
  ConfigureServer(&builder);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             static_cast<int>(options.keepalive_time.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(options.keepalive_timeout.count()));
  // gRPC inflates a message before it looks at its length: 522 KB of gzip are 512 MiB.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetMaxSendMessageSize(options.max_message_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, options.max_metadata_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             Scaled(kHandshakeMs, options.time_scale));
  SetConnectionAge(options.max_connection_age, &builder);
  BoundMemory(options.rpc_memory_bytes, &builder);
  const ListenerOptions listener = ListenerOf(options);
  BALLAST_ASSIGN_OR_RETURN(listener_, Listener::Bind(listener, &builder));
  builder.RegisterAsyncGenericService(&service_);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int pollers = options.pollers > 0 ? options.pollers : std::max(1, cores / 2);
  for (int i = 0; i < pollers; ++i) queues_.push_back(builder.AddCompletionQueue());
  server_ = builder.BuildAndStart();
  BALLAST_CHECK(server_ != nullptr);  // It binds nothing itself.
  port_ = listener_->port();
  return absl::OkStatus();
}

absl::Status GenericServer::Start(const GenericServerOptions& options) {
  BALLAST_RETURN_IF_ERROR(FindRows());
  gate_ = options.gate;
  audit_ = options.audit;
  BALLAST_RETURN_IF_ERROR(Build(options));
  AddMetrics(options.metrics);
  parsing_ = std::make_unique<ParseBudget>(options.max_parse_bytes);
  directory_names_ = options.directory_names;
  pollers_ = std::make_unique<ThreadExecutor>("grpc", static_cast<int>(queues_.size()));
  BeginToAccept();
  listener_->Start();
  return absl::OkStatus();
}

void GenericServer::BeginToAccept() {
  for (auto& queue : queues_) {
    environments_.push_back(std::make_unique<CallEnvironment>());
    CallEnvironment* environment = environments_.back().get();
    environment->service = &service_;
    environment->queue = queue.get();
    environment->parsing = parsing_.get();
    environment->directory_names = &directory_names_;
    environment->accept = [this, environment](std::shared_ptr<GenericCall> call) {
      return Dispatch(environment, std::move(call));
    };
    if (audit_ != nullptr) {
      environment->ended = [this](const GenericCall& call, grpc::StatusCode code) {
        Audit(call, code);
      };
    }
    environment->released = [this] { OnReleased(); };
    AcceptNext(environment);
    pollers_->Post([this, raw = queue.get()] { PollUntilShutdown(raw, &arenas_); });
  }
}

void GenericServer::AcceptNext(const CallEnvironment* environment) {
  MutexLock lock(&mu_);
  if (stopping_) return;
  ++open_calls_;
  GenericCall::Accept(environment);
}

std::shared_ptr<StreamHandler> GenericServer::Dispatch(const CallEnvironment* environment,
                                                       std::shared_ptr<GenericCall> call) {
  AcceptNext(environment);
  const auto found = methods_.find(call->method());
  const bool known = found != methods_.end();
  call->CountIn(known ? found->second.metrics.get() : unknown_.get());
  return known ? Admit(found->second, std::move(call)) : nullptr;
}

// A refused call ends here: it has no handler, and nothing reads its message.
std::shared_ptr<StreamHandler> GenericServer::Admit(const Method& method,
                                                    std::shared_ptr<GenericCall> call) {
  if (gate_ == nullptr) return method.factory(std::move(call));
  Admission admission =
      gate_->Admit(*method.row, gate_->Looks(*method.row) ? call->caller_facts() : CallerFacts());
  call->SetCaller(std::move(admission.caller));
  if (!admission.status.ok()) {
    call->Finish(admission.status);
    return nullptr;
  }
  return method.factory(std::move(call));
}

void GenericServer::Audit(const GenericCall& call, grpc::StatusCode code) {
  const MethodRow* const row = FindMethod(call.method());
  const bool refused = IsRefusal(code);
  const bool order = row != nullptr && row->audited && call.caller().secured;
  if (row == nullptr || !(refused || order)) return;
  const std::string tenant = call.caller().identity.tenant;
  AuditLine line{.identity = call.caller().uri(),
                 .peer = call.peer(),
                 .method = call.method(),
                 .tenant = tenant,
                 .job = call.audited_job(),
                 .result = CodeName(code)};
  refused ? audit_->Refused(std::move(line)) : audit_->Order(std::move(line));
}

void GenericServer::OnReleased() {
  MutexLock lock(&mu_);
  --open_calls_;
  released_.NotifyAll();
}

void GenericServer::Shutdown(std::chrono::milliseconds grace) {
  if (server_ == nullptr) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  listener_->Stop();
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  {
    // No operation may start on a queue after its shutdown, so every call ends first.
    MutexLock lock(&mu_);
    while (open_calls_ > 0) {
      if (!released_.WaitFor(&mu_, kReleaseWarning)) {
        BALLAST_LOG(WARN, LogField("calls", open_calls_)) << "calls have not ended yet";
      }
    }
  }
  for (auto& queue : queues_) queue->Shutdown();
  pollers_->Shutdown();
  server_.reset();
  listener_.reset();
  environments_.clear();
  queues_.clear();
}

}  // namespace ballast::server
