// How every gRPC connection of Ballast is set up: message sizes, flow control, keepalive and the
// TCP congestion control. The values are measured; see docs/decisions for the numbers.
// Comes from: nothing. Goes to: server/service (server and peer channels), client/cpp.
// Thread safety: any thread. The two functions that make settings also keep gRPC initialised until
// the process ends, because its shutdown may take 10 s.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/channel_arguments.h"

namespace ballast {

// Largest message either side accepts, frames of the largest chunk included.
inline constexpr int kMaxMessageBytes = 16 << 20;

// Arguments of a channel to a server. Each channel has its own connection. `time_scale` >= 1
// stretches the keepalive (2 s, then 1 s for the answer) for slow builds.
grpc::ChannelArguments MakeChannelArgs(double time_scale);

// A channel to the server at `address` ("host:port"), which connects with the first call. `args`:
// MakeChannelArgs, with the caller's own limits added. The short form is for tests: in plaintext.
// Clients take theirs from a ChannelFactory, servers from WatchedCredentials.
std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& address, const grpc::ChannelArguments& args,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials);
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, double time_scale);

// Those of a port, and of a channel, without security.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials();
std::shared_ptr<grpc::ChannelCredentials> PlainChannelCredentials();

// Applies the same settings to a server, before BuildAndStart, but for the keepalive's times, which
// are the caller's. Two servers cannot share a port.
void ConfigureServer(grpc::ServerBuilder* builder);

// True when the kernel's default congestion control is BBR, which halves the bandwidth of loopback
// connections; sockets that do not go through the functions above then suffer from it.
bool KernelUsesBbr();

// Congestion control of a TCP socket, for example "cubic"; "" when `fd` is none.
std::string CongestionControlOf(int fd);

// Switches off the deadlock detection that Debian builds into Abseil's mutexes, for the whole
// process: it slows gRPC down and aborts on lock orders in others' code. For programs; not for a
// library in another program's process.
void DisableLockOrderChecks();

}  // namespace ballast
