// SimNet: streams between trainers and servers, and votes between servers. A stream is TCP: in
// order and complete, until it breaks; a vote is a unary call that may be lost, repeated, late or
// overtaken. Links can be cut in one direction and heal.
// Comes from: simulated trainers and servers. Goes to: the other end, as an event.
// Thread safety: one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/payload.h"
#include "server/cluster/job_directory.h"
#include "server/round/capture.h"
#include "server/round/round_engine.h"
#include "server/round/round_types.h"
#include "tests/sim/swarm.h"
#include "tests/sim/world.h"

namespace ballast::sim {

// After which a call has no answer.
inline constexpr Tick kCallTimeout = 2500 * kMillisecond;

// What trainers say.
struct FrameMessage {
  FrameHeader header;
  Payload payload;
};
struct HeartbeatMessage {};
struct FetchMessage {
  uint64_t round = 0;
  bool weights = false;
  std::vector<uint32_t> arrays;
};
struct LeaveMessage {
  uint64_t round = 0;
};
using UpMessage = std::variant<server::SlotHello, server::RoundBegin, FrameMessage,
                               HeartbeatMessage, FetchMessage, LeaveMessage>;

// What servers say.
struct AckMessage {
  uint64_t received_bytes = 0;
  uint64_t round = 0;
  uint32_t window_base = 0;
};
struct PieceMessage {
  FrameKind kind = FrameKind::kWeight;
  uint8_t array = 0;
  uint64_t round = 0;
  uint32_t extent = 0;
  uint32_t offset_bytes = 0;
  std::shared_ptr<const std::vector<char>> bytes;
};
struct ErrorMessage {
  absl::Status status;
};
using DownMessage =
    std::variant<server::SlotWelcome, AckMessage, RoundResult, PieceMessage, server::RoundDone,
                 server::FrameRefused, server::StateInfo, ErrorMessage, HeartbeatMessage>;

// One stream of a trainer process to a server; its two ends learn of its end at different times.
struct Stream {
  uint32_t process = 0;  // of the trainer
  uint32_t server = 0;   // index
  uint64_t server_life = 0;
  bool client_open = true;
  bool server_open = true;
  Tick up_clear = 0;  // when the last message each way arrives
  Tick down_clear = 0;
  bool corrupted = false;  // a frame of it was damaged once; that is enough
};
using StreamPtr = std::shared_ptr<Stream>;

// The two sides, as the network knows them.
class StreamServer {
 public:
  virtual ~StreamServer() = default;
  virtual bool Serves() const = 0;  // a process listens
  virtual void OnUp(const StreamPtr& stream, UpMessage message) = 0;
  virtual void OnUpClosed(const StreamPtr& stream) = 0;
  // A peer's vote. `answer` gets what this server says to it. Errors: UNAVAILABLE.
  virtual void OnVoteCall(uint32_t epoch, uint64_t round, const Vote& vote,
                          const std::function<void(const server::VoteAnswer&)>& answer) = 0;
  // Calls of the epoch machine; they may be answered later, or never.
  virtual void OnSeal(uint32_t epoch, std::function<void(absl::StatusOr<server::SealAnswer>)>) = 0;
  virtual void OnAdopt(const server::JobPlan& plan, std::function<void(absl::Status)>) = 0;
  // At the home. `resume`: takes the seat of the slot's last process, or an empty one.
  virtual void OnAttach(const server::Member& who, bool resume,
                        std::function<void(absl::StatusOr<server::EpochRecord>)>) = 0;
  // One step of a snapshot; answered later, or never. `before`, if any: what a capture makes of the
  // round before.
  virtual void OnSnapshot(const server::SnapshotCall& call,
                          const std::shared_ptr<server::CapturedRound>& before,
                          const std::function<void(absl::StatusOr<uint64_t>)>& done) = 0;
};
class StreamClient {
 public:
  virtual ~StreamClient() = default;
  virtual void OnDown(const StreamPtr& stream, DownMessage message) = 0;
  virtual void OnDownClosed(const StreamPtr& stream, const absl::Status& status) = 0;
};

class Network {
 public:
  Network(World* world, const Swarm* swarm);
  void Add(StreamServer* server) { servers_.push_back(server); }
  void Add(StreamClient* client) { clients_.push_back(client); }
  NodeId ServerNode(uint32_t index) const { return index; }
  NodeId TrainerNode(uint32_t process) const { return swarm_->shape.servers + process; }

  // Opens a stream and says `hello`. Where nobody listens it soon ends.
  StreamPtr Open(uint32_t process, uint32_t server, const server::SlotHello& hello);
  void SendUp(const StreamPtr& stream, UpMessage message);
  void SendDown(const StreamPtr& stream, DownMessage message);
  // The client breaks the stream off, or the server ends it after what it has sent.
  void CloseUp(const StreamPtr& stream);
  void CloseDown(const StreamPtr& stream, const absl::Status& status);
  // Both ends lose it, each at its own time.
  void Break(const StreamPtr& stream);
  // The server's process has ended. `announced`: the other ends hear of it.
  void EndProcess(uint32_t server, bool announced);
  // Likewise a trainer's.
  void EndTrainer(uint32_t process, bool announced);

  // A vote on its way from one server to another and its answer back; `done` runs at the sender,
  // in its present life. Errors: UNAVAILABLE, DEADLINE_EXCEEDED.
  using VoteDone = std::function<void(absl::StatusOr<std::optional<Vote>>)>;
  void CallVote(uint32_t from, uint32_t to, uint32_t epoch, uint64_t round, const Vote& vote,
                VoteDone done);

  // Any other call to a server. `question` runs there, perhaps twice or late; what it hands to its
  // answer runs at the caller, once, unless `failed` ran before. Errors: UNAVAILABLE,
  // DEADLINE_EXCEEDED after `timeout`.
  using AtCaller = std::function<void()>;
  using Question = std::function<void(StreamServer* server, std::function<void(AtCaller)> answer)>;
  void Ask(NodeId from, uint32_t to, const Question& question,
           const std::function<void(const absl::Status&)>& failed, Tick timeout = kCallTimeout);

  // Nothing goes from one node to another before `until`; streams wait, calls are lost.
  void Cut(NodeId from, NodeId to, Tick until);
  void HealAll();
  // From here on no message is lost, repeated or late.
  void Calm() { calm_ = true; }

 private:
  Tick* CutUntil(NodeId from, NodeId to) { return &cut_until_[from * nodes_ + to]; }
  Tick Latency();
  // When a message of a stream arrives: after those before it, and not through a cut.
  Tick StreamArrival(NodeId from, NodeId to, Tick* clear);
  // Delay of a call's message; none when it is lost.
  std::optional<Tick> CallDelay(NodeId from, NodeId to);
  bool OneIn(uint32_t n) { return !calm_ && world_->random().OneIn(n); }
  template <typename Message>
  void Trace(NodeId node, const char* from, uint32_t number, const Message& message) const;
  void MaybeBreak(const StreamPtr& stream);
  void CloseClientEnd(const StreamPtr& stream, Tick delay, const absl::Status& status);
  void CloseServerEnd(const StreamPtr& stream, Tick delay);
  struct Call;
  void DeliverCall(const std::shared_ptr<Call>& call);

  World* const world_;
  const Swarm* const swarm_;
  const size_t nodes_;
  bool calm_ = false;
  std::vector<Tick> cut_until_;
  std::vector<StreamServer*> servers_;
  std::vector<StreamClient*> clients_;
  std::vector<StreamPtr> streams_;  // those that may be open
};

}  // namespace ballast::sim
