// SimMeeting: the thread of one trainer process that agrees with the others on a communicator in
// each epoch, over the shipped HomeRendezvous. Now and then it sends a request that a home must
// refuse, or is late. MeetingBook: the answers to ranks, which must fit together. Comes from:
// SimTrainer. Goes to: HomeRendezvous over a SimTransport, the world. Thread safety: one thread.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ballast/v1/control.pb.h"
#include "client/cpp/session/home_rendezvous.h"
#include "client/cpp/session/session_core.h"
#include "common/base/reason.h"
#include "tests/sim/net/transport.h"
#include "tests/sim/nodes/context.h"
#include "tests/sim/world/program.h"
#include "tests/sim/world/random.h"

namespace ballast::sim {

class MeetingBook {
 public:
  MeetingBook(World* world, const Oracle* oracle) : world_(world), oracle_(oracle) {}

  // A generation of an epoch; each has one communicator here.
  using Key = std::pair<uint32_t, uint32_t>;

  // A rank got the id.
  void OnId(const Key& key, const std::string& id);
  // A rank says that it is ready.
  void OnReady(const Key& key, const server::Member& rank, const std::string& id);
  // A rank hears that every rank is.
  void OnOpen(const Key& key, const std::string& id);
  // A rank hears that `slot` was missing.
  void OnMissing(const Key& key, int slot);
  // A rank gets a roll call of `epoch`.
  void OnRollCall(uint32_t epoch, const client::RollCallReport& report);

  // From here on every rank does as it should.
  void Calm() { calm_ = true; }
  bool calm() const { return calm_; }

 private:
  World* const world_;
  const Oracle* const oracle_;
  bool calm_ = false;
  std::map<Key, std::string> ids_;
  std::map<std::string, Key> keys_;
  std::map<Key, std::map<uint64_t, std::string>> ready_;  // incarnation -> id
};

class SimMeeting {
 public:
  // `transport` and `core`, of the trainer's session in `job`, outlive it.
  SimMeeting(const Context& context, uint32_t process, const server::Member& who, uint64_t job,
             SimTransport* transport, const client::SessionCore* core);

  // The session may be in another epoch, or may have failed.
  void Poke();
  // The process has ended.
  void End() { program_.End(); }
  // Every rank of the trainer's epoch has made its communicator.
  bool open() const { return open_ && core_->job().epoch == meeting_.epoch; }
  // For heartbeats.
  Doing doing() const { return rendezvous_.doing(); }
  std::string Waiting() const;

 private:
  MeetingBook* book() const { return context_.meetings; }
  MeetingBook::Key key() const { return {meeting_.epoch, meeting_.generation}; }
  // As Session gives them to its HomeRendezvous.
  client::HomeRendezvous::Deps Deps(uint64_t job);
  absl::Status CallHome(const v1::RendezvousRequest& request, std::chrono::milliseconds timeout,
                        v1::RendezvousReply* reply);
  absl::Status WaitFor(Tick time);

  // The thread that owns the communicator.
  void Run();
  // Makes the communicator of `meeting_` and watches over it. Returns why it is over.
  absl::Status Meet();
  absl::Status Make(const std::string& id);
  absl::Status GiveUp();
  absl::Status Watch();
  // Does something wrong, which the home must refuse.
  void DoWrong(const std::string& id);
  v1::RendezvousRequest Request(v1::RendezvousAct act) const;
  void SendWrong(const v1::RendezvousRequest& request, Reason expected);

  const Context context_;
  const server::Member who_;
  SimTransport* const transport_;
  const client::SessionCore* const core_;
  Random random_;
  uint32_t wrongs_left_ = 3;
  client::Meeting meeting_;
  bool open_ = false;
  std::vector<std::unique_ptr<client::CallHandle>> wrong_calls_;
  client::HomeRendezvous rendezvous_;
  SimProgram program_;
};

}  // namespace ballast::sim
