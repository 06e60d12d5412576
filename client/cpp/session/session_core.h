// The trainer's side of a job: links to all its servers, and at most one activity (a step, an
// upload, a fetch) at a time. In a durable job a server that goes away gets a new link, and after a
// change of epoch all of them do; a server's part of the activity then starts over from the lent
// memory. Nothing here waits: calls begin something, events bring it on, and `on_change` says that
// it may have ended. Time, links and calls come from the Transport. Comes from: Session (the
// caller's thread). Goes to: the job's servers; the caller's buffers. Thread safety: none; every
// method runs under the lock of the Transport.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "ballast/v1/control.pb.h"
#include "ballast/v1/data.pb.h"
#include "client/cpp/job/activity.h"
#include "client/cpp/job/job_view.h"
#include "client/cpp/job/lent_memory.h"
#include "client/cpp/session/epoch_transition.h"
#include "client/cpp/session/frame_io.h"
#include "client/cpp/session/pause_reporter.h"
#include "client/cpp/session/server_link.h"
#include "client/cpp/transport/link.h"

namespace ballast::client {

class SessionCore final : private ServerLink::Owner {
 public:
  // Dependencies, which outlive the core.
  struct Environment {
    Transport* transport = nullptr;
    BufferLease* lease = nullptr;     // of the memory that activities lend
    DeviceStaging* device = nullptr;  // of the tensors outside host memory, if any
    std::function<void()> on_change;  // something ended, failed, or is news
    std::function<Doing()> doing;     // reported with heartbeats; may be empty
  };
  using Servers = std::vector<std::unique_ptr<ServerLink>>;

  SessionCore(const JobOptions& options, const AttachedJob& attached, Environment environment);

  // Opens the links. Error: INTERNAL LAYOUT_MISMATCH when `plan` does not fit the layout.
  absl::Status Start(const v1::Plan& plan);
  const JobView& job() const { return job_; }
  const Servers& servers() const { return servers_; }  // ascending id; never more nor fewer
  PauseReporter& pauses() { return pauses_; }
  TransferCounters counters() const;

  // The first error, which ends everything.
  const absl::Status& error() const { return error_; }
  // Ends the session with `status`, unless it has ended. A trainer's loss is held back for a
  // moment, because a server may turn out to be the cause.
  void Fail(const absl::Status& status);
  // After an error: lets go of all links, so that nothing touches lent memory any more.
  void DropLinks();

  // Error: the session's, or FAILED_PRECONDITION BAD_ARGUMENT while an activity runs.
  absl::Status CheckIdle() const;
  // Pushes the initial weights that the servers lack, and with `from_first` every extent from
  // upload.first_extent on. Errors as CheckIdle.
  absl::Status PushInitialWeights(InitialUpload upload, bool from_first);
  // Asks every server for its part of `request`. Errors as CheckIdle; as ServerLink::LacksInit.
  absl::Status BeginFetch(Fetch fetch, v1::FetchState request);
  // Begins a round on every server, as soon as each is reachable. Requires CheckIdle. Error:
  // FAILED_PRECONDITION STALE_EPOCH for sums of another epoch's members.
  absl::Status BeginRound(RoundInput input);
  bool in_round() const { return InRound(activity_); }
  // Every server has done its part of the activity, or there is none.
  bool Done() const;
  // Ends a finished upload or fetch, or a failed activity.
  Activity EndActivity();
  // Ends a finished round; fills `report`. Errors: ABORTED NONFINITE for a halted round, which
  // counts as any other; STALE_EPOCH as BeginRound, and the round has yet to run.
  absl::Status EndRound(RoundReport* report);

  // The job has grown. The epoch stays: only a transition takes the trainer into another one, and
  // the epoch of `reply` may be later than the trainer's or earlier. Error: as Start.
  absl::Status Grow(JobSpec spec, Layout layout, const v1::ExtendReply& reply);

  // Tells every server that this trainer leaves: reachable ones now, the others when they say
  // Welcome.
  void BeginLeave();
  bool leaving() const { return leaving_; }
  // Ends the session as left, and logs each server that may not know of it.
  void EndLeave();

 private:
  // A trainer's loss, held back.
  struct Suspicion {
    absl::Status status;
    Time since;
  };
  // State of the timer.
  struct Pulse {
    uint64_t beats = 0;  // heartbeats so far
    uint64_t looks = 0;
    Time last_tick;
    Time next_look;
  };

  // session_core.cc
  absl::Status TakePlan(const v1::Plan& plan, Layout layout);
  void Rearm(Time now);
  void OnTick();
  void LookAfterServers(Time now);
  absl::Status BlameSilentServer(const absl::Status& status) const;
  void End(const absl::Status& status);
  void RetryLostServers(Time now);
  uint64_t HelloVersion(const ServerLink& server) const;
  ServerLink& home() const { return *servers_.front(); }

  // session_events.cc
  void OnMessage(ServerLink* server, const Payload& message) override;
  void OnClosed(ServerLink* server, const absl::Status& status) override;
  std::optional<Outgoing> NextFrame(ServerLink* server) override;
  absl::Status OnControl(ServerLink* server, const v1::ServerMessage& message);
  absl::Status OnWelcome(ServerLink* server, const v1::Welcome& welcome);
  absl::Status Resume(ServerLink* server, const v1::Welcome& welcome);
  void OnAck(ServerLink* server, const v1::Ack& ack);
  void OnTrainerNews(const v1::TrainerNews& news);
  absl::Status OnStateInfo(ServerLink* server, const v1::StateInfo& info);
  void Lose(ServerLink* server, const absl::Status& status);
  void Suspend(ServerLink* server, const absl::Status& why);
  void NoteBack(ServerLink* server, Time now);
  void OnStaleEpoch(ServerLink* server, const absl::Status& status);
  void OnAttachAnswer(const absl::StatusOr<Payload>& answer);
  void TakeRecord(const v1::EpochRecord& record, Time now);
  void EndTransition(Time now);

  Transport* const transport_;
  const std::function<void()> on_change_;
  const std::function<Doing()> doing_;
  JobView job_;
  FrameIo frames_;
  PauseReporter pauses_;
  EpochTransition transition_;
  Servers servers_;
  Activity activity_;
  absl::Status error_;
  std::optional<Suspicion> suspicion_;
  bool leaving_ = false;
  std::unique_ptr<Timer> timer_;
  Pulse pulse_;
};

}  // namespace ballast::client
