// Settings for the server's rooms, from its configuration: limits, budgets and times.
// Comes from: server.cc. Goes to: server/directory, server/service.
// Thread safety: immutable.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "ballast/config/v1/server.pb.h"
#include "server/config/load.h"
#include "server/convert/control_convert.h"
#include "server/directory/job_directory.h"
#include "server/host/memory_budget.h"
#include "server/peer/peer_client.h"
#include "server/rpc/generic_server.h"
#include "server/rpc/grpc_peer_transport.h"
#include "server/service/trainer_stream.h"

namespace ballast::server {

class Settings {
 public:
  // `config` outlives this. `time_scale` stretches every time in `timing`.
  Settings(const config::v1::ServerConfig& config, double time_scale)
      : config_(config), time_scale_(time_scale) {}

  // A time of the configuration (nanoseconds there), scaled.
  std::chrono::nanoseconds Scaled(int64_t ns) const {
    return std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(ns) * time_scale_));
  }
  // The same, rounded up to milliseconds.
  std::chrono::milliseconds ScaledMs(int64_t ns) const {
    return std::chrono::ceil<std::chrono::milliseconds>(Scaled(ns));
  }

  // Settings for the directory of jobs. `servers`: all of the cluster, ascending.
  DirectoryConfig Directory(std::vector<ServerAddress> servers, const MemoryBudgets& budgets,
                            uint64_t incarnation) const;
  // All servers of the cluster, ascending; without `peers` the one at `own_address`.
  std::vector<ServerAddress> Servers(const std::vector<config::Peer>& peers,
                                     const std::string& own_address) const;
  // Settings for calls to other servers, and for their transport.
  PeerLinkConfig PeerLink(std::vector<ServerAddress> servers, uint64_t incarnation) const;
  GrpcPeerOptions PeerCalls() const;
  // Settings of the gRPC port, and the limits for strangers; without credentials.
  GenericServerOptions Port(const MemoryBudgets& budgets) const;
  // The terms of its streams that a trainer gets when it attaches, and how the server serves them.
  TransportTerms Terms() const;
  TrainerStreamConfig Stream() const;
  // Number of threads that step: by default the machine's number of processors.
  int WorkerThreads() const;

 private:
  const config::v1::ServerConfig& config_;
  const double time_scale_;
};

}  // namespace ballast::server
