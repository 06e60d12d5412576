// ListenerProbe: whether the gRPC port still takes new connections. A listener can die while open
// connections and the admin port work on (gRPC's own stops to accept after it has run out of file
// descriptors once), so the server opens a connection to itself every few seconds, begins as a
// client does, and waits for an answer. To be closed is an answer: a port that is full is not dead.
// Comes from: server.cc. Goes to: ballast_listener_accepts, /healthz. Thread safety: Start and Stop
// from one thread; Health and the readers from any; the rest runs on the executor. Nothing here
// blocks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/metrics/metrics.h"
#include "common/threads/executor.h"

namespace ballast::server {

struct ProbeTarget {
  std::string host;  // an IP address; one that stands for all addresses is probed over loopback
  int port = 0;
  bool tls = false;  // whether the port expects TLS
};

class ListenerProbe : public std::enable_shared_from_this<ListenerProbe> {
 public:
  // Probes `target` five times in each `patience`, in which the port must answer. Null for a host
  // that is no address: then there is no series. `clock` and `executor` outlive the last call of
  // Stop; `registry` is not kept.
  static std::shared_ptr<ListenerProbe> Start(const ProbeTarget& target,
                                              std::chrono::nanoseconds patience, const Clock* clock,
                                              Executor* executor, MetricRegistry* registry);
  ~ListenerProbe();
  ListenerProbe(const ListenerProbe&) = delete;
  ListenerProbe& operator=(const ListenerProbe&) = delete;

  // No further probe; the gauge keeps its value.
  void Stop();
  // UNAVAILABLE when only a restart of this process helps: the port does not answer, or the
  // executor has run no task for thirty times `patience`. Says nothing of peers, disks or load.
  absl::Status Health() const;
  bool accepts() const { return accepts_->value() != 0; }
  // Looks at the connection that is open.
  uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }

 private:
  enum class Answer { kYes, kNo, kNotYet };

  ListenerProbe(ProbeTarget target, std::chrono::nanoseconds patience, const Clock* clock,
                Executor* executor);

  void Beat();
  void Later();
  void Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of a system call that failed.
  static Answer AnswerOf(int error);
  Answer Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ProbeTarget target_;
  const std::chrono::nanoseconds patience_;
  const Clock* const clock_;
  Executor* const executor_;
  const std::shared_ptr<Gauge> accepts_ = std::make_shared<Gauge>();
  std::atomic<uint64_t> beats_{0};
  std::atomic<int64_t> beat_at_ns_;
  Mutex mu_;
  int socket_ ABSL_GUARDED_BY(mu_) = -1;  // -1: none could be opened
  bool said_ ABSL_GUARDED_BY(mu_) = false;
  std::chrono::nanoseconds opened_at_ ABSL_GUARDED_BY(mu_){0};
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ballast::server
