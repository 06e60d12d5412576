// AcceptLoop: accepts connections, on one thread, in place of gRPC's listener, which stops for good
// once the process has run out of descriptors (CVE-2023-4785, in gRPC before 1.53.2).
// A connection is handed on when its first bytes are those of a client. It is closed when there are
// too many, when it comes too fast, speaks something else, or says nothing.
// Comes from: GenericServer, AdminServer. Goes to: gRPC or the admin pages, by `serve`.
// Thread safety: Start and Stop from one thread, the owner's; Cut(), open() and accepted() may be
// called by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/metrics/registry.h"
#include "common/threads/executor.h"
#include "server/net/connection_gate.h"
#include "server/net/first_bytes.h"
#include "server/net/refusal_log.h"
#include "server/net/sockets.h"

namespace ballast::server {

struct AcceptOptions {
  ConnectionLimits limits;
  bool tls = false;
  // Judges the first bytes of a connection, at most `judged_bytes`; null: as those of gRPC
  // (JudgeFirstBytes).
  std::function<FirstBytes(absl::string_view bytes)> judge;
  size_t judged_bytes = kFirstBytesMax;
  // Owner of the connections, for the log; empty: gRPC.
  std::string port;
  // How long a connection may take to say its first bytes.
  std::chrono::nanoseconds first_bytes = std::chrono::seconds(5);
  // A connection whose descriptor is not below this one is closed: the rest is for files. The
  // kernel gives the lowest free one.
  int descriptor_end = 1 << 30;
};

class AcceptLoop {
 public:
  // `serve` gets each connection, whose descriptor is its own from then on, on the loop's thread,
  // and must not block. `sockets` is the loop's from Start to Stop; `clock` and `executor` outlive
  // the loop, and one thread of `executor` belongs to it. `registry` may be null.
  AcceptLoop(AcceptOptions options, Sockets* sockets, const Clock* clock, Executor* executor,
             MetricRegistry* registry, std::function<void(int fd)> serve);
  // As Stop().
  ~AcceptLoop();
  AcceptLoop(const AcceptLoop&) = delete;
  AcceptLoop& operator=(const AcceptLoop&) = delete;

  void Start();
  // Any thread: the connection of this descriptor and identity is cut because of its bytes.
  void Cut(int fd, uint64_t identity, ConnectionRefusal why);
  // Accepts nothing any more and closes silent connections; those handed to gRPC stay open.
  // Shuts the executor down. Idempotent.
  void Stop();

  size_t open() const { return static_cast<size_t>(open_gauge_->value()); }
  uint64_t accepted() const { return accepted_->value(); }
  // To be called once the loop has stopped, or by its own thread.
  const RefusalLog& refusals() const { return refusals_; }

 private:
  struct Connection {
    std::string address;
    uint64_t identity = 0;
    bool served = false;
    bool cut = false;                      // and counted
    std::chrono::nanoseconds deadline{0};  // of its first bytes
  };
  using Connections = std::map<int, Connection>;

  void Run();
  void AcceptSome();
  void Take(const Incoming& incoming);
  // As ConnectionGate::Admit, after another look at the open connections when there are too many.
  std::optional<ConnectionRefusal> Admit(const std::string& address);
  // Serves or closes the connection by its first bytes, or leaves it.
  void Look(int fd);
  void CloseUnserved(Connections::iterator connection, ConnectionRefusal refusal);
  void Forget(Connections::iterator connection);
  // Counts a cut connection, and has its address wait.
  void PunishCut();
  // Forgets connections that gRPC closed, and closes those silent for too long.
  void Sweep();
  std::chrono::nanoseconds UntilNext() const;

  const AcceptOptions options_;
  Sockets* const sockets_;
  const Clock* const clock_;
  Executor* const executor_;
  const std::function<void(int fd)> serve_;
  const std::shared_ptr<Gauge> open_gauge_ = std::make_shared<Gauge>();
  const std::shared_ptr<Counter> accepted_ = std::make_shared<Counter>();
  std::atomic<bool> stopping_{false};
  bool started_ = false;

  struct CutOne {
    int fd;
    uint64_t identity;
    ConnectionRefusal why;
  };
  Mutex cut_mu_;
  std::vector<CutOne> cut_ ABSL_GUARDED_BY(cut_mu_);

  // Used on the loop's thread.
  RefusalLog refusals_;
  ConnectionGate gate_;
  Connections connections_;
  std::chrono::nanoseconds swept_{0};
  std::chrono::nanoseconds listen_again_{0};
};

}  // namespace ballast::server
