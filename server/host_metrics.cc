#include "server/host_metrics.h"

#include <chrono>

namespace ballast::server {
namespace {

bool Reachable(const std::weak_ptr<PeerClient>& peers, uint32_t id) {
  const std::shared_ptr<PeerClient> client = peers.lock();
  if (client == nullptr) return false;
  for (const PeerState& peer : client->Peers()) {
    if (peer.id == id) return peer.reachable;
  }
  return false;
}

// ballast_worker_busy_seconds_total and ballast_workers. `workers` outlives the last scrape.
void AddWorkerMetrics(MetricRegistry* registry, const ThreadWorkerPool* workers) {
  registry->AddCallback("ballast_worker_busy_seconds_total", {}, [workers] {
    return std::chrono::duration<double>(workers->busy()).count();
  });
  registry->AddCallback("ballast_workers", {},
                        [workers] { return static_cast<double>(workers->threads()); });
}

}  // namespace

std::unique_ptr<DiskWatch> AddHostMetrics(MetricRegistry* registry,
                                          const config::v1::ServerConfig& config,
                                          const ThreadWorkerPool* workers) {
  registry->AddCallback("ballast_cluster_info", {{"cluster", config.cluster().name()}},
                        [] { return 1.0; });
  AddWorkerMetrics(registry, workers);
  const std::string& data_dir = config.storage().data_dir();
  std::vector<DiskWatch::Directory> directories;
  if (!data_dir.empty()) {
    const std::string& snapshot_dir = config.storage().snapshot_dir();
    directories = {{"data", data_dir},
                   {"snapshot", snapshot_dir.empty() ? data_dir : snapshot_dir}};
  }
  return DiskWatch::Start(directories, {}, registry);
}

void AddPeerMetrics(MetricRegistry* registry, uint32_t self,
                    const std::vector<ServerAddress>& servers,
                    const std::shared_ptr<PeerClient>& peers) {
  for (const ServerAddress& server : servers) {
    const uint32_t id = server.id;
    if (id == self) continue;
    registry->AddCallback(
        "ballast_peer_reachable", {{"peer", std::to_string(id)}},
        [id, weak = std::weak_ptr(peers)] { return Reachable(weak, id) ? 1.0 : 0.0; });
  }
}

}  // namespace ballast::server
