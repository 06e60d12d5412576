// SimTrainer: one training process. It asks for a seat, gives gradients, takes weights, fetches the
// state and leaves, over the shipped SessionCore; what Session does on its caller's thread happens
// here in events.
// Comes from: the simulation. Goes to: SessionCore over a SimTransport; the oracle. Thread safety:
// one thread. Memory: it owns its tensors, and lends them to the SessionCore.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/job/lent_memory.h"
#include "client/cpp/session/session_core.h"
#include "tests/sim/net/transport.h"
#include "tests/sim/nodes/context.h"
#include "tests/sim/nodes/home_search.h"
#include "tests/sim/nodes/meeting.h"
#include "tests/sim/tensors.h"

namespace ballast::sim {

class SimTrainer {
 public:
  // Process number `process`, which holds the seat `who` in the first epoch or, as a newcomer, asks
  // for it.
  SimTrainer(const Context& context, uint32_t process, const server::Member& who, bool newcomer);

  // Asks for the seat; the session and its rounds follow by themselves.
  void Start() { Attach(); }
  // The process ends. `announced`: its machine says so.
  void Kill(bool announced);
  bool alive() const { return alive_; }
  // It has asked for a seat, and does not take part yet.
  bool joining() const { return newcomer_ && stage_ != Stage::kTrains; }
  const server::Member& who() const { return who_; }
  NodeId node() const { return context_.network->TrainerNode(process_); }
  // Every round is over.
  bool finished() const;
  // Every server has answered and nothing runs.
  bool at_rest() const;
  // Why the job cannot go on for this trainer; it does nothing more then.
  const absl::Status& error() const { return error_; }
  // Reads the state arrays from all servers; `fetched()` when they are here and as they must be.
  void FetchState();
  bool fetched() const { return state_fetched_; }
  bool asked() const { return state_asked_; }
  void ForgetState() { state_asked_ = state_fetched_ = false; }
  // Says that it runs no further round, when nothing runs; LeaveSoon does when the round it is in
  // is over, but not before the first one is. Then the process ends.
  void Leave();
  void LeaveSoon() { leaves_soon_ = true; }
  bool leaving() const { return leaves_ || leaves_soon_; }
  // Its communicator of the present epoch is made, everywhere, or this seed makes none.
  bool met() const { return meeting_ == nullptr || meeting_->open(); }
  // The event it is waiting for, for the report of a run that is stuck.
  std::string Waiting() const;

 private:
  enum class Stage { kOpens, kUploads, kFetches, kTrains };

  const client::JobView& job() const { return core_->job(); }
  void Later(std::chrono::nanoseconds delay, std::function<void()> action);

  // The seat (client.cc).
  JobSpec Spec() const;
  client::JobOptions Options() const;
  void Attach();
  void OnAttached(const absl::StatusOr<v1::AttachReply>& reply);
  bool OpenedInVain(const absl::Status& status) const;
  void OpenSession(const v1::AttachReply& reply);

  // The caller's thread (session.cc).
  void Wake();
  void GoOn();
  bool AllWelcomed() const;
  void EndActivity();
  void Initialize();
  void TakeInitialWeights();
  void BeginFetch(client::Fetch fetch, const v1::FetchState& request);
  void OnFetched(const client::Fetch& fetch);
  void BeginLeave();
  void AwaitLeft();
  void GiveUp(const absl::Status& status);

  // Rounds.
  void PlanStep();
  void BeginStep();
  absl::StatusOr<client::RoundInput> Input(UploadPlane plane);
  void EndStep();
  void GatherWeights(uint64_t round, uint32_t extent);

  const Context context_;
  const uint32_t process_;
  const server::Member who_;
  bool newcomer_;
  bool alive_ = true;
  bool leaves_ = false;
  bool leaves_soon_ = false;
  bool state_fetched_ = false;
  bool state_asked_ = false;
  bool step_planned_ = false;
  bool wake_planned_ = false;
  Stage stage_ = Stage::kOpens;
  absl::Status error_;
  Tensors weights_;
  Tensors grads_;                // of the open round, kept until it is over
  std::vector<Tensors> arrays_;  // of the state, fetched
  client::BufferLease lease_;
  SimTransport transport_;
  std::unique_ptr<SimHomeSearch> search_;      // for a seat
  std::unique_ptr<client::SessionCore> core_;  // null before there is a seat
  std::unique_ptr<SimMeeting> meeting_;        // likewise; null in seeds without communicators
};

}  // namespace ballast::sim
