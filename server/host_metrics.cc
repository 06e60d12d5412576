#include "server/host_metrics.h"

#include <chrono>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/host/memory_budget.h"

#include "server/peer/peer_sightings.h"

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

// Adds ballast_worker_busy_seconds_total and ballast_workers. `workers` must outlive the last
// scrape.
void AddWorkerMetrics(MetricRegistry* registry, const ThreadWorkerPool* workers) {
  registry->AddCallback("ballast_worker_busy_seconds_total", {}, [workers] {
    return std::chrono::duration<double>(workers->busy()).count();
  });
  registry->AddCallback("ballast_workers", {},
                        [workers] { return static_cast<double>(workers->threads()); });
}

bool IsWithin(const std::string& directory, absl::string_view path) {
  return !directory.empty() && absl::ConsumePrefix(&path, directory) &&
         (path.empty() || path.front() == '/');
}

// Whether a call for `path` goes to a disk of snapshots and exports. Without directories of their
// own they share the disk of the jobs.
bool IsForSnapshots(const config::v1::Storage& storage, const std::string& path) {
  return IsWithin(storage.snapshot_dir(), path) || IsWithin(storage.export_dir(), path);
}

}  // namespace

std::unique_ptr<DiskWatch> AddHostMetrics(ServerMetrics* metrics,
                                          const config::v1::ServerConfig& config,
                                          const ThreadWorkerPool* workers,
                                          std::shared_ptr<const CallsUnderWay> calls) {
  MetricRegistry* const registry = &metrics->registry();
  registry->AddCallback("ballast_memory_explained_bytes", {}, [metrics, &config] {
    const double planned = metrics->memory_planned()->value();
    return static_cast<double>(ExplainedBytes(config, static_cast<uint64_t>(planned)));
  });
  registry->AddCallback("ballast_jobs_limit", {},
                        [&config] { return static_cast<double>(config.limits().max_jobs()); });
  registry->AddCallback("ballast_cluster_info", {{"cluster", config.cluster().name()}},
                        [] { return 1.0; });
  AddWorkerMetrics(registry, workers);
  const std::string& data_dir = config.storage().data_dir();
  std::vector<DiskWatch::Directory> directories;
  if (!data_dir.empty()) {
    const std::string& snapshot_dir = config.storage().snapshot_dir();
    directories = {
        {"data", data_dir, "Rounds wait"},
        {"snapshot", snapshot_dir.empty() ? data_dir : snapshot_dir, "Snapshots and exports wait"}};
  }
  DiskWatchOptions options;
  options.oldest = [calls = std::move(calls),
                    storage = config.storage()](const std::string& label) {
    return calls->Oldest([&](const std::string& path) {
      return IsForSnapshots(storage, path) == (label == "snapshot");
    });
  };
  return DiskWatch::Start(directories, std::move(options), registry);
}

void AddPeerMetrics(MetricRegistry* registry, const PeerLinkConfig& link,
                    const std::shared_ptr<PeerClient>& peers) {
  registry->AddCallback("ballast_cluster_problems", {}, [sightings = link.sightings] {
    return static_cast<double>(sightings->Problems().size());
  });
  for (const ServerAddress& server : link.servers) {
    const uint32_t id = server.id;
    if (id == link.self) continue;
    registry->AddCallback(
        "ballast_peer_reachable", {{"peer", std::to_string(id)}},
        [id, weak = std::weak_ptr(peers)] { return Reachable(weak, id) ? 1.0 : 0.0; });
  }
}

}  // namespace ballast::server
