// One state server as a trainer sees it: the link to it, its share of the job, and the tries to
// reach it again. Comes from: SessionCore (activities, the server's messages). Goes to: a Link.
// Thread safety: none; lives under the session's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ballast/client.h"
#include "ballast/v1/control.pb.h"
#include "ballast/v1/data.pb.h"
#include "client/cpp/job/activity.h"
#include "client/cpp/job/job_view.h"
#include "client/cpp/session/reconnect.h"
#include "client/cpp/session/server_share.h"
#include "client/cpp/transport/handshake_diagnosis.h"
#include "client/cpp/transport/link.h"

namespace ballast::client {

class ServerLink final : private LinkHandler {
 public:
  // The session's side. Gets no events of a link after Close.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnMessage(ServerLink* server, const Payload& message) = 0;
    virtual void OnClosed(ServerLink* server, const absl::Status& status) = 0;
    // The next frame, when no control message waits.
    virtual std::optional<Outgoing> NextFrame(ServerLink* server) = 0;
  };
  // A server's state on its present link.
  struct State {
    bool welcomed = false;
    bool gave_up = false;    // it sent its error, which is the last of its messages that counts
    bool lacks_job = false;  // the server said on the link before that it has nothing of the job
  };

  // Server number `index` of the job; number 0 is the home. The pointers outlive the object.
  ServerLink(size_t index, const v1::ServerAddress& server, const JobView* job,
             Transport* transport, Owner* owner);

  size_t index() const { return index_; }
  uint32_t id() const { return id_; }
  const std::string& address() const { return address_; }
  State& state() { return state_; }
  bool welcomed() const { return state_.welcomed; }
  ServerShare& share() { return share_; }
  const ServerShare& share() const { return share_; }
  Reconnect& reconnect() { return reconnect_; }
  const Reconnect& reconnect() const { return reconnect_; }

  // Opens a link and says Hello with `held`, the version that this trainer holds of the server's
  // weights. Between two tries to reach the server there is no link.
  void Open(uint64_t held);
  // Forgets the link and everything agreed on it.
  void Close();
  // Breaks the link off; Owner::OnClosed follows.
  void Cancel();
  bool has_link() const { return link_ != nullptr; }
  bool alive() const { return has_link() && !link_->closed(); }
  void Kick() { link_->Kick(); }

  // A sign of life, and the time since the last one.
  void Hear(Time now) { last_heard_ = now; }
  std::chrono::nanoseconds Silence(Time now) const { return now - last_heard_; }
  // Sends a heartbeat, unless something else waits to go out.
  void Beat(uint64_t sequence, const Doing& doing);

  // Whether the version that Welcome names fits `held`, the version that this trainer holds. With
  // `open` this trainer waits for round `held`, which a durable server may have decided already.
  // Errors: INTERNAL BAD_FRAME, UNAVAILABLE RECOVERING, FAILED_PRECONDITION WRONG_VERSION.
  absl::Status CheckVersion(uint64_t named, uint64_t held, bool open) const;
  // Whether the extents of Welcome are this server's. Error: INTERNAL BAD_FRAME.
  absl::Status CheckExtents(const v1::Welcome& welcome) const;
  // Takes the initial weights that the server lacks. `answered`: its result of the running round is
  // here. Error: DATA_LOSS STATE_LOST for weights that rounds have changed.
  absl::Status TakeMissing(const v1::Welcome& welcome, bool answered);
  // FAILED_PRECONDITION NOT_BEGUN when the server lacks initial weights.
  absl::Status LacksInit() const;
  // `sending`: the frame's memory is still lent. Errors: STALE_EPOCH in a durable job, INTERNAL
  // BAD_FRAME, or as SendPlan::OnRefused.
  absl::Status OnRefused(const v1::FrameRefused& refused, bool sending);
  void OnAck(const v1::Ack& ack, const Step* step);

  // Sends a serialized ClientMessage before any frame.
  void Send(std::string message);
  void SendMissing(uint32_t first_extent);
  void StartStep(const Step& step);
  void ResumeStep(const Step& step, const v1::Welcome& welcome);

  // Ends the trainer's work here: only the link's end is still expected.
  void SendLeave();
  bool leave_sent() const { return leave_sent_; }
  void SetLeaveSent(bool sent) { leave_sent_ = sent; }
  bool left() const { return leave_sent_ && !alive(); }
  void LogUnheardLeave() const;

  absl::Status Lost(absl::string_view how) const;  // UNAVAILABLE SERVER_LOST
  HandshakeDiagnosis& handshake() { return handshake_; }
  const HandshakeDiagnosis& handshake() const { return handshake_; }
  absl::Status Broke(absl::string_view what) const;  // INTERNAL BAD_FRAME
  // DATA_LOSS STATE_LOST: the server has had nothing of the job for that long; 0: just now.
  absl::Status StateLost(std::chrono::nanoseconds away) const;
  // "state server ID at ADDRESS".
  std::string Name() const;
  ErrorFields Fields() const;
  // News about this server, `away` since it was lost.
  Pause News(Pause::Kind kind, Time now) const;

 private:
  void OnMessage(const Payload& message) override { owner_->OnMessage(this, message); }
  std::optional<Outgoing> NextMessage() override;
  void OnClosed(const absl::Status& status) override { owner_->OnClosed(this, status); }
  void SendHello(uint64_t held);

  const size_t index_;
  const uint32_t id_;
  const std::string address_;
  const JobView* const job_;
  Transport* const transport_;
  Owner* const owner_;
  ServerShare share_;
  Reconnect reconnect_;
  HandshakeDiagnosis handshake_;
  std::unique_ptr<Link> link_;       // null between two tries to reach the server
  std::deque<std::string> control_;  // goes out before any frame
  State state_;
  bool leave_sent_ = false;
  Time last_heard_;
};

// When to try again to reach a server of a job with these options.
Reconnect::Limits ReconnectLimits(const JobOptions& options);

}  // namespace ballast::client
