#include "server/net/accept_loop.h"

#include <algorithm>
#include <utility>

#include "common/faults/failpoint.h"

namespace ballast::server {
namespace {

// How often the loop looks for connections that gRPC has closed; and how often at most while there
// are too many.
constexpr std::chrono::seconds kSweepEvery(1);
constexpr std::chrono::milliseconds kSweepSoonest(50);
// How long the port rests when no descriptor is left, not even the one in reserve.
constexpr std::chrono::milliseconds kRest(100);
// Connections accepted before the loop looks at those with bytes to read.
constexpr int kAcceptsAtOnce = 64;

AcceptOptions WithJudge(AcceptOptions options) {
  if (options.judge) return options;
  options.judge = [tls = options.tls](absl::string_view bytes) {
    return JudgeFirstBytes(bytes, tls);
  };
  return options;
}

// For tests: a dead listener of gRPC.
absl::Status ListenerLives() {
  BALLAST_FAILPOINT_RETURN("net.accept");
  return absl::OkStatus();
}

}  // namespace

AcceptLoop::AcceptLoop(AcceptOptions options, Sockets* sockets, const Clock* clock,
                       Executor* executor, MetricRegistry* registry,
                       std::function<void(int fd)> serve)
    : options_(WithJudge(std::move(options))),
      sockets_(sockets),
      clock_(clock),
      executor_(executor),
      serve_(std::move(serve)),
      refusals_(registry, options_.port),
      gate_(options_.limits) {
  if (registry == nullptr) return;
  registry->Add("ballast_connections", {}, std::shared_ptr<const Gauge>(open_gauge_));
  registry->Add("ballast_connections_accepted_total", {},
                std::shared_ptr<const Counter>(accepted_));
}

AcceptLoop::~AcceptLoop() { Stop(); }

void AcceptLoop::Start() {
  started_ = true;
  executor_->Post([this] { Run(); });
}

void AcceptLoop::Stop() {
  if (!std::exchange(started_, false)) return;
  stopping_ = true;
  sockets_->Wake();
  executor_->Shutdown();
}

void AcceptLoop::Run() {
  while (!stopping_) {
    const bool listening = clock_->Now() >= listen_again_;
    const Happened happened = sockets_->Wait(UntilNext(), listening);
    if (stopping_) break;
    PunishCut();
    if (happened.listener) AcceptSome();
    for (const int fd : happened.connections) Look(fd);
    if (clock_->Now() - swept_ >= kSweepEvery) Sweep();
    open_gauge_->Set(static_cast<double>(gate_.open()));
  }
  for (const auto& [fd, connection] : connections_) {
    if (!connection.served) sockets_->Close(fd);
  }
}

std::chrono::nanoseconds AcceptLoop::UntilNext() const {
  const std::chrono::nanoseconds now = clock_->Now();
  std::chrono::nanoseconds next = kSweepEvery;
  if (listen_again_ > now) next = listen_again_ - now;
  return next;
}

void AcceptLoop::AcceptSome() {
  if (options_.port.empty() && !ListenerLives().ok()) {
    listen_again_ = clock_->Now() + kRest;
    return;
  }
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    const Incoming incoming = sockets_->Accept();
    if (incoming.result == Accepted::kNone) return;
    if (incoming.result == Accepted::kConnection) {
      Take(incoming);
    } else if (sockets_->Refuse()) {
      refusals_.Count(ConnectionRefusal::kDescriptors, "", clock_->Now());
    } else {
      listen_again_ = clock_->Now() + kRest;
      return;
    }
  }
}

std::optional<ConnectionRefusal> AcceptLoop::Admit(const std::string& address) {
  const std::chrono::nanoseconds now = clock_->Now();
  const std::optional<ConnectionRefusal> refusal = gate_.Admit(address, now);
  const bool by_count =
      refusal == ConnectionRefusal::kFull || refusal == ConnectionRefusal::kAddress;
  if (!by_count || now - swept_ < kSweepSoonest) return refusal;
  Sweep();
  return gate_.Admit(address, now);
}

void AcceptLoop::Take(const Incoming& incoming) {
  // gRPC has closed a connection of this descriptor, and no sweep has seen it yet.
  if (const auto old = connections_.find(incoming.fd); old != connections_.end()) {
    PunishCut();  // gRPC closes a connection only after Cut() has said why.
    Forget(old);
  }
  const std::optional<ConnectionRefusal> refusal =
      incoming.fd >= options_.descriptor_end
          ? std::optional<ConnectionRefusal>(ConnectionRefusal::kDescriptors)
          : Admit(incoming.address);
  if (refusal.has_value()) {
    sockets_->Close(incoming.fd);
    refusals_.Count(*refusal, incoming.address, clock_->Now());
    return;
  }
  connections_[incoming.fd] = {incoming.address, sockets_->Identity(incoming.fd), false, false,
                               clock_->Now() + options_.first_bytes};
  sockets_->Watch(incoming.fd);
  Look(incoming.fd);
}

void AcceptLoop::Look(int fd) {
  const auto found = connections_.find(fd);
  if (found == connections_.end() || found->second.served) return;
  bool ended = false;
  const std::string bytes = sockets_->Peek(fd, options_.judged_bytes, &ended);
  const FirstBytes first = options_.judge(bytes);
  if (first.opening == Opening::kBad) {
    CloseUnserved(found, first.refusal);
  } else if (ended) {
    CloseUnserved(found, ConnectionRefusal::kLeft);
  } else if (first.opening == Opening::kGood) {
    found->second.served = true;
    sockets_->Unwatch(fd);
    accepted_->Add();
    serve_(fd);
  }
}

void AcceptLoop::Forget(Connections::iterator connection) {
  gate_.Release(connection->second.address);
  connections_.erase(connection);
}

void AcceptLoop::CloseUnserved(Connections::iterator connection, ConnectionRefusal refusal) {
  sockets_->Close(connection->first);
  refusals_.Count(refusal, connection->second.address, clock_->Now());
  Forget(connection);
}

void AcceptLoop::Cut(int fd, uint64_t identity, ConnectionRefusal why) {
  {
    MutexLock lock(&cut_mu_);
    cut_.push_back({fd, identity, why});
  }
  sockets_->Wake();
}

void AcceptLoop::PunishCut() {
  std::vector<CutOne> cut;
  {
    MutexLock lock(&cut_mu_);
    cut.swap(cut_);
  }
  for (const CutOne& one : cut) {
    const auto found = connections_.find(one.fd);
    if (found == connections_.end() || found->second.identity != one.identity) continue;
    if (std::exchange(found->second.cut, true)) continue;  // A read of gRPC may fail twice.
    refusals_.Count(one.why, found->second.address, clock_->Now());
    gate_.Punish(found->second.address, clock_->Now());
  }
}

void AcceptLoop::Sweep() {
  swept_ = clock_->Now();
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto connection = it++;
    const auto& [address, identity, served, cut, deadline] = connection->second;
    if (served && sockets_->Identity(connection->first) != identity) {
      PunishCut();
      Forget(connection);
    } else if (!served && deadline <= swept_) {
      CloseUnserved(connection, ConnectionRefusal::kSilent);
    }
  }
  gate_.Forget(swept_);
}

}  // namespace ballast::server
