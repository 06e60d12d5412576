// HomeGrowth: how groups are added to a running job, at its home.
//
//   NONE -all slots ask-> ROOM -every server has it-> RECORD -at the home-> PEERS -all-> NONE
//
// All slots ask at the home, which makes the grown plan when the last one has. A job without
// durability is grown at every server at once, and fails if one of them cannot. A durable job grows
// in two steps: every server makes room on its disk, and the first that cannot ends the attempt;
// then the home takes the plan into its record, which makes the growth final, and the peers follow,
// also after a restart of the home, however long a peer is away.
//
// Pure: calls and answers in, effects out; no thread, clock or I/O.
// Comes from: HomeJob. Goes to: HomeJob. Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "server/home/home_types.h"

namespace ballast::server {

class HomeGrowth {
 public:
  enum class Phase : uint8_t { kNone, kRoom, kRecord, kPeers };

  // `rules` outlives it.
  explicit HomeGrowth(const home::Rules* rules) : rules_(rules) {}

  // Every slot has asked, and not every server has the grown plan.
  bool busy() const { return phase_ != Phase::kNone; }

  // A slot asks to add groups to the job of `plan`. With the last one the servers are asked to
  // grow. Returns the errors that concern this call alone, which changes nothing: UNAVAILABLE
  // RECOVERING while the layout, or with `changes` the epoch, changes; UNIMPLEMENTED UNSUPPORTED
  // for a durable job before a round in which tensors take part for the first time;
  // FAILED_PRECONDITION STALE_EPOCH, WRONG_INCARNATION. Other errors mean that the slots disagree
  // on the job's layout, so that the job cannot continue: INVALID_ARGUMENT BAD_SPEC,
  // FAILED_PRECONDITION LAYOUT_MISMATCH, INIT_MISMATCH; `*fatal` is set.
  absl::Status Ask(const home::ExtendInput& input, const JobPlan& plan, bool changes, bool* fatal,
                   home::Effects* effects);

  // An answer to GrowAt. `plan` becomes the grown one once all servers have it. Returns whether the
  // growth is over, well or not, and every slot has its answer.
  bool OnGrown(const home::GrownInput& input, JobPlan* plan, home::Effects* effects);

  // The home has started again: its peers may lack the newest layout of `plan`. Returns as OnGrown.
  bool Resume(const JobPlan& plan, home::Effects* effects);
  // The time of GrowDueInput. Returns as OnGrown.
  bool OnDue(const home::GrowDueInput& due, JobPlan* plan, home::Effects* effects);

  // Answers every waiting slot with `status` and drops its request. The servers finish their part.
  void FailWaiting(const absl::Status& status, home::Effects* effects);
  // Drops the wishes of slots that no answer was given to.
  void DropWishes() { wishes_.clear(); }

 private:
  absl::Status Check(const ExtendCall& call, const JobPlan& plan, bool changes) const;
  // Takes the wish of a slot. Errors as Ask.
  absl::Status Wish(const ExtendCall& call, const JobPlan& plan);
  // Whether `call` agrees with the wishes of other slots.
  absl::Status CheckWish(const ExtendCall& call, const JobPlan& plan) const;
  absl::Status SpecOf(const ExtendCall& call, const JobPlan& plan, JobSpec* grown) const;
  void Wait(uint32_t slot, home::Ticket ticket, home::Effects* effects);
  void AskServers(const JobPlan& plan, const std::vector<uint32_t>& servers,
                  home::Effects* effects);
  bool AskPeers(const JobPlan& plan, home::Effects* effects);
  // Every server has answered: goes to the next phase. Returns as OnGrown.
  bool Advance(JobPlan* plan, home::Effects* effects);
  bool End(const absl::Status& status, const JobPlan& plan, home::Effects* effects);

  const home::Rules* rules_;
  Phase phase_ = Phase::kNone;
  std::map<uint32_t, ExtendCall> wishes_;     // by slot
  std::map<uint32_t, home::Ticket> waiting_;  // by slot
  JobPlan grown_;                             // kRoom and kRecord: the order to the servers
  uint64_t attempt_ = 0;
  home::Tally tally_;
};

}  // namespace ballast::server
