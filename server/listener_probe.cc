#include "server/listener_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ballast::server {
namespace {

// Every side of an HTTP/2 connection begins with a SETTINGS frame, whose header has nine bytes.
constexpr size_t kFrameHeaderBytes = 9;

std::string HostToProbe(const std::string& host) {
  if (host == "localhost" || host == "0.0.0.0") return "127.0.0.1";
  return host == "::" ? "::1" : host;
}

bool IsIp(const std::string& host) {
  in6_addr ignored{};
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

// A connection that begins; -1 when it cannot.
int Connect(const std::string& host, int port) {
  sockaddr_storage address{};
  socklen_t length = 0;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&address);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    length = sizeof(*v4);
  } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    length = sizeof(*v6);
  }
  const int made = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) return -1;
  const int begun = connect(made, reinterpret_cast<const sockaddr*>(&address), length);
  if (begun == 0 || errno == EINPROGRESS) return made;
  close(made);
  return -1;
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
  if (!IsIp(probed)) return nullptr;
  const std::shared_ptr<ListenerProbe> probe(new ListenerProbe(probed, port, interval, executor));
  probe->accepts_->Set(1);  // The port was bound just now.
  registry->Add("ballast_listener_accepts", {}, std::shared_ptr<const Gauge>(probe->accepts_));
  {
    MutexLock lock(&probe->mu_);
    probe->socket_ = Connect(probed, port);
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
    socket_ = Connect(host_, port_);
  }
  Later();
}

}  // namespace ballast::server
