// An attached trainer: one stream per server, one thread that drives them all, and at most one
// activity (a step, an upload, a fetch) at a time. In a durable job a server that goes away gets a
// new stream (session_pause.cc), and when a trainer was replaced all of them do (session_epoch.cc);
// a server's part of the activity then starts over from the lent memory.
// Comes from: Client::Attach. Goes to: the job's servers; the caller's buffers.
// Thread safety: as Client. All state is under one lock, which the completion-queue thread holds
// while it handles an event; gRPC calls back into the lease only, which has a lock of its own.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "ballast/v1/control.pb.h"
#include "ballast/v1/data.pb.h"
#include "client/cpp/src/lent_memory.h"
#include "client/cpp/src/reconnect.h"
#include "client/cpp/src/round_progress.h"
#include "client/cpp/src/send_plan.h"
#include "client/cpp/src/stream.h"
#include "client/cpp/src/unary_call.h"
#include "common/base/sync.h"
#include "common/job/job_spec.h"
#include "common/tensor/layout.h"
#include "grpcpp/alarm.h"
#include "grpcpp/channel.h"
#include "grpcpp/completion_queue.h"
#include "proto/convert/frame_codec.h"

namespace ballast::client {

class Session final : public Client, private StreamHandler {
 public:
  // What an attach has settled.
  struct Seat {
    JobSpec spec;
    Layout layout;
    v1::AttachReply reply;
    uint64_t incarnation = 0;
  };

  // Opens the streams and uploads (slot 0) or receives (InitMode::kBroadcast, a resumed job)
  // `weights`, one address per tensor, which are lent until the return. Errors: as Client::Attach.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const JobOptions& options, Seat seat,
                                                       const std::vector<void*>& weights);
  // Breaks the streams off, and waits until gRPC has let go of all lent memory.
  ~Session() override;

  absl::Status Extend(const std::vector<Tensor>& tensors, const std::vector<TensorBuffers>& buffers,
                      InitMode init) override;
  absl::StatusOr<RoundReport> Step(const std::vector<AdamWHyper>& hyper,
                                   const std::vector<TensorBuffers>& buffers) override;
  absl::Status BeginStep(const std::vector<AdamWHyper>& hyper,
                         const std::vector<TensorBuffers>& buffers) override;
  absl::Status BeginUpload(const std::vector<TensorBuffers>& buffers) override;
  absl::Status BeginStateUpload(const StateUpload& upload,
                                const std::vector<TensorBuffers>& buffers) override;
  absl::StatusOr<bool> Wait(std::chrono::milliseconds timeout, RoundReport* report) override;
  absl::Status SetUserState(std::string state) override;
  std::string user_state() const override;
  absl::Status FetchState(const std::vector<StateBuffers>& buffers,
                          std::vector<uint64_t>* tensor_step) override;
  absl::Status FetchWeights(const std::vector<TensorBuffers>& buffers) override;
  absl::StatusOr<uint64_t> Snapshot(const std::string& name, uint32_t keep) override;
  absl::Status Leave() override;
  void Abort() override;
  bool resumed() const override { return resumed_; }
  uint64_t round() const override;
  uint64_t opt_step() const override;
  uint32_t world() const override;
  uint64_t job_id() const override { return job_; }
  uint32_t server_count() const override { return static_cast<uint32_t>(servers_.size()); }
  TransferCounters counters() const override;

 private:
  using Time = std::chrono::steady_clock::time_point;
  using Nanos = std::chrono::nanoseconds;
  using StateArrays = std::array<std::vector<void*>, kAdamWStateArrays>;

  enum class Activity { kIdle, kUpload, kFetch, kStep };

  // Everything up to `owned_elements` lasts as long as the session, the rest as long as a stream.
  struct Server {
    explicit Server(const Reconnect::Limits& limits) : reconnect(limits) {}

    uint32_t id = 0;
    std::string address;
    std::unique_ptr<SendPlan> plan;
    Reconnect reconnect;
    std::vector<uint32_t> init_missing;  // slot 0: to upload again before the next RoundBegin
    std::vector<uint32_t> owned;         // extents in push order
    uint64_t owned_weight_bytes = 0;
    uint64_t owned_elements = 0;

    uint64_t generation = 0;  // of `stream`; what comes from an older one is ignored
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<Stream> stream;        // null between two tries to reach the server
    std::deque<grpc::ByteBuffer> control;  // goes out before any frame
    bool welcomed = false;
    bool gave_up = false;     // it sent its error, which is the last of its messages that counts
    bool leave_sent = false;  // nothing more is expected but the stream's end
    Time last_heard;
    FrameKind send_kind = FrameKind::kUnspecified;  // of the frames in `plan`
    // In a step: init_missing goes first. Then the round begins, without the extents `complete`.
    bool restoring = false;
    bool resumed = false;  // the round went over another stream before
    std::vector<uint32_t> complete;
    // Of a fetch.
    bool has_info = false;
    uint64_t expected_bytes = 0;
    uint64_t received_bytes = 0;

    bool fetched() const { return has_info && received_bytes == expected_bytes; }
  };

  // A stream that is being broken off, and its connection; or a call that is over.
  struct Retired {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<Stream> stream;
    std::unique_ptr<AsyncCall> call;
  };

  // The job's way into its next epoch, or into several that follow each other quickly: from the
  // first STALE_EPOCH until all servers that are there have said Welcome in the newest one.
  struct Passage {
    explicit Passage(const Reconnect::Limits& limits) : attach(limits) {}

    bool open = false;
    Time since;
    Reconnect attach;  // the tries to attach again; "away" until the new record is here
    std::unique_ptr<AsyncCall> call;  // the try under way
    uint32_t epoch = 0;               // of the record; 0 until it is here
    std::set<uint32_t> slots;         // with a new process
    std::set<uint32_t> joined;        // of these, who has a seat that was empty
    std::set<uint32_t> left;          // without one
  };

  class TickTag : public CompletionTag {
   public:
    explicit TickTag(Session* session) : session_(session) {}
    // Under the session's lock, as every tag; the analysis cannot see that.
    void OnEvent(bool ok) override ABSL_NO_THREAD_SAFETY_ANALYSIS { session_->OnTick(ok); }

   private:
    Session* const session_;
  };

  Session(const JobOptions& options, Seat seat);

  // Set-up and end (session.cc).
  absl::Status TakePlan(const v1::Plan& plan, const Layout& layout);
  void AssignExtents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OpenStreams();
  void OpenStream(size_t index, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::ClientMessage MakeHello(size_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until every server has said Welcome. Errors: SERVER_LOST at `deadline`, and the
  // session's.
  absl::Status AwaitWelcomes(Time deadline);
  void MarkOpened();
  bool NextEvent(void** tag, bool* ok);
  void RunQueue();
  void ArmTick(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How long the loss of a trainer is held back, in case a server turns out to be the cause.
  Nanos SecondThought() const { return heartbeat_ / 5; }
  void OnTick(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Twice per heartbeat: looks for silent servers, and sends what is due.
  void LookAfterServers(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogLongWait(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status BlameSilentServer(const absl::Status& status) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `status` with this job's name and round, where it does not say them itself.
  absl::Status InThisRound(const absl::Status& status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ServerLost(const Server& server, absl::string_view how) const;
  absl::Status ServerBroke(const Server& server, absl::string_view what) const;
  bool AllClosed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Servers that go away and come back (session_pause.cc).
  // The end of a server's stream, or of its answering: a pause in a durable job, else an error.
  void Lose(size_t index, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status StateLost(const Server& server) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Suspend(Server* server, const absl::Status& why, Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Forgets the stream and all that was agreed on it. Its events come to an end unheard.
  void Retire(Server* server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Retired streams that have come to their end, for the caller to destroy without the lock.
  std::vector<Retired> TakeClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RetryLostServers(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Version of the weights that this slot holds of a server's extents.
  uint64_t HeldVersion(size_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteBack(Server* server, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OnWelcome(size_t index, const v1::Welcome& welcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckWelcome(size_t index, const v1::Welcome& welcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckOwned(const Server& server,
                          const google::protobuf::RepeatedField<uint32_t>& extents) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeMissing(size_t index, const v1::Welcome& welcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Goes on with the activity that runs.
  absl::Status Resume(size_t index, const v1::Welcome& welcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ResumeUpload(Server* server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ResumeFetch(Server* server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status LacksInit(const Server& server) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends a server its part of the open round, after the initial weights that it lacks.
  void StartStep(Server* server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginRound(Server* server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NotePause(const Server& server, Pause::Kind kind, Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Logs it, or keeps it for ReportPauses.
  void Tell(Pause pause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells the caller's observer, on the caller's thread.
  void ReportPauses();

  // Trainers that are replaced (session_epoch.cc).
  static std::map<uint32_t, uint64_t> MembersOf(const v1::EpochRecord& record);
  // The server is in a later epoch than the stream that has ended so.
  void OnStaleEpoch(size_t index, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RetryAttach(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CallAttach(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnAttachAnswer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckRecord(const v1::AttachReply& reply) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Goes over to the new epoch: every server gets a new stream.
  void TakeRecord(const v1::EpochRecord& record, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndPassage(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NotePassage(Pause::Kind kind, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The home's word of another trainer.
  void OnTrainerNews(const v1::TrainerNews& news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What was said of trainers that are away is said again in the new epoch.
  void ForgetTrainerNews(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether this trainer uploads initial weights.
  bool IsLead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return members_.begin()->first == options_.slot;
  }
  absl::Status SlotWasTaken(const absl::Status& status) const;
  absl::Status JobIsForgotten() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Incoming (session_stream.cc).
  void OnMessage(const StreamKey& key, const grpc::ByteBuffer& message) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnClosed(const StreamKey& key, const absl::Status& status) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OnControl(size_t index, const v1::ServerMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OnAck(Server* server, const v1::Ack& ack) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllPushed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OnRefused(Server* server, const v1::FrameRefused& refused)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OnStateInfo(Server* server, const v1::StateInfo& info)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OnFrame(size_t index, const DecodedFrame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OnWeightFrame(size_t index, const DecodedFrame& frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OnStateFrame(Server* server, const DecodedFrame& frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CountFetched(Server* server, const DecodedFrame& frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Store(const Server& server, const DecodedFrame& frame,
                     const std::vector<void*>& destinations) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Outgoing (session_stream.cc).
  std::optional<grpc::ByteBuffer> NextMessage(const StreamKey& key) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  grpc::ByteBuffer FormFrame(FrameKind kind, const FrameRange& range)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendControl(Server* server, const v1::ClientMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendLeave(Server* server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Activities (session_calls.cc).
  absl::Status CheckIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ValidateStep(const std::vector<Hyper>& hyper,
                            const std::vector<TensorBuffers>& buffers) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::ClientMessage MakeRoundBegin(const std::vector<Hyper>& hyper) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of an upload of what is lent: of weights, or with `plane` of that.
  v1::ClientMessage MakeUploadBegin(const StateUpload* plane) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckStateUpload(const StateUpload& upload,
                                const std::vector<TensorBuffers>& buffers) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins a round with the lent buffers, on every server that is there.
  void BeginRounds(v1::ClientMessage begin) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Which tensors this slot pushes in the round: of an upload the lead all that it has lent, the
  // others none.
  std::vector<bool> Pushed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LendBuffers(const std::vector<TensorBuffers>& buffers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Initialize(InitMode init, const std::vector<void*>& weights, uint32_t first_extent);
  // Into a job that was there before: receives all weights, after what slot 0 has to upload.
  absl::Status TakeOver(const std::vector<void*>& weights);
  absl::Status Upload(const std::vector<void*>& weights, uint32_t first_extent);
  absl::Status FetchWeightsInto(const std::vector<void*>& weights);
  absl::Status Fetch(const v1::FetchState& request);
  bool ActivityDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllLeft() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // For a Leave that a server may not have heard.
  void LogUnheardLeave(const Server& server) const;
  // How long Leave may take.
  Nanos LeaveLimit() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for the activity's end and for the lent memory; false when `timeout` passed first.
  absl::StatusOr<bool> AwaitActivity(std::chrono::nanoseconds timeout);
  // As AwaitActivity without a limit, polling JobOptions::should_stop while attaching.
  absl::Status FinishActivity();
  // After an error: waits until no stream and no slice can touch the caller's memory.
  bool Drain(Time deadline);
  absl::Status PollDuringCall();
  absl::Status AskToExtend(const std::shared_ptr<grpc::Channel>& home,
                           const v1::ExtendRequest& request, v1::ExtendReply* reply);
  v1::ExtendRequest MakeExtendRequest(const JobSpec& grown, const std::vector<void*>& weights,
                                      const Layout& layout, InitMode init) const;

  const JobOptions options_;
  const uint64_t job_;
  const uint64_t incarnation_;
  const bool durable_;  // a lost server is a pause
  const bool resumed_;  // the job was there before
  const SendLimits limits_;
  const std::chrono::nanoseconds heartbeat_;
  const std::chrono::nanoseconds report_after_;

  BufferLease lease_;  // Before the streams and channels, which may hold slices of it.
  grpc::CompletionQueue queue_;
  std::thread thread_;

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<Server> servers_;  // ascending id; its size never changes
  std::vector<Retired> retired_ ABSL_GUARDED_BY(mu_);
  std::deque<Pause> pauses_ ABSL_GUARDED_BY(mu_);  // not told yet
  PauseMeter meter_ ABSL_GUARDED_BY(mu_);
  Passage passage_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, Time> trainers_away_ ABSL_GUARDED_BY(mu_);  // slot -> since when
  JobSpec spec_ ABSL_GUARDED_BY(mu_);
  Layout layout_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> owner_ ABSL_GUARDED_BY(mu_);  // server id per extent
  uint32_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t start_round_ ABSL_GUARDED_BY(mu_) = 0;              // of that epoch
  std::map<uint32_t, uint64_t> members_ ABSL_GUARDED_BY(mu_);  // slot -> incarnation
  uint32_t round_world_ ABSL_GUARDED_BY(mu_) = 0;              // trainers of the round that runs
  uint32_t layout_version_ ABSL_GUARDED_BY(mu_) = 0;
  // Next round, and version of the weights; of a new job 0 before the first Welcome.
  uint64_t round_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t opt_step_ ABSL_GUARDED_BY(mu_) = 0;
  std::string user_state_ ABSL_GUARDED_BY(mu_);  // travels with the next round
  absl::Status error_ ABSL_GUARDED_BY(mu_);      // first one; ends everything
  absl::Status suspicion_ ABSL_GUARDED_BY(mu_);  // a lost trainer, held back
  Time suspected_at_ ABSL_GUARDED_BY(mu_);
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool opened_ ABSL_GUARDED_BY(mu_) = false;

  Activity activity_ ABSL_GUARDED_BY(mu_) = Activity::kIdle;
  // What the caller has lent, per tensor. Initial weights are sent from where weights land.
  std::vector<const char*> grads_ ABSL_GUARDED_BY(mu_);
  std::vector<void*> weights_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> present_ ABSL_GUARDED_BY(mu_);    // has a gradient in this step
  bool upload_round_ ABSL_GUARDED_BY(mu_) = false;    // this step uploads what is at grads_
  grpc::ByteBuffer begin_ ABSL_GUARDED_BY(mu_);       // RoundBegin of this step
  grpc::ByteBuffer home_begin_ ABSL_GUARDED_BY(mu_);  // the home's, which has the user state
  grpc::ByteBuffer fetch_ ABSL_GUARDED_BY(mu_);       // FetchState of this fetch
  uint32_t upload_first_ ABSL_GUARDED_BY(mu_) = 0;    // first extent of this upload
  // From this extent on no finished round has changed the initial weights.
  uint32_t fresh_extent_ ABSL_GUARDED_BY(mu_) = 0;
  StateArrays states_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> tensor_step_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<RoundProgress> progress_ ABSL_GUARDED_BY(mu_);
  uint64_t step_up_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  TransferCounters counters_ ABSL_GUARDED_BY(mu_);

  TickTag tick_tag_{this};
  grpc::Alarm tick_ ABSL_GUARDED_BY(mu_);
  bool tick_armed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t heartbeat_sequence_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t looks_ ABSL_GUARDED_BY(mu_) = 0;
  Time last_tick_ ABSL_GUARDED_BY(mu_);
  Time next_look_ ABSL_GUARDED_BY(mu_);
  Time next_log_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::client
