// Metrics that are read where they are when Prometheus asks: workers, peers and the cluster's name;
// and the watch over the disks.
// Comes from: server.cc. Goes to: MetricRegistry. Thread safety: stateless functions; what they add
// is read by the threads that serve /metrics, and takes no disk or network.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ballast/config/v1/server.pb.h"
#include "common/base/thread_worker_pool.h"
#include "common/metrics/metrics.h"
#include "server/host/disk_watch.h"
#include "server/peer/peer_client.h"

namespace ballast::server {

// The name of the cluster, what memory is explained, how many jobs may be, and everything below of
// `config`'s directories and `workers`. `calls`: what their disks have not ended yet. `metrics`
// outlives the watch, and `config` and `workers` the last scrape.
std::unique_ptr<DiskWatch> AddHostMetrics(ServerMetrics* metrics,
                                          const config::v1::ServerConfig& config,
                                          const ThreadWorkerPool* workers,
                                          std::shared_ptr<const CallsUnderWay> calls);

// ballast_peer_reachable of each other server of `link`, and ballast_cluster_problems.
void AddPeerMetrics(MetricRegistry* registry, const PeerLinkConfig& link,
                    const std::shared_ptr<PeerClient>& peers);

}  // namespace ballast::server
