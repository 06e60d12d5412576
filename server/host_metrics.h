// Metrics read at scrape time (workers, peers and the cluster's name) and the disk watch.
// Comes from: server.cc. Goes to: MetricRegistry. Thread safety: stateless functions; the added
// series are read by the threads that serve /metrics, and touch no disk or network.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ballast/config/v1/server.pb.h"
#include "common/metrics/metrics.h"
#include "common/threads/thread_worker_pool.h"
#include "server/host/disk_watch.h"
#include "server/peer/peer_client.h"

namespace ballast::server {

// Adds the cluster's name, the explained memory, the limit of jobs, and all metrics below for
// `config`'s directories and `workers`. `calls`: unfinished calls to their disks. `metrics` must
// outlive the watch, and `config` and `workers` the last scrape.
std::unique_ptr<DiskWatch> AddHostMetrics(ServerMetrics* metrics,
                                          const config::v1::ServerConfig& config,
                                          const ThreadWorkerPool* workers,
                                          std::shared_ptr<const CallsUnderWay> calls);

// Adds ballast_peer_reachable for each other server of `link`, and ballast_cluster_problems.
void AddPeerMetrics(MetricRegistry* registry, const PeerLinkConfig& link,
                    const std::shared_ptr<PeerClient>& peers);

}  // namespace ballast::server
