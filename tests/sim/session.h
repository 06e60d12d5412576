// SimServer::Session: one stream of a slot at a server, which mirrors the TrainerStream of
// server/service over the shipped Outbox: identity, received bytes, silence. Comes from: SimServer.
// Goes to: RoundEngine, the network. Thread safety: one thread.
#pragma once

#include <memory>
#include <string>

#include "ballast/v1/data.pb.h"
#include "proto/convert/frame_codec.h"
#include "server/service/outbox.h"
#include "tests/sim/server.h"

namespace ballast::sim {

class SimServer::Session : public server::SlotSink,
                           public std::enable_shared_from_this<SimServer::Session> {
 public:
  // `process` outlives it. No stream: of a stray process, which hears nothing.
  Session(const Context& context, SimProcess* process, StreamPtr stream)
      : context_(context),
        process_(process),
        engine_(process->engine()),
        stream_(std::move(stream)),
        last_heard_(stream_ == nullptr ? 0 : clock()->Now()),
        outbox_(std::make_unique<server::Outbox>(server::Outbox::Limits(),
                                                 server::Outbox::Identity())) {}

  void OnUp(const Payload& message);
  // The trainer sends nothing more.
  void OnUpEnded();
  // The stream has come to its end.
  void OnClosed();
  // Gives a trainer up that has said nothing for too long.
  void WatchSilence();

  void OnAck(const server::Ack& ack) override;
  void OnResult(const RoundResult& result) override;
  void OnExtent(const server::OutPiece& piece) override;
  void OnDone(const server::RoundDone& done) override;
  void OnRefused(const server::FrameRefused& refused) override;
  void OnState(const server::StateInfo& info) override;
  void OnTrainer(const server::TrainerNews& news) override;
  void OnError(const absl::Status& status) override;

 private:
  struct Received;
  enum class State { kHello, kAttaching, kOpen, kClosed };

  SimClock* clock() const {
    return context_.world->clock(context_.network->ServerNode(stream_->server));
  }

  void OnControl(const v1::ClientMessage& message);
  void Hello(const v1::Hello& hello);
  void OnAttached(const absl::StatusOr<server::SlotWelcome>& welcome);
  void OnFrame(const DecodedFrame& frame);
  // The engine has taken so many bytes.
  void OnTaken(size_t bytes);
  void Close(const absl::Status& status, const std::string& why);
  void Lost(const std::string& why, Tick silent_for = 0);
  void Send(v1::ServerMessage message);
  // Sends all that waits.
  void Pump();

  const Context context_;
  SimProcess* const process_;
  server::RoundEngine* const engine_;
  const StreamPtr stream_;
  State state_ = State::kHello;
  server::SlotHello hello_;
  uint64_t welcome_round_ = 0;
  bool seated_ = false;
  bool left_ = false;
  Tick last_heard_ = 0;
  std::string close_why_;
  std::unique_ptr<server::Outbox> outbox_;
};

}  // namespace ballast::sim
