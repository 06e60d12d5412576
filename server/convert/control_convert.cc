#include "server/convert/control_convert.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/types/enum_names.h"
#include "proto/convert/job_convert.h"
#include "server/convert/data_convert.h"
#include "server/convert/plan_convert.h"

namespace ballast::server {
namespace {

using std::chrono::milliseconds;

absl::Status BadSpec(absl::string_view message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadSpec, message);
}

absl::StatusOr<InitMode> InitFromProto(v1::InitMode mode) {
  if (const auto known = FromNumber<InitMode>(mode); known.has_value()) return *known;
  return BadSpec(NotKnown<InitMode>("init mode number", mode));
}

// One digest per tensor, or none if slot 0 provides the weights.
absl::Status CheckDigests(InitMode init, uint32_t slot, size_t tensors, size_t digests) {
  if (digests == tensors) return absl::OkStatus();
  if (init == InitMode::kBroadcast && digests == 0) return absl::OkStatus();
  return BadSpec(absl::StrCat("slot ", slot, " sends digests of ", digests,
                              " initial tensors, the manifest has ", tensors));
}

// Hides the identities of the other trainers.
void HideIdentities(v1::EpochRecord* epoch) {
  for (v1::Member& member : *epoch->mutable_members()) member.clear_identity();
}

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

// --- Attach and Extend --------------------------------------------------------------------------

absl::StatusOr<AttachCall> AttachFromProto(const v1::AttachRequest& request) {
  AttachCall call;
  BALLAST_ASSIGN_OR_RETURN(call.spec, JobSpecFromProto(request.spec()));
  BALLAST_ASSIGN_OR_RETURN(call.init, InitFromProto(request.init()));
  call.slot = request.slot();
  call.incarnation = request.incarnation();
  call.tensor_crc32c.assign(request.tensor_crc32c().begin(), request.tensor_crc32c().end());
  BALLAST_RETURN_IF_ERROR(
      CheckDigests(call.init, call.slot, call.spec.tensors.size(), call.tensor_crc32c.size()));
  call.wait = Bounded(request.wait_timeout_ms());
  call.resume = FromNumber<Resume>(request.resume()).value_or(Resume::kNever);
  if (request.min_world() > call.spec.world) {
    return BadSpec(absl::StrCat("min_world is ", request.min_world(), ", but slot ", call.slot,
                                " names a world of ", call.spec.world));
  }
  call.min_world = std::max(request.min_world(), uint32_t{1});
  return call;
}

absl::StatusOr<ExtendCall> ExtendFromProto(const v1::ExtendRequest& request) {
  ExtendCall call;
  call.job = request.job();
  call.epoch = request.epoch();
  call.slot = request.slot();
  call.incarnation = request.incarnation();
  call.base_layout_version = request.base_layout_version();
  call.group_count = request.group_count();
  BALLAST_ASSIGN_OR_RETURN(call.tensors, TensorsFromProto(request.tensors()));
  BALLAST_ASSIGN_OR_RETURN(call.init, InitFromProto(request.init()));
  call.tensor_crc32c.assign(request.tensor_crc32c().begin(), request.tensor_crc32c().end());
  call.round = request.round();
  call.schedule_group.assign(request.schedule_group().begin(), request.schedule_group().end());
  BALLAST_RETURN_IF_ERROR(
      CheckDigests(call.init, call.slot, call.tensors.size(), call.tensor_crc32c.size()));
  return call;
}

v1::AttachReply AttachToProto(const AttachResult& result, const TransportTerms& terms,
                              uint32_t protocol) {
  v1::AttachReply reply;
  reply.set_job(result.plan.job);
  ToProto(result.plan.epoch, reply.mutable_epoch());
  HideIdentities(reply.mutable_epoch());
  reply.mutable_plan()->mutable_owner()->Assign(result.plan.owner.begin(), result.plan.owner.end());
  for (const ServerAddress& server : result.servers) {
    v1::ServerAddress* added = reply.add_servers();
    added->set_id(server.id);
    added->set_address(server.address);
  }
  reply.set_chunk_bytes(terms.chunk_bytes);
  reply.set_credit_bytes(terms.credit_bytes);
  reply.set_window_extents(result.window_extents);
  reply.set_layout_version(result.plan.layout_version);
  reply.set_heartbeat_ms(terms.heartbeat_ms);
  reply.set_report_after_ms(terms.report_after_ms);
  reply.set_protocol(protocol);
  reply.set_resumed(result.resumed);
  if (result.plan.epoch.start_round == result.plan.grown_round) {
    reply.set_fresh_tensors(static_cast<uint32_t>(result.plan.spec.tensors.size()) -
                            result.plan.tensors_before);
  }
  reply.set_user_state(result.state.user_state);
  if (result.state.policy.has_value()) ToProto(*result.state.policy, reply.mutable_policy());
  return reply;
}

v1::ExtendReply ExtendToProto(const JobPlan& plan, uint32_t window_extents) {
  v1::ExtendReply reply;
  reply.set_layout_version(plan.layout_version);
  reply.mutable_plan()->mutable_owner()->Assign(plan.owner.begin(), plan.owner.end());
  ToProto(plan.epoch, reply.mutable_epoch());
  HideIdentities(reply.mutable_epoch());
  reply.set_window_extents(window_extents);
  return reply;
}

// --- Rendezvous ---------------------------------------------------------------------------------

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
