#include "server/convert/convert.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/planted.h"
#include "common/text/names.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/policy_convert.h"
#include "proto/convert/status_convert.h"

namespace ballast::server {
namespace {

static_assert(static_cast<int>(UploadPlane::kMaster) == v1::STATE_PLANE_MASTER);
static_assert(kUploadPlaneMax == v1::STATE_PLANE_ARRAY3_LOW);

absl::Status BadFrame(absl::string_view message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadFrame, message);
}

bool StrictlyAscending(const std::vector<uint32_t>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) == values.end();
}

absl::StatusOr<UploadPlane> UploadFromProto(const v1::RoundBegin& begin) {
  if (begin.plane() == v1::STATE_PLANE_NONE) {
    return begin.upload() ? UploadPlane::kWeights : UploadPlane::kNone;
  }
  const auto plane = static_cast<int>(begin.plane());
  if (!begin.upload() && v1::StatePlane_IsValid(plane)) return static_cast<UploadPlane>(plane);
  return BadFrame(absl::StrCat("a round uploads plane number ", plane,
                               begin.upload() ? " and weights; it uploads one of them"
                                              : "; planes have the numbers 2 to 9"));
}

}  // namespace

void ToProto(const PolicyReport& policy, v1::Policy* out) {
  ballast::ToProto(policy.state, out);
  if (policy.why_skipped.kind != NonfiniteKind::kNone) {
    ballast::ToProto(policy.why_skipped, out->mutable_why_skipped());
  }
}

void ToProto(const EpochRecord& epoch, v1::EpochRecord* out) {
  out->Clear();
  out->set_epoch(epoch.epoch);
  out->set_start_round(epoch.start_round);
  for (const Member& member : epoch.members) {
    v1::Member* added = out->add_members();
    added->set_slot(member.slot);
    added->set_incarnation(member.incarnation);
    added->set_identity(member.identity);
  }
  for (size_t group = 0; group < epoch.contributors.size(); ++group) {
    const ContributorSet& set = epoch.contributors[group];
    v1::ContributorSet* added = out->add_contributors();
    added->set_group(static_cast<uint32_t>(group));
    added->mutable_slots()->Assign(set.slots.begin(), set.slots.end());
    added->set_divisor(set.divisor);
    added->set_rule(static_cast<v1::ContributorRule>(set.rule));
  }
  out->set_init_again(epoch.init_again);
  out->set_min_world(epoch.min_world);
}

absl::StatusOr<EpochRecord> EpochFromProto(const v1::EpochRecord& epoch) {
  EpochRecord out;
  out.epoch = epoch.epoch();
  out.start_round = epoch.start_round();
  out.init_again = epoch.init_again();
  out.min_world = std::max(epoch.min_world(), uint32_t{1});
  for (const v1::Member& member : epoch.members()) {
    if (!out.members.empty() && member.slot() <= out.members.back().slot && !BALLAST_PLANTED) {
      return BadFrame(absl::StrCat("member of slot ", member.slot(), " is out of order"));
    }
    out.members.push_back({member.slot(), member.incarnation(), member.identity()});
  }
  for (const v1::ContributorSet& set : epoch.contributors()) {
    if (set.group() != out.contributors.size()) {
      return BadFrame(absl::StrCat("contributor set of group ", set.group(), " is out of order"));
    }
    ContributorSet added{{set.slots().begin(), set.slots().end()}, set.divisor()};
    const bool seated = std::all_of(added.slots.begin(), added.slots.end(),
                                    [&](uint32_t slot) { return out.Find(slot) != nullptr; });
    if (!StrictlyAscending(added.slots) || added.slots.empty() || !seated) {
      return BadFrame(absl::StrCat("contributors of group ", set.group(),
                                   " are missing, not ascending or not members"));
    }
    if (!(added.divisor > 0) || !v1::ContributorRule_IsValid(set.rule())) {
      return BadFrame(absl::StrCat("group ", set.group(), " has divisor ", added.divisor,
                                   " and contributor rule ", static_cast<int>(set.rule())));
    }
    added.rule = static_cast<ContributorRule>(set.rule());
    out.contributors.push_back(std::move(added));
  }
  return out;
}

std::string TenantToProto(const std::string& tenant) {
  return tenant == kDefaultTenant ? std::string() : tenant;
}

absl::StatusOr<std::string> TenantFromProto(const std::string& tenant) {
  if (tenant.empty()) return std::string(kDefaultTenant);
  BALLAST_RETURN_IF_ERROR(ValidateName("tenant", tenant));
  return tenant;
}

v1::PeerJob PeerJobToProto(const JobPlan& plan) {
  v1::PeerJob job;
  job.set_job(plan.job);
  ballast::ToProto(plan.spec, job.mutable_spec());
  ToProto(plan.epoch, job.mutable_epoch());
  job.mutable_plan()->mutable_owner()->Assign(plan.owner.begin(), plan.owner.end());
  job.mutable_servers()->Assign(plan.servers.begin(), plan.servers.end());
  job.set_layout_version(plan.layout_version);
  job.set_sealed_epoch(plan.sealed_epoch);
  job.set_resting(plan.resting);
  job.set_resting_round(plan.resting_round);
  job.set_making(plan.making);
  job.set_grown_round(plan.grown_round);
  job.set_tensors_before(plan.tensors_before);
  job.set_growing(plan.growing);
  job.set_tenant(TenantToProto(plan.tenant));
  return job;
}

absl::StatusOr<JobPlan> PeerJobFromProto(const v1::PeerJob& job) {
  JobPlan plan;
  plan.job = job.job();
  BALLAST_ASSIGN_OR_RETURN(plan.spec, JobSpecFromProto(job.spec()));
  BALLAST_ASSIGN_OR_RETURN(plan.epoch, EpochFromProto(job.epoch()));
  plan.owner.assign(job.plan().owner().begin(), job.plan().owner().end());
  plan.servers.assign(job.servers().begin(), job.servers().end());
  plan.layout_version = job.layout_version();
  plan.sealed_epoch = job.sealed_epoch();
  plan.resting = job.resting();
  plan.resting_round = job.resting_round();
  plan.making = job.making();
  plan.grown_round = job.grown_round();
  plan.tensors_before = job.tensors_before();
  plan.growing = job.growing();
  BALLAST_ASSIGN_OR_RETURN(plan.tenant, TenantFromProto(job.tenant()));
  return plan;
}

absl::StatusOr<RoundBegin> BeginFromProto(const v1::RoundBegin& begin, size_t presence_bytes_max) {
  if (begin.presence().size() > presence_bytes_max) {
    return BadFrame(absl::StrCat("presence of ", begin.presence().size(), " bytes, limit ",
                                 presence_bytes_max));
  }
  RoundBegin out;
  out.round = begin.round();
  out.layout_version = begin.layout_version();
  out.user_state = begin.user_state();
  out.loss_scale = begin.loss_scale();
  BALLAST_ASSIGN_OR_RETURN(out.upload, UploadFromProto(begin));
  if (begin.tensor_step_size() != 0) {
    out.steps = {{begin.tensor_step().begin(), begin.tensor_step().end()}, begin.opt_step(), {}};
    if (begin.has_schedule_index()) out.steps->schedule_index = begin.schedule_index();
  }
  out.gradient_crc32c.assign(begin.gradient_crc32c().begin(), begin.gradient_crc32c().end());
  out.weight_crc32c.assign(begin.weight_crc32c().begin(), begin.weight_crc32c().end());
  out.hyper.reserve(static_cast<size_t>(begin.hyper_size()));
  for (const v1::GroupHyper& group : begin.hyper()) {
    out.hyper.emplace_back(group.value().begin(), group.value().end());
  }
  out.presence.reserve(begin.presence().size() * 8);
  for (const char byte : begin.presence()) {
    for (int bit = 0; bit < 8; ++bit) {
      out.presence.push_back((static_cast<unsigned char>(byte) >> bit & 1) != 0);
    }
  }
  return out;
}

void ToProto(const RoundDone& done, v1::RoundDone* out) {
  out->set_round(done.round);
  out->set_step_ns(done.step_ns);
  out->set_weight_overflows(done.weight_overflows);
}

void ToProto(const FrameRefused& refused, v1::FrameRefused* out) {
  out->set_reason(static_cast<v1::Reason>(refused.reason));
  out->set_round(refused.round);
  out->set_extent(refused.extent);
  out->set_offset(refused.offset_bytes);
  out->set_message(refused.message);
}

void ToProto(const TrainerNews& news, v1::TrainerNews* out) {
  out->Clear();
  out->set_slot(news.slot);
  out->set_away(news.away);
  out->set_why(news.why);
  out->set_lease_left_ms(news.lease_left_ms);
}

void ToProto(const StateInfo& info, v1::StateInfo* out) {
  out->set_round(info.round);
  out->set_bytes(info.bytes);
  out->mutable_tensor_step()->Assign(info.tensor_step.begin(), info.tensor_step.end());
  out->set_opt_step(info.opt_step);
  if (info.policy.has_value()) ToProto(*info.policy, out->mutable_policy());
}

void ToProto(const DurableJob& job, v1::DurableJob* out) {
  out->set_name(job.name);
  out->set_job(job.job);
  out->set_state(job.state);
  out->set_durability(static_cast<v1::Durability>(job.durability));
  out->set_world(job.world);
  out->set_epoch(job.epoch);
  out->set_round(job.round);
  out->set_parameters(job.parameters);
  out->set_tensors(job.tensors);
  out->set_groups(job.groups);
  out->mutable_servers()->Assign(job.servers.begin(), job.servers.end());
  out->set_open_streams(job.open_streams);
  out->set_disk_bytes(job.disk_bytes);
  out->set_tenant(TenantToProto(job.tenant));
}

void ToProto(const SnapshotInfo& snapshot, v1::Snapshot* out) {
  out->set_job(snapshot.job);
  out->set_name(snapshot.name);
  out->set_id(snapshot.id);
  out->set_round(snapshot.round);
  out->set_created_s(snapshot.created_s);
  out->set_bytes(snapshot.bytes);
  out->set_parameters(snapshot.parameters);
  out->set_world(snapshot.world);
  out->mutable_servers()->Assign(snapshot.servers.begin(), snapshot.servers.end());
  out->set_tenant(TenantToProto(snapshot.tenant));
}

void ToProto(const Work& work, v1::Work* out) {
  out->set_kind(work.kind);
  out->set_name(work.name);
  out->set_done_bytes(work.done_bytes);
  out->set_total_bytes(work.total_bytes);
}

void ToProto(const TenantUse& use, v1::Tenant* out) {
  out->set_tenant(use.tenant);
  for (const Resource& resource : Resources()) {
    v1::TenantResource* const added = out->add_resources();
    added->set_resource(resource.key);
    added->set_used(use.used.*resource.amount);
    const uint64_t limit = use.limits.*resource.amount;
    if (limit != kUnlimited) added->set_allowed(limit);
    added->set_bytes(resource.bytes);
  }
}

absl::StatusOr<DType> WeightDType(v1::DType dtype) {
  if (v1::DType_IsValid(dtype)) return static_cast<DType>(dtype);
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
                       absl::StrCat("weights have no dtype ", static_cast<int>(dtype)));
}

namespace {

const char* EndName(RoundEnd end) {
  switch (end) {
    case RoundEnd::kCommitted:
      return "committed";
    case RoundEnd::kSkipped:
      return "skipped";
    case RoundEnd::kHalted:
      return "halted";
  }
  return "unknown";
}

}  // namespace

v1::PeerSealed SealedToProto(const SealAnswer& answer) {
  v1::PeerSealed sealed;
  sealed.set_version(answer.version);
  sealed.set_prepared(answer.prepared);
  sealed.set_init_missing(answer.init_missing);
  sealed.set_world_max(answer.world_max);
  if (!answer.refusal.ok()) *sealed.mutable_refusal() = DetailOf(answer.refusal);
  return sealed;
}

SealAnswer SealedFromProto(const v1::PeerSealed& sealed) {
  SealAnswer answer{sealed.version(), sealed.prepared(), sealed.init_missing()};
  if (sealed.world_max() != 0) answer.world_max = sealed.world_max();
  if (sealed.has_refusal()) answer.refusal = FromDetail(sealed.refusal());
  return answer;
}

absl::StatusOr<ExportFormat> FormatFromProto(v1::ExportFormat format) {
  if (v1::ExportFormat_IsValid(format)) return static_cast<ExportFormat>(format);
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument,
                       absl::StrCat("this server knows no export format ", static_cast<int>(format),
                                    "; it knows 0 and 1"));
}

void ToProto(const JobStatus& job, uint32_t rounds, v1::JobStatus* out) {
  out->set_name(job.name);
  out->set_job(job.job);
  out->set_state(job.state);
  out->set_round(job.round);
  out->set_phase(job.phase);
  out->set_opt_step(job.opt_step);
  out->set_world(job.world);
  out->set_extents(job.extents);
  out->set_owned_extents(job.owned_extents);
  out->set_state_bytes(job.state_bytes);
  out->set_parameters(job.parameters);
  for (const SlotStatus& slot : job.slots) {
    v1::SlotStatus* added = out->add_slots();
    added->set_slot(slot.slot);
    added->set_state(slot.state);
    added->set_owed_extents(slot.owed_extents);
    added->set_first_owed(slot.first_owed);
  }
  out->set_error(job.error);
  out->mutable_votes_missing()->Assign(job.votes_missing.begin(), job.votes_missing.end());
  out->set_tier(job.tier);
  out->set_tenant(TenantToProto(job.tenant));
  const size_t first = job.rounds.size() - std::min<size_t>(job.rounds.size(), rounds);
  for (size_t i = first; i < job.rounds.size(); ++i) {
    const FinishedRound& round = job.rounds[i];
    v1::FinishedRound* added = out->add_rounds();
    added->set_round(round.round);
    added->set_end(EndName(round.end));
    added->set_age_ns(job.now_ns - round.ended_ns);
    added->set_collect_ns(round.collect_ns);
    added->set_vote_ns(round.vote_ns);
    added->set_step_ns(round.step_ns);
    added->set_pushed_bytes(round.pushed_bytes);
    added->set_grad_norm(round.grad_norm);
    added->set_last_slot(round.last_slot);
  }
}

}  // namespace ballast::server
