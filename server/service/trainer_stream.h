// TrainerStream: one trainer's data stream (Data.Exchange) at this server, from Hello to Leave.
//
//   HELLO -Hello-> ATTACHING -engine accepts-> OPEN -Leave, error or break-> CLOSED
//
// The stream checks the form of messages and the identity in frames, counts credit, and forwards to
// the job's engine. The engine checks the rest, the checksum included; its answers go out through
// an Outbox.
// Comes from: the transport (messages), RoundEngine (SlotSink). Goes to: RoundEngine.
// Input is in trainer_stream.cc; output, pauses and the end in trainer_stream_out.cc. Thread
// safety: SlotSink's methods may be called from any thread; StreamHandler's come one
// at a time. No lock is held while the engine or the call is called.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/metrics/metrics.h"
#include "common/threads/executor.h"
#include "server/security/gate.h"
#include "server/service/directory_holder.h"
#include "server/service/outbox.h"
#include "server/service/stream_age.h"
#include "server/stream/method_registry.h"

namespace ballast::server {

struct TrainerStreamConfig {
  uint32_t chunk_bytes = 1 << 20;
  uint64_t credit_bytes = 16 << 20;
  size_t max_frame_bytes = 4 << 20;
  size_t max_control_bytes = 16 << 20;
  size_t presence_bytes_max = 125'000;  // a bit per tensor
  std::chrono::nanoseconds report_after = std::chrono::milliseconds(2500);
  // Longest time for a message on its way out: then its trainer is lost.
  std::chrono::nanoseconds lease = std::chrono::seconds(10);
  // Age at which a durable job's stream ends between two rounds, and how much later it ends within
  // one. 0: it stays.
  std::chrono::nanoseconds max_age{0};
  std::chrono::nanoseconds age_grace = std::chrono::seconds(30);
};

// Everything outlives the streams' calls.
struct TrainerStreamDeps {
  const DirectoryHolder* directory = nullptr;
  Executor* executor = nullptr;  // for timers
  const Clock* clock = nullptr;
  ServerMetrics* metrics = nullptr;  // may be null
  const Gate* gate = nullptr;        // null: as one without security
  TrainerStreamConfig config;
};

class TrainerStream : public StreamHandler,
                      public SlotSink,
                      public std::enable_shared_from_this<TrainerStream> {
 public:
  // For MethodRegistry::AddMethod. `deps` outlives the server.
  static StreamFactory Factory(const TrainerStreamDeps* deps);

  TrainerStream(const TrainerStreamDeps* deps, std::shared_ptr<MessageStream> call);

  void OnMessage(Payload message) override;
  void OnReadsDone() override;
  std::optional<Outgoing> NextMessage() override;
  void OnDone(bool cancelled) override;

  void OnAck(const Ack& ack) override;
  void OnResult(const RoundResult& result) override;
  void OnExtent(const OutPiece& piece) override;
  void OnDone(const RoundDone& done) override;
  void OnRefused(const FrameRefused& refused) override;
  void OnState(const StateInfo& info) override;
  void OnTrainer(const TrainerNews& news) override;
  void OnError(const absl::Status& status) override;

 private:
  enum class State { kHello, kAttaching, kOpen, kClosed };
  // Attached to a payload handed to the engine; tells the stream of its release.
  struct PostedPayload;

  absl::Status OnHello(const ClientInput& input);
  void OnAttached(const std::shared_ptr<RoundEngine>& engine,
                  const absl::StatusOr<SlotWelcome>& welcome, uint32_t protocol);
  absl::Status OnNext(const ClientInput& input);
  absl::Status OnControl(const v1::ClientMessage& message);
  // Passes the trainer's activity report, if any, to the home. Error: BAD_FRAME.
  absl::Status OnDoing(const v1::Doing& said) const;
  void OnFrame(const DecodedFrame& frame);
  // OK when a trainer sends frames of this kind and the frame belongs to this stream. The engine
  // checks the rest: the round's rules and the checksum.
  absl::Status CheckFrame(const DecodedFrame& frame) const;
  void OnTaken(size_t bytes);

  void Send(v1::ServerMessage message);
  // Queues `message`.
  void Count(const OutMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells the trainer `status`, then ends the call. The engine hears `why` once the call is over.
  void Close(const absl::Status& status, const std::string& why);
  // Tells the engine now, unless it knows already or the slot never had its seat.
  // `silent_for`: how long the stream, which still stands, was silent.
  void Lost(const std::string& why, std::chrono::nanoseconds silent_for = {});
  void ReadMore();
  // Whether reading is paused from now on; counts the time of the pause.
  bool Pause() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the stream if its identity is denied by now; returns whether it did.
  bool EndDenied();
  void CheckSilence();
  // Ends the stream if it is old enough; the trainer reconnects. Returns whether it did.
  bool EndAged();
  // Gives up a trainer that reads nothing from its stream. Returns whether it did.
  bool GiveUpUntaken();
  void WatchSilence();
  void ResolveMetrics(RoundEngine* engine);

  const TrainerStreamDeps* const deps_;
  const std::shared_ptr<MessageStream> call_;

  Outbox::Identity identity_;  // Set by Hello, constant from then on.

  Mutex mu_;
  // From Hello until the call is over; written on the poller's thread only, which may read it
  // without the lock. Engine and stream hold each other in between.
  std::shared_ptr<RoundEngine> engine_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kHello;
  std::unique_ptr<Outbox> outbox_ ABSL_GUARDED_BY(mu_);
  std::chrono::nanoseconds last_heard_ ABSL_GUARDED_BY(mu_);
  size_t posted_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // handed to the engine, not yet taken
  bool paused_ ABSL_GUARDED_BY(mu_) = false;      // no read is asked for
  std::chrono::nanoseconds paused_at_ ABSL_GUARDED_BY(mu_){0};
  // Since when a message is on its way out; 0: none is.
  std::chrono::nanoseconds sending_since_ ABSL_GUARDED_BY(mu_){0};
  StreamAge age_ ABSL_GUARDED_BY(mu_);  // of a durable job; else it never ends
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  bool seated_ ABSL_GUARDED_BY(mu_) = false;  // the engine has our sink
  std::string close_why_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<JobMetrics> job_metrics_ ABSL_GUARDED_BY(mu_);
  // When the engine told the newest end of a round; for the phase "stream" of its duration.
  std::chrono::nanoseconds done_at_ ABSL_GUARDED_BY(mu_){0};
};

}  // namespace ballast::server
