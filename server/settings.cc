#include "server/settings.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace ballast::server {

DirectoryConfig Settings::Directory(std::vector<ServerAddress> servers,
                                    const MemoryBudgets& budgets, uint64_t incarnation) const {
  DirectoryConfig directory;
  directory.self = config_.cluster().id();
  directory.incarnation = incarnation;
  directory.servers = std::move(servers);
  directory.engine.self = config_.cluster().id();
  directory.engine.chunk_bytes = static_cast<uint32_t>(config_.rounds().chunk_bytes());
  directory.engine.checkpoint_rounds = config_.storage().checkpoint_rounds();
  directory.limits.slots_max = config_.limits().max_slots();
  directory.limits.tensors_max = config_.limits().max_tensors();
  directory.limits.groups_max = config_.limits().max_groups();
  directory.limits.name_bytes_max = config_.limits().max_name_bytes();
  directory.limits.rank_max = config_.limits().max_rank();
  directory.jobs_max = config_.limits().max_jobs();
  directory.memory_budget_bytes = budgets.all_bytes;
  directory.state_budget_bytes = budgets.state_bytes;
  directory.machine_memory_bytes = budgets.machine_bytes;
  directory.credit_bytes = static_cast<uint64_t>(config_.rounds().credit_bytes());
  directory.window_extents_min = config_.rounds().window_extents_min();
  directory.attach_timeout = ScaledMs(config_.timing().attach_timeout());
  directory.job_ttl = ScaledMs(config_.timing().job_ttl());
  // A hung process holds its stream until it is reported, and its seat until its lease ends.
  directory.takeover_wait =
      ScaledMs(config_.timing().lease()) + ScaledMs(config_.timing().report_after());
  directory.engine.open_timeout =
      std::chrono::ceil<std::chrono::milliseconds>(directory.engine.open_timeout * time_scale_);
  directory.engine.return_wait = ScaledMs(config_.timing().report_after());
  directory.engine.lease = ScaledMs(config_.timing().lease());
  return directory;
}

std::vector<ServerAddress> Settings::Servers(const std::vector<config::Peer>& peers,
                                             const std::string& own_address) const {
  std::vector<ServerAddress> servers;
  for (const config::Peer& peer : peers) servers.push_back({peer.id(), peer.address()});
  if (servers.empty()) servers.push_back({config_.cluster().id(), own_address});
  std::sort(servers.begin(), servers.end(),
            [](const ServerAddress& a, const ServerAddress& b) { return a.id < b.id; });
  return servers;
}

PeerLinkConfig Settings::PeerLink(std::vector<ServerAddress> servers, uint64_t incarnation) const {
  PeerLinkConfig link;
  link.self = config_.cluster().id();
  link.incarnation = incarnation;
  link.servers = std::move(servers);
  link.heartbeat_interval = Scaled(config_.timing().heartbeat_interval());
  link.report_after = Scaled(config_.timing().report_after());
  // Creating a durable job writes its whole log once; the trainers wait for the same time.
  link.create_timeout = Scaled(config_.timing().attach_timeout());
  link.max_message_bytes = static_cast<int>(config_.limits().max_control_message_bytes());
  return link;
}

GrpcPeerOptions Settings::PeerCalls() const {
  return {.max_message_bytes = static_cast<int>(config_.limits().max_control_message_bytes()),
          .time_scale = time_scale_};
}

GenericServerOptions Settings::Port(const MemoryBudgets& budgets) const {
  const auto& limits = config_.limits();
  GenericServerOptions options;
  options.address = config_.listen().address();
  options.max_message_bytes = static_cast<int>(
      std::max(limits.max_control_message_bytes(), limits.max_frame_bytes() + 4096));
  options.connections = {limits.max_connections(), limits.max_connections_per_address(),
                         limits.max_connections_per_second()};
  options.max_parse_bytes = static_cast<size_t>(limits.max_parse_bytes());
  options.rpc_memory_bytes = budgets.rpc_bytes;
  options.max_metadata_bytes = static_cast<int>(limits.max_metadata_bytes());
  options.max_streams_per_connection = static_cast<int>(limits.max_streams_per_connection());
  options.keepalive_time = ScaledMs(config_.timing().keepalive_time());
  options.keepalive_timeout = ScaledMs(config_.timing().keepalive_timeout());
  options.max_connection_age = ScaledMs(config_.listen().max_connection_age());
  options.time_scale = time_scale_;
  const auto& storage = config_.storage();
  options.directory_names = DirectoryNames({{storage.export_dir(), "storage.export_dir"},
                                            {storage.snapshot_dir(), "storage.snapshot_dir"},
                                            {storage.data_dir(), "storage.data_dir"}});
  return options;
}

TransportTerms Settings::Terms() const {
  TransportTerms terms;
  terms.chunk_bytes = static_cast<uint32_t>(config_.rounds().chunk_bytes());
  terms.credit_bytes = static_cast<uint64_t>(config_.rounds().credit_bytes());
  terms.heartbeat_ms =
      static_cast<uint32_t>(ScaledMs(config_.timing().heartbeat_interval()).count());
  terms.report_after_ms = static_cast<uint32_t>(ScaledMs(config_.timing().report_after()).count());
  return terms;
}

TrainerStreamConfig Settings::Stream() const {
  TrainerStreamConfig stream;
  stream.chunk_bytes = static_cast<uint32_t>(config_.rounds().chunk_bytes());
  stream.credit_bytes = static_cast<uint64_t>(config_.rounds().credit_bytes());
  stream.max_frame_bytes = static_cast<size_t>(config_.limits().max_frame_bytes());
  stream.max_control_bytes = static_cast<size_t>(config_.limits().max_control_message_bytes());
  stream.presence_bytes_max = config_.limits().max_tensors() / 8 + 1;
  stream.report_after = Scaled(config_.timing().report_after());
  stream.lease = Scaled(config_.timing().lease());
  stream.max_age = Scaled(config_.listen().max_connection_age());
  return stream;
}

int Settings::WorkerThreads() const {
  const uint32_t configured = config_.rounds().worker_threads();
  if (configured > 0) return static_cast<int>(configured);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace ballast::server
