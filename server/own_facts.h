// OwnFacts: this server's report about itself to operators, from the moment its port is open.
// Comes from: Server, which learns it bit by bit. Goes to: the Admin service, the status pages.
// Thread safety: thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "ballast/config/v1/server.pb.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/metrics/metrics.h"
#include "common/metrics/process.h"
#include "server/host/disk_watch.h"
#include "server/host/memory_budget.h"
#include "server/peer/peer_client.h"
#include "server/peer/peer_sightings.h"
#include "server/service/admin_service.h"

namespace ballast::server {

class OwnFacts {
 public:
  // How long a Hello of another server counts; each server sends several per second.
  static constexpr std::chrono::nanoseconds kHelloCounts = std::chrono::seconds(10);

  // `hello_counts`: the same time, as scaled for this process.
  explicit OwnFacts(std::chrono::nanoseconds hello_counts)
      : sightings_(RealClock::Get(), hello_counts) {}

  // Sets all facts except peers, disks, file faults, Hellos, memory and time: Get or Fresh looks
  // those up.
  void Set(ServerFacts facts) {
    MutexLock lock(&mu_);
    facts_ = std::move(facts);
  }
  // `peers` knows which of them are reachable.
  void SetPeers(std::shared_ptr<PeerClient> peers) {
    MutexLock lock(&mu_);
    peers_ = std::move(peers);
  }
  // "host:port" of the admin port, as peers reach it.
  void SetAdmin(std::string admin) {
    MutexLock lock(&mu_);
    facts_.admin = std::move(admin);
  }
  // The server's state while it does not serve; empty: it serves.
  void SetInstead(std::string instead) {
    MutexLock lock(&mu_);
    facts_.instead = std::move(instead);
  }
  // Call before any other thread uses this object; all arguments outlive it.
  void Watch(DiskWatch* disks, ServerMetrics* metrics, const config::v1::ServerConfig* config) {
    disks_ = disks;
    metrics_ = metrics;
    config_ = config;
  }
  // Lists the files at fault; outlives this.
  void SetFaults(std::function<std::vector<std::string>()> faults) {
    MutexLock lock(&mu_);
    faults_ = std::move(faults);
  }
  std::string Admin() const {
    MutexLock lock(&mu_);
    return facts_.admin;
  }
  // Findings from the Hellos of other servers.
  PeerSightings* sightings() { return &sightings_; }
  ServerFacts Get() const {
    MutexLock lock(&mu_);
    ServerFacts facts = facts_;
    if (disks_ != nullptr) facts.disks = disks_->Last();
    if (peers_ != nullptr) facts.peers = peers_->Peers();
    if (faults_ != nullptr) facts.file_faults = faults_();
    facts.cluster_problems = sightings_.Problems();
    return facts;
  }
  // The same for a person, with memory, time and jobs. Not before Watch.
  ServerFacts Fresh() const {
    ServerFacts facts = Get();
    facts.resident_bytes = ResidentBytes();
    facts.up = RealClock::Get()->Now() - started_;
    facts.explained_bytes =
        ExplainedBytes(*config_, static_cast<uint64_t>(metrics_->memory_planned()->value()));
    facts.jobs_max = config_->limits().max_jobs();
    return facts;
  }

 private:
  const std::chrono::nanoseconds started_ = RealClock::Get()->Now();
  PeerSightings sightings_;
  mutable Mutex mu_;
  ServerFacts facts_ ABSL_GUARDED_BY(mu_);
  DiskWatch* disks_ = nullptr;  // Constant after Watch, like the next two.
  ServerMetrics* metrics_ = nullptr;
  const config::v1::ServerConfig* config_ = nullptr;
  std::function<std::vector<std::string>()> faults_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<PeerClient> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
