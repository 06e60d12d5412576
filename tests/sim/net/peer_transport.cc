#include "tests/sim/net/peer_transport.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "proto/convert/methods.h"

namespace ballast::sim {
namespace {

// Between two attempts to connect.
constexpr Tick kConnectAgain = 50 * kMillisecond;

// gRPC hands a call to a server once. PeerClient repeats the others, so that one may arrive twice;
// it repeats a step of a snapshot only if the server has not read it.
bool RunsOnce(absl::string_view method) { return method == method::kPeerSnapshot; }

absl::Status NoAnswer() { return absl::DeadlineExceededError("no answer"); }

}  // namespace

struct SimPeerTransport::UnderWay {
  uint32_t to = 0;  // the server's index
  const char* method = nullptr;
  bool wait_for_ready = false;
  Tick give_up = 0;  // by this machine's clock
  Payload request;
  Done done;  // null once it has run
  uint32_t attempt = 0;
  // The life of the server's process that has the call and has not answered it; 0: none.
  uint64_t works_in = 0;
};

void SimPeerTransport::Call(const std::string& address, const server::PeerCallOptions& options,
                            const Payload& request, Done done) {
  if (world_->Life(node_) != life_) return;  // The process has ended inside its disk.
  if (stopped_) return done(absl::CancelledError("this server is shutting down"));
  const auto call = std::make_shared<UnderWay>();
  call->to = Network::IndexOf(address);
  call->method = options.method;
  call->wait_for_ready = options.wait_for_ready;
  call->give_up = world_->clock(node_)->Now() + static_cast<Tick>(options.timeout.count());
  call->request = request;
  call->done = std::move(done);
  calls_.push_back(call);
  Send(call);
}

Tick SimPeerTransport::Left(const CallPtr& call) const {
  const Tick now = world_->clock(node_)->Now();
  return call->give_up - std::min(call->give_up, now);
}

void SimPeerTransport::Send(const CallPtr& call) {
  const auto arrived = std::make_shared<bool>(false);
  network_->Ask(
      node_, call->to,
      [this, call, arrived, world = world_, node = network_->ServerNode(call->to)](
          StreamServer* server, const auto& at_caller) {
        if (std::exchange(*arrived, true) && RunsOnce(call->method)) return;
        call->works_in = world->Life(node);
        server->OnCall(call->method, call->request,
                       [this, call, at_caller](const absl::StatusOr<Payload>& told) {
                         call->works_in = 0;
                         at_caller([this, call, told] { Finish(call, told); });
                       });
      },
      [this, call](const absl::Status& status) { OnFailed(call, status); }, Left(call));
  if (Left(call) > kCallTimeout) AwaitSilence(call, call->attempt);
}

void SimPeerTransport::OnFailed(const CallPtr& call, const absl::Status& status) {
  const bool connects = absl::IsUnavailable(status) && call->wait_for_ready && call->done;
  if (!connects) return Finish(call, status);
  ++call->attempt;
  world_->clock(node_)->AfterInLife(std::min(kConnectAgain, Left(call)), life_, EventKind::kTimer,
                                    [this, call] {
                                      if (!call->done) return;
                                      Left(call) == 0 ? Finish(call, NoAnswer()) : Send(call);
                                    });
}

void SimPeerTransport::AwaitSilence(const CallPtr& call, uint32_t attempt) {
  world_->clock(node_)->AfterInLife(kCallTimeout, life_, EventKind::kTimer, [=, this] {
    if (!call->done || call->attempt != attempt) return;
    const bool works = call->works_in == world_->Life(network_->ServerNode(call->to));
    if (works) return AwaitSilence(call, attempt);
    Finish(call, absl::UnavailableError("the connection broke"));
  });
}

void SimPeerTransport::Finish(const CallPtr& call, const absl::StatusOr<Payload>& answer) {
  const Done done = std::exchange(call->done, nullptr);
  if (!done) return;
  std::erase(calls_, call);
  done(answer);
}

void SimPeerTransport::Stop() {
  stopped_ = true;
  for (const CallPtr& call : std::exchange(calls_, {})) {
    const Done done = std::exchange(call->done, nullptr);
    if (world_->Life(node_) == life_) done(absl::CancelledError("this server is shutting down"));
  }
}

}  // namespace ballast::sim
