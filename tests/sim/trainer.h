// SimTrainer: one trainer process. It drives the client's pure parts (Reconnect, SendPlan,
// RoundProgress) the way client/cpp's SessionCore does; streams, timer and lent memory are events
// and vectors. Keep it in step with client/cpp/src/session_core.cc and session_events.cc.
// Comes from: the simulation. Goes to: the network. Thread safety: one thread.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/cpp/src/reconnect.h"
#include "client/cpp/src/round_progress.h"
#include "client/cpp/src/send_plan.h"
#include "tests/sim/network.h"
#include "tests/sim/server.h"

namespace ballast::sim {

class SimTrainer : public StreamClient {
 public:
  // Process number `process`, who holds its seat in the first epoch or, as a newcomer, asks for it.
  SimTrainer(const Context& context, uint32_t process, const server::Member& who, bool newcomer);

  // Opens the streams; the rounds follow by themselves.
  void Start();
  // The process ends. `announced`: its machine says so.
  void Kill(bool announced);
  bool alive() const { return alive_; }
  // It has asked for a seat, and does not take part yet.
  bool joining() const { return newcomer_ && !initialized_; }
  const server::Member& who() const { return who_; }
  NodeId node() const { return context_.network->TrainerNode(process_); }
  // Every round is over.
  bool finished() const { return initialized_ && round_ > context_.swarm->shape.rounds; }
  // Every server has answered and nothing runs.
  bool at_rest() const;
  uint64_t round() const { return round_; }
  // Why the job cannot go on for this trainer; it does nothing more then.
  const absl::Status& error() const { return error_; }
  // Reads the state arrays from all servers; `fetched()` when they are here and as they must be.
  void FetchState();
  bool fetched() const { return state_fetched_; }
  bool asked() const { return state_asked_; }
  void ForgetState() { state_asked_ = state_fetched_ = false; }
  // Says that it runs no further round; LeaveSoon does when the round it is in is over, but not
  // before the first one is.
  void Leave();
  void LeaveSoon() { leaves_soon_ = true; }
  bool leaving() const { return leaving_ || leaves_soon_; }
  // What it is waiting for, for the report of a run that is stuck.
  std::string Waiting() const;

  void OnDown(const StreamPtr& stream, DownMessage message) override;
  void OnDownClosed(const StreamPtr& stream, const absl::Status& status) override;

 private:
  using Time = client::Reconnect::Time;
  static constexpr std::chrono::milliseconds kHeartbeat{500};
  static constexpr int kLooksPerHeartbeat = 2;
  static constexpr int kLateHeartbeats = 3;
  static constexpr std::chrono::milliseconds kReportAfter{2500};

  enum class Activity { kIdle, kUpload, kFetch, kStep };

  struct Server {
    Server(const Layout* layout, const client::SendLimits& limits)
        : plan(layout, limits), reconnect(client::Reconnect::Limits()) {}

    uint32_t id = 0;
    client::SendPlan plan;
    client::Reconnect reconnect;
    std::vector<uint32_t> init_missing;
    std::vector<uint32_t> owned;
    uint64_t owned_weight_bytes = 0;
    uint64_t owned_elements = 0;

    StreamPtr stream;
    bool welcomed = false;
    bool gave_up = false;
    bool leave_sent = false;  // nothing more is expected but the stream's end
    Time last_heard;
    FrameKind send_kind = FrameKind::kGradient;
    bool restoring = false;
    bool resumed = false;
    std::vector<uint32_t> complete;
    std::vector<uint32_t> complete_before;  // for a mutant
    bool has_info = false;
    uint64_t expected_bytes = 0;
    uint64_t received_bytes = 0;

    bool fetched() const { return has_info && received_bytes == expected_bytes; }
  };

  bool IsLeadTrainer() const { return record_.lead_trainer() == slot_; }
  // This machine's clock, which may be slow or fast.
  Time Now() const;
  void Later(std::chrono::nanoseconds delay, std::function<void()> action);

  // Servers that go and come (session_events.cc).
  void OpenStream(size_t index);
  uint64_t HeldVersion(size_t index) const;
  void Lose(size_t index, const absl::Status& status);
  void Suspend(Server* server, absl::string_view why);
  void Retire(Server* server);
  void SendLeave(Server* server);
  void Tick();
  void ArmTick();
  absl::Status OnWelcome(size_t index, const server::SlotWelcome& welcome);
  absl::Status CheckWelcome(size_t index, uint64_t theirs) const;
  absl::Status TakeMissing(size_t index, const server::SlotWelcome& welcome);
  absl::Status Resume(size_t index, const server::SlotWelcome& welcome);
  void ResumeUpload(Server* server);
  absl::Status LacksInit(const Server& server) const;
  void StartStep(Server* server);
  void BeginRound(Server* server);

  // Epochs (session_events.cc, passage.cc).
  void OnStaleEpoch(size_t index, const absl::Status& status);
  void CallAttach(bool resume);
  void OnAttachAnswer(const absl::StatusOr<server::EpochRecord>& answer);
  void TakeRecord(const server::EpochRecord& record);
  void GiveUp(const absl::Status& status);

  // Messages (session_events.cc).
  absl::Status OnMessage(size_t index, const DownMessage& message);
  absl::Status OnAck(Server* server, const AckMessage& ack);
  absl::Status OnRefused(Server* server, const server::FrameRefused& refused);
  absl::Status OnState(Server* server, const server::StateInfo& info);
  absl::Status OnPiece(size_t index, const PieceMessage& piece);
  void Kick(Server* server);
  void SendFrame(Server* server, const client::FrameRange& range);

  // Activities (session_core.cc).
  void GoOn();
  bool ActivityDone() const;
  void BeginUpload();
  void BeginFetch(bool weights, std::vector<uint32_t> arrays);
  void BeginStep();
  void EndStep();

  const Context context_;
  const uint32_t process_;
  const server::Member who_;
  const uint32_t slot_;
  const bool newcomer_;
  bool alive_ = true;
  bool leaving_ = false;
  bool leaves_soon_ = false;
  bool seated_ = false;                                    // the job's record holds it
  server::EpochRecord record_;                             // of the epoch it is in
  client::Reconnect attach_{client::Reconnect::Limits()};  // the tries to get the next record
  std::vector<Server> servers_;
  uint64_t round_ = 0;  // 0 before the first Welcome
  absl::Status error_;
  bool opened_ = false;       // every server has said Welcome once
  bool initialized_ = false;  // initial weights are where they belong
  bool state_fetched_ = false;
  bool state_asked_ = false;
  bool next_planned_ = false;  // a step is due
  uint64_t tick_ = 0;          // newer ticks make older ones void
  Time next_look_;
  Time last_tick_;
  uint64_t looks_ = 0;

  Activity activity_ = Activity::kIdle;
  uint32_t fresh_extent_ = 0;
  std::vector<std::vector<char>> weights_;   // per extent, in its wire dtype
  std::vector<std::vector<char>> grads_;     // of the open round, kept until it is over
  std::vector<std::vector<float>> fetched_;  // per extent, the state arrays one behind the other
  server::RoundBegin begin_;
  FetchMessage fetch_;
  std::unique_ptr<client::RoundProgress> progress_;
};

}  // namespace ballast::sim
