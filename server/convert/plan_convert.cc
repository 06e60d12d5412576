#include "server/convert/plan_convert.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/planted.h"
#include "common/text/names.h"
#include "proto/convert/job_convert.h"

namespace ballast::server {
namespace {

absl::Status BadEpoch(absl::string_view message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadFrame, message);
}

bool StrictlyAscending(const std::vector<uint32_t>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) == values.end();
}

}  // namespace

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
      return BadEpoch(absl::StrCat("member of slot ", member.slot(), " is out of order"));
    }
    out.members.push_back({member.slot(), member.incarnation(), member.identity()});
  }
  for (const v1::ContributorSet& set : epoch.contributors()) {
    if (set.group() != out.contributors.size()) {
      return BadEpoch(absl::StrCat("contributor set of group ", set.group(), " is out of order"));
    }
    ContributorSet added{{set.slots().begin(), set.slots().end()}, set.divisor()};
    const bool seated = std::all_of(added.slots.begin(), added.slots.end(),
                                    [&](uint32_t slot) { return out.Find(slot) != nullptr; });
    if (!StrictlyAscending(added.slots) || added.slots.empty() || !seated) {
      return BadEpoch(absl::StrCat("contributors of group ", set.group(),
                                   " are missing, not ascending or not members"));
    }
    if (!(added.divisor > 0) || !v1::ContributorRule_IsValid(set.rule())) {
      return BadEpoch(absl::StrCat("group ", set.group(), " has divisor ", added.divisor,
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
  job.set_home_incarnation(plan.attempt.home);
  job.set_attempt(plan.attempt.number);
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
  plan.attempt = {job.home_incarnation(), job.attempt()};
  BALLAST_ASSIGN_OR_RETURN(plan.tenant, TenantFromProto(job.tenant()));
  return plan;
}

PlanCodec MakePlanCodec() {
  PlanCodec codec;
  codec.encode = [](const JobPlan& plan) { return PeerJobToProto(plan).SerializeAsString(); };
  codec.decode = [](const std::string& bytes) -> absl::StatusOr<JobPlan> {
    v1::PeerJob job;
    if (!job.ParseFromString(bytes)) return absl::DataLossError("it does not parse");
    return PeerJobFromProto(job);
  };
  return codec;
}

}  // namespace ballast::server
