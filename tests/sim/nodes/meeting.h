// SimMeeting: how one trainer process agrees with the others on a communicator in each epoch, over
// Control.Rendezvous of the simulated home: the steps of HomeRendezvous on its caller's thread
// happen here in events. Now and then it sends a request that a home must refuse, or is late.
// MeetingBook: the answers to ranks, which must fit together. Comes from: SimTrainer. Goes to:
// SimTransport, the world. Thread safety: one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/v1/control.pb.h"
#include "client/cpp/job/job_view.h"
#include "common/base/reason.h"
#include "common/bytes/payload.h"
#include "tests/sim/net/transport.h"
#include "tests/sim/nodes/context.h"
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
  using Later = std::function<void(Tick, std::function<void()>)>;
  // `transport` outlives it; `job` of the trainer's session, which is there from now on.
  SimMeeting(const Context& context, uint32_t process, const server::Member& who,
             SimTransport* transport, std::function<const client::JobView&()> job, Later later);

  // The job may be in another epoch.
  void Poke();
  // Every rank of the trainer's epoch has made its communicator.
  bool open() const { return open_ && job_().epoch == epoch_; }
  std::string Waiting() const;

 private:
  enum class Stage { kExchange, kMaking, kReady };

  MeetingBook* book() const { return context_.meetings; }
  MeetingBook::Key key() const { return {epoch_, generation_}; }
  v1::RendezvousRequest Request(v1::RendezvousAct act) const;
  void BeginGeneration(uint32_t generation);
  void BeginNextLater();
  void Ask();
  void AskLater();
  void OnAnswer(const absl::StatusOr<Payload>& answer);
  void OnRefused(const absl::Status& status);
  void WatchLater();
  void OnNews(const absl::StatusOr<Payload>& answer);
  void OnId(const std::string& id);
  void Make();
  void GiveUpLater();
  // Does something wrong, which the home must refuse.
  void DoWrong();
  void SendWrong(const v1::RendezvousRequest& request, Reason expected);

  const Context context_;
  const server::Member who_;
  SimTransport* const transport_;
  const std::function<const client::JobView&()> job_;
  const Later later_;
  Random random_;
  uint32_t wrongs_left_ = 3;
  uint32_t epoch_ = 0;
  uint32_t generation_ = 0;
  uint64_t attempt_ = 0;  // newer ones void older tasks
  Stage stage_ = Stage::kExchange;
  bool open_ = false;
  bool over_ = false;  // another process has the seat
  std::string id_;
  std::unique_ptr<client::Call> call_;
  std::vector<std::unique_ptr<client::Call>> wrong_calls_;
};

}  // namespace ballast::sim
