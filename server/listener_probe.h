// ListenerProbe: whether the gRPC port still takes new connections. A listener can die while open
// connections and the admin port work on (gRPC 1.51 stops to accept after it has run out of file
// descriptors once), so the server opens a connection to itself every few seconds and waits for the
// first bytes of HTTP/2.
// Comes from: server.cc. Goes to: ballast_listener_accepts. Thread safety: Start and Stop from one
// thread; the rest runs on the executor. Nothing here blocks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/executor.h"
#include "common/base/sync.h"
#include "common/metrics/metrics.h"

namespace ballast::server {

class ListenerProbe : public std::enable_shared_from_this<ListenerProbe> {
 public:
  // Probes `host`:`port` every `interval`, in which the port must answer. `host` is an IP address;
  // one that stands for all addresses is probed over loopback. Null for any other host: then there
  // is no series. `executor` outlives the last call of Stop; `registry` is not kept.
  static std::shared_ptr<ListenerProbe> Start(const std::string& host, int port,
                                              std::chrono::nanoseconds interval, Executor* executor,
                                              MetricRegistry* registry);
  ~ListenerProbe();
  ListenerProbe(const ListenerProbe&) = delete;
  ListenerProbe& operator=(const ListenerProbe&) = delete;

  // No further probe; the gauge keeps its value.
  void Stop();
  bool accepts() const { return accepts_->value() != 0; }
  // Connections that were looked at.
  uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }

 private:
  ListenerProbe(std::string host, int port, std::chrono::nanoseconds interval, Executor* executor)
      : host_(std::move(host)), port_(port), interval_(interval), executor_(executor) {}

  // What became of the connection of the last time; and the next one.
  void Beat();
  void Later();

  const std::string host_;
  const int port_;
  const std::chrono::nanoseconds interval_;
  Executor* const executor_;
  const std::shared_ptr<Gauge> accepts_ = std::make_shared<Gauge>();
  std::atomic<uint64_t> beats_{0};
  Mutex mu_;
  int socket_ ABSL_GUARDED_BY(mu_) = -1;  // -1: none could be opened
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ballast::server
