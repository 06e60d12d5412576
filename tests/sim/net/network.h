// SimNet: streams of trainers to servers, and questions of servers to each other. A stream is TCP:
// in order and complete, until it breaks. A trainer's unary call is a stream with one message each
// way and a deadline, over a connection of its own. A question may be lost, repeated, late or
// overtaken. Links can be cut in one direction and heal.
// Comes from: simulated trainers and servers. Goes to: the other end, as an event.
// Thread safety: one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes/payload.h"
#include "tests/sim/swarm.h"
#include "tests/sim/world/world.h"

namespace ballast::sim {

// Of silence, after which a connection counts as broken, as gRPC's keepalive finds it.
inline constexpr Tick kCallTimeout = 2500 * kMillisecond;

// A trainer's end of a stream.
class StreamClient {
 public:
  virtual ~StreamClient() = default;
  // A serialized ServerMessage.
  virtual void OnDown(const Payload& message) = 0;
  virtual void OnDownClosed(const absl::Status& status) = 0;
};

// A server's end of a stream.
class StreamServerEnd {
 public:
  virtual ~StreamServerEnd() = default;
  // A serialized ClientMessage.
  virtual void OnUp(const Payload& message) = 0;
  // The trainer sends nothing more.
  virtual void OnUpEnded() = 0;
  virtual void OnUpClosed() = 0;
};

// One stream of a trainer process to a server; its two ends learn of its end at different times.
struct Stream {
  const char* method = nullptr;    // proto/convert/methods.h
  Tick timeout = 0;                // of a unary call; 0: another stream, which has none
  uint32_t process = 0;            // of the trainer
  uint32_t server = 0;             // index
  StreamClient* client = nullptr;  // valid while client_open
  // Set when the call comes in; valid while server_open.
  StreamServerEnd* server_end = nullptr;
  uint64_t server_life = 0;
  bool client_open = true;
  bool server_open = true;
  bool refused = false;  // no process listened
  bool lost = false;     // nothing more arrives, and its ends have yet to notice
  Tick up_clear = 0;     // when the last message each way arrives
  Tick down_clear = 0;
  bool corrupted = false;  // a frame of it was damaged once; that is enough
};
using StreamPtr = std::shared_ptr<Stream>;

using UnaryDone = std::function<void(const absl::StatusOr<Payload>&)>;

// A server, as the network knows it.
class StreamServer {
 public:
  virtual ~StreamServer() = default;
  virtual bool Serves() const = 0;  // a process listens
  // A stream has come in; sets its server_end.
  virtual void OnOpen(const StreamPtr& stream) = 0;
  // A unary call of another server, as proto/convert/methods.h has it. Answered later, or never,
  // with the serialized reply or the server's error.
  virtual void OnCall(const char* method, const Payload& request, UnaryDone answer) = 0;
};

class Network {
 public:
  Network(World* world, const Swarm* swarm);
  void Add(StreamServer* server) { servers_.push_back(server); }
  NodeId ServerNode(uint32_t index) const { return index; }
  NodeId TrainerNode(uint32_t process) const { return swarm_->shape.servers + process; }

  // Of the server with this index, as its JobPlan counts.
  static std::string Address(uint32_t index);
  static uint32_t IndexOf(const std::string& address);

  // Opens a stream. A stream to a node that does not listen soon ends. `client` outlives it, or
  // closes it. `timeout` of a unary call: after it the server's end is closed by its own clock; the
  // client has its own timer.
  StreamPtr Open(uint32_t process, uint32_t server, StreamClient* client, const char* method,
                 Tick timeout = 0);
  void SendUp(const StreamPtr& stream, const Payload& message);
  // The trainer sends nothing more.
  void HalfClose(const StreamPtr& stream);
  void SendDown(const StreamPtr& stream, const Payload& message);
  // The client breaks the stream off, or the server ends it after its last message.
  void CloseUp(const StreamPtr& stream);
  void CloseDown(const StreamPtr& stream, const absl::Status& status);
  // The server breaks it off at once.
  void Reset(const StreamPtr& stream);
  // Both ends lose it, each at its own time.
  void Break(const StreamPtr& stream);
  // The server's process has ended. `announced`: the other ends hear of it.
  void EndProcess(uint32_t server, bool announced);
  // Likewise a trainer's.
  void EndTrainer(uint32_t process, bool announced);

  // A question of a server to another. `question` runs there, perhaps twice or late; the value
  // passed to its answer reaches the caller, once, unless `failed` ran before. Errors: UNAVAILABLE,
  // DEADLINE_EXCEEDED after `timeout`.
  using AtCaller = std::function<void()>;
  using Question = std::function<void(StreamServer* server, std::function<void(AtCaller)> answer)>;
  void Ask(NodeId from, uint32_t to, const Question& question,
           const std::function<void(const absl::Status&)>& failed, Tick timeout = kCallTimeout);

  // Nothing goes from one node to another before `until`; streams wait, calls are lost.
  void Cut(NodeId from, NodeId to, Tick until);
  // A process has been paused: it answers no keepalive.
  void Paused();
  void HealAll();
  // No link between the two is cut.
  bool Reaches(NodeId from, NodeId to) const;
  // Whether calls may be lost; they may at first.
  void SetLosesCalls(bool loses) { loses_ = loses; }
  // No message is lost, repeated or late any more.
  void Calm() { calm_ = true; }
  // They are again.
  void Disturb() { calm_ = false; }

 private:
  Tick* CutUntil(NodeId from, NodeId to) { return &cut_until_[from * nodes_ + to]; }
  Tick Latency();
  // When a message of a stream arrives: after those before it, and not through a cut.
  Tick StreamArrival(NodeId from, NodeId to, Tick* clear);
  // Delay of a call's message; none when it is lost.
  std::optional<Tick> CallDelay(NodeId from, NodeId to);
  bool OneIn(uint32_t n) { return !calm_ && world_->random().OneIn(n); }
  // Runs `action` at the stream's server after everything that was sent before.
  void AtServer(const StreamPtr& stream, EventKind kind, std::function<void()> action);
  void MaybeBreak(const StreamPtr& stream);
  // The server's end of a call knows its deadline, too.
  void AwaitDeadline(const StreamPtr& stream);
  // Whether the stream, of a call, carries nothing more.
  bool Loses(const StreamPtr& stream);
  // No word passes between the ends now.
  bool Silent(const StreamPtr& stream);
  // Breaks a call's stream if it is still silent after kCallTimeout.
  void AwaitKeepalive(const StreamPtr& stream);
  void CloseClientEnd(const StreamPtr& stream, Tick delay, const absl::Status& status);
  void CloseServerEnd(const StreamPtr& stream, Tick delay);

  World* const world_;
  const Swarm* const swarm_;
  const size_t nodes_;
  bool calm_ = false;
  bool loses_ = true;
  std::vector<Tick> cut_until_;
  std::vector<StreamServer*> servers_;
  std::vector<StreamPtr> streams_;  // those that may be open
};

}  // namespace ballast::sim
