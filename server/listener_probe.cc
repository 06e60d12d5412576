#include "server/listener_probe.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "common/base/socket_address.h"

namespace ballast::server {
namespace {

// Every side of an HTTP/2 connection begins with a SETTINGS frame, whose header has nine bytes.
constexpr size_t kFrameHeaderBytes = 9;

std::string HostToProbe(const std::string& host) {
  if (host == "localhost" || host == "0.0.0.0") return "127.0.0.1";
  return host == "::" ? "::1" : host;
}

bool HasAnswered(int connection) {
  char header[kFrameHeaderBytes];
  return recv(connection, header, sizeof(header), MSG_DONTWAIT) == sizeof(header);
}

}  // namespace

std::shared_ptr<ListenerProbe> ListenerProbe::Start(const std::string& host, int port,
                                                    std::chrono::nanoseconds interval,
                                                    Executor* executor, MetricRegistry* registry) {
  const std::string probed = HostToProbe(host);
  if (!IsIpAddress(probed)) return nullptr;
  const std::shared_ptr<ListenerProbe> probe(new ListenerProbe(probed, port, interval, executor));
  probe->accepts_->Set(1);  // The port was bound just now.
  registry->Add("ballast_listener_accepts", {}, std::shared_ptr<const Gauge>(probe->accepts_));
  {
    MutexLock lock(&probe->mu_);
    probe->socket_ = BeginConnect(probed, port);
  }
  probe->Later();
  return probe;
}

ListenerProbe::~ListenerProbe() { Stop(); }

void ListenerProbe::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  if (socket_ >= 0) close(std::exchange(socket_, -1));
}

void ListenerProbe::Later() {
  executor_->PostAfter(interval_, [weak = weak_from_this()] {
    if (const auto probe = weak.lock()) probe->Beat();
  });
}

void ListenerProbe::Beat() {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    accepts_->Set(socket_ >= 0 && HasAnswered(socket_) ? 1 : 0);
    beats_.fetch_add(1, std::memory_order_relaxed);
    if (socket_ >= 0) close(socket_);
    socket_ = BeginConnect(host_, port_);
  }
  Later();
}

}  // namespace ballast::server
