#include "tests/sim/net/network.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/net/wire_trace.h"

namespace ballast::sim {
namespace {

constexpr Tick kVeryLateMax = 300 * kMillisecond;

absl::Status Unavailable(const char* why) { return absl::UnavailableError(why); }

}  // namespace

Network::Network(World* world, const Swarm* swarm)
    : world_(world),
      swarm_(swarm),
      nodes_(swarm->shape.servers + swarm->processes_max()),
      cut_until_(nodes_ * nodes_, 0) {}

Tick Network::Latency() {
  const Tick full = swarm_->pace.network;
  Tick latency = world_->random().Between(full / 4, full);
  if (OneIn(swarm_->faults.late_one_in)) {
    world_->Met(Cover::kMessageLate);
    latency += world_->random().Below(kVeryLateMax);
  }
  return latency;
}

Tick Network::StreamArrival(NodeId from, NodeId to, Tick* clear) {
  const Tick sent = std::max(world_->now(), *CutUntil(from, to));
  *clear = std::max(*clear + 1, sent + Latency());
  return *clear - world_->now();
}

std::optional<Tick> Network::CallDelay(NodeId from, NodeId to) {
  const Tick latency = Latency();
  if (*CutUntil(from, to) > world_->now()) return std::nullopt;
  if (!loses_ || !OneIn(swarm_->faults.lose_one_in)) return latency;
  world_->Met(Cover::kCallLost);
  return std::nullopt;
}

void Network::Cut(NodeId from, NodeId to, Tick until) {
  *CutUntil(from, to) = until;
  for (const StreamPtr& stream : streams_) AwaitKeepalive(stream);
}

void Network::Paused() {
  for (const StreamPtr& stream : streams_) AwaitKeepalive(stream);
}

void Network::HealAll() { std::fill(cut_until_.begin(), cut_until_.end(), 0); }

bool Network::Reaches(NodeId from, NodeId to) const {
  const Tick cut = std::max(cut_until_[from * nodes_ + to], cut_until_[to * nodes_ + from]);
  return cut <= world_->now();
}

// --- Streams ------------------------------------------------------------------------------------

std::string Network::Address(uint32_t index) { return absl::StrCat("server:", index); }

uint32_t Network::IndexOf(const std::string& address) {
  return static_cast<uint32_t>(std::stoul(address.substr(address.find(':') + 1)));
}

StreamPtr Network::Open(uint32_t process, uint32_t server, StreamClient* client, const char* method,
                        Tick timeout) {
  auto stream = std::make_shared<Stream>();
  stream->method = method;
  stream->timeout = timeout;
  stream->process = process;
  stream->server = server;
  stream->client = client;
  stream->server_life = world_->Life(ServerNode(server));
  std::erase_if(streams_, [](const StreamPtr& s) { return !s->client_open && !s->server_open; });
  streams_.push_back(stream);
  if (!servers_[server]->Serves()) {
    stream->refused = true;
    stream->server_open = false;
    const Tick there = StreamArrival(TrainerNode(process), ServerNode(server), &stream->up_clear);
    CloseClientEnd(stream, there + Latency(), Unavailable("connection refused"));
    return stream;
  }
  AtServer(stream, EventKind::kMessage, [this, stream] {
    if (stream->timeout > 0) AwaitDeadline(stream);
    servers_[stream->server]->OnOpen(stream);
  });
  AwaitKeepalive(stream);
  return stream;
}

void Network::AwaitDeadline(const StreamPtr& stream) {
  world_->clock(ServerNode(stream->server))
      ->AfterInLife(stream->timeout, stream->server_life, EventKind::kTimer, [this, stream] {
        CloseServerEnd(stream, 0);
        CloseClientEnd(stream, Latency(), absl::DeadlineExceededError("no answer in time"));
      });
}

bool Network::Loses(const StreamPtr& stream) {
  if (stream->timeout == 0 || stream->lost) return stream->lost;
  if (!loses_ || !OneIn(swarm_->faults.lose_one_in)) return false;
  world_->Met(Cover::kCallLost);
  stream->lost = true;
  AwaitKeepalive(stream);
  return true;
}

bool Network::Silent(const StreamPtr& stream) {
  const NodeId client = TrainerNode(stream->process), server = ServerNode(stream->server);
  const bool stands = world_->paused(client) || world_->paused(server);
  return stream->lost || stands || !Reaches(client, server);
}

void Network::AwaitKeepalive(const StreamPtr& stream) {
  if (stream->timeout == 0 || !Silent(stream)) return;
  world_->After(kCallTimeout, kNobody, EventKind::kTimer, [this, stream] {
    if (Silent(stream)) Break(stream);
  });
}

void Network::MaybeBreak(const StreamPtr& stream) {
  if (OneIn(swarm_->faults.break_one_in)) Break(stream);
}

void Network::AtServer(const StreamPtr& stream, EventKind kind, std::function<void()> action) {
  const NodeId server = ServerNode(stream->server);
  const Tick delay = StreamArrival(TrainerNode(stream->process), server, &stream->up_clear);
  world_->AfterInLife(delay, server, stream->server_life, kind,
                      [stream, action = std::move(action)] {
                        if (stream->server_open) action();
                      });
}

void Network::SendUp(const StreamPtr& stream, const Payload& message) {
  if (!stream->client_open || Loses(stream)) return;
  MaybeBreak(stream);
  AtServer(stream, EventKind::kMessage, [this, stream, message] {
    TraceUp(world_, ServerNode(stream->server), *stream, message);
    stream->server_end->OnUp(message);
  });
}

void Network::HalfClose(const StreamPtr& stream) {
  if (!stream->client_open || stream->lost) return;
  AtServer(stream, EventKind::kClosed, [stream] { stream->server_end->OnUpEnded(); });
}

void Network::SendDown(const StreamPtr& stream, const Payload& message) {
  if (!stream->server_open || Loses(stream)) return;
  MaybeBreak(stream);
  const Tick delay =
      StreamArrival(ServerNode(stream->server), TrainerNode(stream->process), &stream->down_clear);
  world_->After(delay, TrainerNode(stream->process), EventKind::kMessage, [this, stream, message] {
    if (!stream->client_open) return;
    TraceDown(world_, TrainerNode(stream->process), *stream, message);
    stream->client->OnDown(message);
  });
}

void Network::CloseClientEnd(const StreamPtr& stream, Tick delay, const absl::Status& status) {
  world_->After(delay, TrainerNode(stream->process), EventKind::kClosed, [this, stream, status] {
    if (!std::exchange(stream->client_open, false)) return;
    if (world_->tracing()) {
      world_->Trace(TrainerNode(stream->process),
                    absl::StrCat("stream to server index ", stream->server,
                                 " ended: ", std::string(status.message())));
    }
    stream->client->OnDownClosed(status);
  });
}

void Network::CloseServerEnd(const StreamPtr& stream, Tick delay) {
  world_->AfterInLife(delay, ServerNode(stream->server), stream->server_life, EventKind::kClosed,
                      [stream] {
                        if (!std::exchange(stream->server_open, false)) return;
                        if (stream->server_end != nullptr) stream->server_end->OnUpClosed();
                      });
}

void Network::CloseUp(const StreamPtr& stream) {
  if (!std::exchange(stream->client_open, false)) return;
  if (stream->lost) return;  // The server's end notices by its keepalive.
  // A reset may overtake sent data.
  const Tick cut = *CutUntil(TrainerNode(stream->process), ServerNode(stream->server));
  const Tick healed = std::max(world_->now(), cut) - world_->now();
  CloseServerEnd(stream, healed + Latency());
}

void Network::CloseDown(const StreamPtr& stream, const absl::Status& status) {
  if (!stream->server_open) return;
  const Tick delay =
      StreamArrival(ServerNode(stream->server), TrainerNode(stream->process), &stream->down_clear);
  stream->server_open = false;
  if (!stream->lost) CloseClientEnd(stream, delay, status);
}

void Network::Reset(const StreamPtr& stream) {
  CloseClientEnd(stream, Latency(), absl::CancelledError("the server broke the stream off"));
  CloseServerEnd(stream, 0);
}

void Network::Break(const StreamPtr& stream) {
  world_->Met(Cover::kStreamBroke);
  CloseClientEnd(stream, world_->random().Below(4 * swarm_->pace.network + 1),
                 Unavailable("the connection broke"));
  CloseServerEnd(stream, world_->random().Below(4 * swarm_->pace.network + 1));
}

void Network::EndProcess(uint32_t server, bool announced) {
  for (const StreamPtr& stream : streams_) {
    if (stream->server != server || !stream->server_open) continue;
    stream->server_open = false;
    const NodeId from = ServerNode(server), to = TrainerNode(stream->process);
    // With a cut or without power nobody says that the connection is gone; silence does.
    const bool heard = announced && *CutUntil(from, to) <= world_->now();
    if (!heard && stream->timeout == 0) continue;
    CloseClientEnd(stream, heard ? Latency() : kCallTimeout,
                   Unavailable("connection reset by peer"));
  }
}

void Network::EndTrainer(uint32_t process, bool announced) {
  for (const StreamPtr& stream : streams_) {
    if (stream->process != process || !std::exchange(stream->client_open, false)) continue;
    const NodeId from = TrainerNode(process), to = ServerNode(stream->server);
    const bool heard = announced && *CutUntil(from, to) <= world_->now();
    if (heard || stream->timeout > 0) CloseServerEnd(stream, heard ? Latency() : kCallTimeout);
  }
}

// --- Calls --------------------------------------------------------------------------------------

void Network::Ask(NodeId from, uint32_t to, const Question& question,
                  const std::function<void(const absl::Status&)>& failed, Tick timeout) {
  const auto over = std::make_shared<bool>(false);
  const auto fail = [over, failed](const absl::Status& status) {
    if (!std::exchange(*over, true)) failed(status);
  };
  const NodeId there = ServerNode(to);
  const uint64_t life = world_->Life(from);
  world_->clock(from)->After(timeout, EventKind::kTimer,
                             [fail] { fail(absl::DeadlineExceededError("no answer")); });
  const std::optional<Tick> delay = CallDelay(from, there);
  if (!delay.has_value()) return;
  if (!servers_[to]->Serves()) {
    world_->After(*delay + Latency(), from, EventKind::kVoteAnswer,
                  [fail] { fail(Unavailable("connection refused")); });
    return;
  }
  const auto answer = [this, over, from, there, life](const AtCaller& at_caller) {
    const std::optional<Tick> back = CallDelay(there, from);
    if (!back.has_value()) return;
    world_->AfterInLife(*back, from, life, EventKind::kVoteAnswer, [over, at_caller] {
      if (!std::exchange(*over, true)) at_caller();
    });
  };
  const bool twice = OneIn(swarm_->faults.repeat_one_in);
  if (twice) world_->Met(Cover::kCallRepeated);
  for (int i = 0; i < (twice ? 2 : 1); ++i) {
    const Tick extra = i == 0 ? 0 : world_->random().Below(kVeryLateMax);
    world_->AfterInLife(*delay + extra, there, world_->Life(there), EventKind::kVoteCall,
                        [this, to, question, answer] { question(servers_[to], answer); });
  }
}

}  // namespace ballast::sim
