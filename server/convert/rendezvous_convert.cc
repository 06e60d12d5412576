// Calls of the rendezvous and their answers; see convert.h.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/types/enum_names.h"
#include "server/convert/convert.h"

namespace ballast::server {
namespace {

using std::chrono::milliseconds;

static_assert(static_cast<int>(rendezvous::Act::kExchange) == v1::RENDEZVOUS_ACT_EXCHANGE);
static_assert(static_cast<int>(rendezvous::Act::kReady) == v1::RENDEZVOUS_ACT_READY);
static_assert(static_cast<int>(rendezvous::Act::kGiveUp) == v1::RENDEZVOUS_ACT_GIVE_UP);
static_assert(static_cast<int>(rendezvous::Act::kRollCall) == v1::RENDEZVOUS_ACT_ROLL_CALL);

absl::Status BadNumber(const char* what, int number, int last) {
  return ReasonedError(
      absl::StatusCode::kInvalidArgument, Reason::kBadFrame,
      absl::StrCat(what, " number ", number, " is not known; the last one is ", last));
}

// Later additions to it must not overflow; a day is longer than any call waits.
milliseconds Bounded(uint64_t time_ms) {
  constexpr uint64_t kDayMs = 24 * 3600 * 1000;
  return milliseconds(std::min(time_ms, kDayMs));
}

}  // namespace

absl::StatusOr<Doing> DoingFromProto(const v1::Doing& doing) {
  const auto phase = FromNumber<CollectivePhase>(doing.phase());
  if (!phase.has_value()) {
    const CollectivePhase last = kEnumNames<CollectivePhase>.back().value;
    return BadNumber("collective phase", doing.phase(), static_cast<int>(last));
  }
  return Doing{*phase, doing.bucket(), doing.round()};
}

absl::StatusOr<RendezvousCall> RendezvousFromProto(const v1::RendezvousRequest& request) {
  const int last = static_cast<int>(rendezvous::kLastAct);
  if (request.act() < static_cast<int>(rendezvous::Act::kExchange) || request.act() > last) {
    return BadNumber("rendezvous act", request.act(), last);
  }
  RendezvousCall call{.job = request.job()};
  BALLAST_ASSIGN_OR_RETURN(call.call.doing, DoingFromProto(request.doing()));
  call.call.epoch = request.epoch();
  call.call.slot = request.slot();
  call.call.incarnation = request.incarnation();
  call.call.act = static_cast<rendezvous::Act>(request.act());
  call.call.generation = request.generation();
  call.call.tag = request.tag();
  call.call.id = request.id();
  call.call.why = request.why();
  call.call.timeout = Bounded(request.timeout_ms());
  call.call.wait = Bounded(request.wait_ms());
  return call;
}

v1::RendezvousReply RendezvousToProto(const rendezvous::Reply& reply) {
  v1::RendezvousReply out;
  out.set_over(reply.over);
  out.set_id(reply.id);
  out.set_generation(reply.generation);
  out.set_ended(reply.ended);
  out.set_lease_ms(
      static_cast<uint64_t>(std::chrono::duration_cast<milliseconds>(reply.lease).count()));
  for (const rendezvous::RankHeard& rank : reply.ranks) {
    v1::RankHeard* const added = out.add_ranks();
    added->set_slot(rank.slot);
    added->set_heard(rank.heard);
    added->set_ago_ms(
        static_cast<uint64_t>(std::chrono::duration_cast<milliseconds>(rank.ago).count()));
    added->mutable_doing()->set_phase(static_cast<v1::CollectivePhase>(rank.doing.phase));
    added->mutable_doing()->set_bucket(rank.doing.bucket);
    added->mutable_doing()->set_round(rank.doing.round);
    added->set_since_epoch(rank.since_epoch);
  }
  return out;
}

}  // namespace ballast::server
