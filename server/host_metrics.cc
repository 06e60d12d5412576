#include "server/host_metrics.h"

#include <sys/statvfs.h>

#include <chrono>

namespace ballast::server {
namespace {

struct DiskBytes {
  double free = 0;
  double size = 0;
};

// A directory that is still to be made is on the disk of the nearest one above it.
DiskBytes ReadDisk(std::string path) {
  struct statvfs disk {};
  while (statvfs(path.c_str(), &disk) != 0) {
    const size_t slash = path.rfind('/');
    if (path.empty() || path == "/" || path == ".") return {};
    path = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  }
  const auto block = static_cast<double>(disk.f_frsize);
  return {static_cast<double>(disk.f_bavail) * block, static_cast<double>(disk.f_blocks) * block};
}

bool Reachable(const std::weak_ptr<PeerClient>& peers, uint32_t id) {
  const std::shared_ptr<PeerClient> client = peers.lock();
  if (client == nullptr) return false;
  for (const PeerState& peer : client->Peers()) {
    if (peer.id == id) return peer.reachable;
  }
  return false;
}

// ballast_disk_free_bytes and ballast_disk_size_bytes of the disk that `path` is on, or is going to
// be on; `directory` is the label. 0 while the disk cannot be asked.
void AddDiskMetrics(MetricRegistry* registry, const std::string& directory,
                    const std::string& path) {
  registry->AddCallback("ballast_disk_free_bytes", {{"directory", directory}},
                        [path] { return ReadDisk(path).free; });
  registry->AddCallback("ballast_disk_size_bytes", {{"directory", directory}},
                        [path] { return ReadDisk(path).size; });
}

// ballast_tier_capacity_bytes{tier="nvme"}: the disk of the data directory; of none, 0.
void AddTierMetrics(MetricRegistry* registry, const std::string& data_dir) {
  registry->AddCallback("ballast_tier_capacity_bytes", {{"tier", "nvme"}},
                        [data_dir] { return data_dir.empty() ? 0 : ReadDisk(data_dir).size; });
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

void AddHostMetrics(MetricRegistry* registry, const config::v1::Storage& config,
                    const ThreadWorkerPool* workers) {
  const std::string& data_dir = config.data_dir();
  AddWorkerMetrics(registry, workers);
  AddTierMetrics(registry, data_dir);
  if (data_dir.empty()) return;
  AddDiskMetrics(registry, "data", data_dir);
  AddDiskMetrics(registry, "snapshot",
                 config.snapshot_dir().empty() ? data_dir : config.snapshot_dir());
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
