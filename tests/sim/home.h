// SimHome: how the job's home gives seats and leads changes of epoch: the mirror of
// server/cluster's HomeJob and Seating over the production EpochChange.
// Keep it in step with them. Comes from: SimServer with index 0. Goes to: its engine, the
// other servers. Thread safety: one thread.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "server/cluster/epoch_change.h"
#include "tests/sim/server.h"

namespace ballast::sim {

class SimHome {
 public:
  using Told = std::function<void(absl::StatusOr<server::EpochRecord>)>;

  // `server` has started, and outlives it; `plan` is what its manifest says.
  SimHome(const Context& context, SimServer* server, const server::JobPlan& plan);

  // As StartRecovered: peers may have missed the newest record, or a change its end.
  void Start();
  void Attach(const server::Member& who, bool resume, Told told);
  void OnSeatFree(uint32_t slot, uint64_t incarnation, bool left);

 private:
  struct Waiting {
    uint64_t incarnation = 0;
    Told told;
  };

  NodeId node() const { return context_.network->ServerNode(0); }
  SimClock* clock() const { return context_.world->clock(node()); }
  void After(Tick delay, std::function<void()> action);
  void AwaitSeat(uint32_t slot, uint64_t incarnation, Tick give_up);
  void OnSeatUse(uint32_t slot, uint64_t incarnation, Tick give_up, server::SeatUse use);
  bool OnNewcomer();
  server::Gathering GatheringNow() const;
  uint32_t LeastNow() const;
  void BeginAgain(const server::Gathering& gathering);
  void SomebodyIsThere();
  bool WantsChange() const;
  void StartChange();
  void SealPeer(uint32_t index, uint32_t epoch);
  void OnSealed(uint32_t epoch, uint32_t index, const absl::StatusOr<server::SealAnswer>& answer);
  void OnSealFailed(uint32_t index, const absl::Status& status);
  void WriteRecord();
  void AdoptEverywhere(const server::JobPlan& plan);
  void AdoptAt(uint32_t index, const server::JobPlan& plan);
  void OnAdopted(uint32_t index, const server::JobPlan& plan, const absl::Status& status);
  void EndChange(const absl::Status& status);

  const Context context_;
  SimServer* const server_;
  const uint64_t life_;
  server::JobPlan plan_;
  std::map<uint32_t, Waiting> waiting_;
  std::map<uint32_t, Waiting> survivors_;
  std::map<uint32_t, uint64_t> newcomers_;
  std::map<uint32_t, uint64_t> gone_;
  std::optional<server::EpochChange> change_;
  bool sealed_ = false;
  bool gathers_ = false;
  std::optional<Tick> gathers_until_;
  std::map<uint32_t, absl::Status> adopted_;  // by server index, of the record on its way
};

}  // namespace ballast::sim
