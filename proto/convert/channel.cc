#include "proto/convert/channel.h"

#include <grpc/compression.h>
#include <grpc/grpc.h>
#include <grpc/support/sync.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "common/system/congestion_control.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/impl/codegen/sync.h"  // declares absl's deadlock detection, which gRPC uses
#include "grpcpp/impl/server_builder_option.h"
#include "grpcpp/impl/server_builder_plugin.h"

#ifndef BALLAST_SOCKET_MUTATOR
#define BALLAST_SOCKET_MUTATOR 1
#endif

#if BALLAST_SOCKET_MUTATOR
// gRPC exports these functions but keeps their header private (src/core/lib/iomgr/socket_mutator.h
// of 1.51): the two structures are repeated here. A gRPC with another layout needs
// -DBALLAST_SOCKET_MUTATOR=OFF.
struct grpc_mutate_socket_info;
struct grpc_socket_mutator_vtable {
  bool (*mutate_fd)(int fd, grpc_socket_mutator* mutator);
  int (*compare)(grpc_socket_mutator* a, grpc_socket_mutator* b);
  void (*destroy)(grpc_socket_mutator* mutator);
  bool (*mutate_fd_2)(const grpc_mutate_socket_info* info, grpc_socket_mutator* mutator);
};
struct grpc_socket_mutator {
  const grpc_socket_mutator_vtable* vtable;
  gpr_refcount refcount;
};
void grpc_socket_mutator_init(grpc_socket_mutator* mutator,
                              const grpc_socket_mutator_vtable* vtable);
#endif

namespace ballast {
namespace {

constexpr int kKeepaliveMs = 2000;
constexpr int kKeepaliveTimeoutMs = 1000;
// A peer that pings more often than this without data in between is taken for hostile; the pings of
// the BDP probe follow data.
constexpr int kMinPingIntervalMs = 1000;
constexpr int kMaxHttp2FrameBytes = 1 << 20;
// Bytes that a stream may have under way beyond the receiver's requests, on a new connection. From
// then on gRPC's BDP probe sets the windows of stream and connection by the bytes that arrive
// within a round trip. Without the probe the connection's window stays at HTTP/2's 64 KiB, whatever
// this says, and each chunk waits for a round trip (docs/decisions/017-what-bounds-a-round.md). A
// trainer's push is bounded by its credit as well; weights on their way down by windows only.
constexpr int kLookaheadBytes = 2 << 20;
constexpr int kFirstReconnectMs = 100;
constexpr int kMaxReconnectMs = 1000;
constexpr int kConnectTimeoutMs = 5000;

#if BALLAST_SOCKET_MUTATOR

bool MutateSocket(int fd, grpc_socket_mutator*) {
  ChooseCongestionControl(fd);
  return true;
}

int CompareMutators(grpc_socket_mutator*, grpc_socket_mutator*) { return 0; }
void DestroyMutator(grpc_socket_mutator* mutator) { delete mutator; }

constexpr grpc_socket_mutator_vtable kMutatorVtable = {MutateSocket, CompareMutators,
                                                       DestroyMutator, nullptr};

void SetSocketMutator(grpc::ChannelArguments* args) {
  auto* mutator = new grpc_socket_mutator;  // gRPC counts references and calls DestroyMutator.
  grpc_socket_mutator_init(mutator, &kMutatorVtable);
  args->SetSocketMutator(mutator);
}

#else

void SetSocketMutator(grpc::ChannelArguments*) {}

#endif

int Scaled(int ms, double time_scale) { return static_cast<int>(ms * time_scale); }

// gRPC shuts down with its last user and then joins a poller of its own that may sleep for 10 s
// (seen with 1.51 after blocked writes). So it stays initialised until the process ends.
void KeepGrpcInitialized() {
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  static_cast<void>(kept);
}

// Settings that both ends share.
void SetCommonArgs(grpc::ChannelArguments* args) {
  KeepGrpcInitialized();
  args->SetMaxReceiveMessageSize(kMaxMessageBytes);
  args->SetMaxSendMessageSize(kMaxMessageBytes);
  args->SetCompressionAlgorithm(GRPC_COMPRESS_NONE);
  args->SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxHttp2FrameBytes);
  args->SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookaheadBytes);
  args->SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  args->SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args->SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  SetSocketMutator(args);
}

class ServerSettings : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* args) override {
    SetCommonArgs(args);
    args->SetInt(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
    args->SetInt(GRPC_ARG_ALLOW_REUSEPORT, 0);
  }

  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>*) override {}
};

}  // namespace

grpc::ChannelArguments MakeChannelArgs(double time_scale) {
  grpc::ChannelArguments args;
  SetCommonArgs(&args);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Scaled(kKeepaliveMs, time_scale));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Scaled(kKeepaliveTimeoutMs, time_scale));
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // State servers are never reached through a web proxy, which the environment of a build machine
  // may name.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Scaled(kConnectTimeoutMs, time_scale));
  return args;
}

std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& address, const grpc::ChannelArguments& args,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  return grpc::CreateCustomChannel(address, credentials, args);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, double time_scale) {
  return MakeChannel(address, MakeChannelArgs(time_scale), PlainChannelCredentials());
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials() {
  return grpc::InsecureServerCredentials();
}

std::shared_ptr<grpc::ChannelCredentials> PlainChannelCredentials() {
  return grpc::InsecureChannelCredentials();
}

void ConfigureServer(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
  builder->SetOption(std::make_unique<ServerSettings>());
}

bool KernelUsesBbr() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_congestion_control");
  std::string name;
  return file >> name && name == "bbr";
}

std::string CongestionControlOf(int fd) {
  char name[16] = {};
  socklen_t bytes = sizeof(name);
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) != 0) return "";
  return std::string(name, strnlen(name, sizeof(name)));
}

void DisableLockOrderChecks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace ballast
