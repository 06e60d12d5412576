#include "server/jobs/job_records.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/bytes/little_endian.h"
#include "common/faults/failpoint.h"
#include "common/text/names.h"
#include "server/meta/keys.h"
#include "server/round/job_plan.h"

namespace ballast::server {
namespace {

// The version precedes the value, so that an older ballastd refuses a newer record instead of
// misreading it.
constexpr uint32_t kPlanVersion = 1;
// Of a job in which not every member contributes: a reader of version 1 would let all of them.
constexpr uint32_t kPlanVersionContributors = 2;
constexpr uint32_t kEpochVersion = 1;
// Bounds on the numbers in a damaged record: limits.max_groups cannot allow more groups, and no job
// has as many contributors.
constexpr uint64_t kGroupsMax = 65536;
constexpr uint64_t kContributorsMax = uint64_t{1} << 26;
// Of the epoch records removed in one step.
constexpr size_t kRemovedAtOnce = kMetaTxnOperationsMax / 2;

absl::Status Damaged(const std::string& key, absl::string_view why) {
  return ReasonedError(absl::StatusCode::kDataLoss, Reason::kStateLost,
                       absl::StrCat("metadata record ", key, " is damaged: ", why));
}

// The fixed part of an epoch. Contributors are left out: they change when the job grows.
std::string EncodeEpoch(const EpochRecord& epoch) {
  std::string value;
  AppendLittleEndian(kEpochVersion, &value);
  AppendLittleEndian(epoch.epoch, &value);
  AppendLittleEndian(epoch.start_round, &value);
  AppendLittleEndian(static_cast<uint32_t>(epoch.init_again), &value);
  AppendLittleEndian(epoch.world(), &value);
  for (const Member& member : epoch.members) {
    AppendLittleEndian(member.slot, &value);
    AppendLittleEndian(member.incarnation, &value);
  }
  return value;
}

}  // namespace

// Contributors are left out where every member contributes to every group: there are as many of
// them as members times groups.
std::string JobRecords::Encode(const JobPlan& plan) const {
  std::string value;
  const bool all = plan.spec.gradients == Gradients::kLocal;
  AppendLittleEndian(all ? kPlanVersion : kPlanVersionContributors, &value);
  const EpochRecord& epoch = plan.epoch;
  if (epoch.contributors != AllContribute(epoch.members, plan.spec.group_count)) {
    return value + codec_.encode(plan);
  }
  JobPlan shorter = plan;
  shorter.epoch.contributors.clear();
  return value + codec_.encode(shorter);
}

absl::StatusOr<JobPlan> JobRecords::Decode(uint64_t job, const std::string& value) const {
  const std::string key = JobPlanKey(job);
  if (value.size() < sizeof(kPlanVersion)) return Damaged(key, "it is too short");
  const auto version = ReadLittleEndian<uint32_t>(value, 0);
  if (version != kPlanVersion && version != kPlanVersionContributors) {
    return absl::FailedPreconditionError(absl::StrCat(
        "metadata record ", key, " has format version ", version, "; this build reads up to ",
        kPlanVersionContributors, ". Run a newer ballastd"));
  }
  absl::StatusOr<JobPlan> plan = codec_.decode(value.substr(sizeof(kPlanVersion)));
  if (!plan.ok()) return Damaged(key, plan.status().message());
  if (plan->job != job) return Damaged(key, "it is another job's");
  if (plan->epoch.contributors.empty()) {
    const uint64_t groups = plan->spec.group_count;
    if (groups > kGroupsMax || groups * plan->epoch.members.size() > kContributorsMax) {
      return Damaged(key, absl::StrCat(groups, " groups of ", plan->epoch.members.size(),
                                       " members are more than a job can have"));
    }
    plan->epoch.contributors = AllContribute(plan->epoch.members, plan->spec.group_count);
  }
  return plan;
}

absl::StatusOr<std::map<std::string, uint64_t>> JobRecords::Names() const {
  std::map<std::string, uint64_t> names;
  MetaListRequest request{.prefix = kJobNamesPrefix};
  do {
    BALLAST_ASSIGN_OR_RETURN(const MetaPage page, meta_->List(request));
    for (const MetaEntry& entry : page.entries) {
      const absl::StatusOr<uint64_t> job = NumberOfKey("/" + entry.value);
      if (!job.ok()) return Damaged(entry.key, "it is no job id");
      names[entry.key.substr(std::size(kJobNamesPrefix) - 1)] = *job;
    }
    request.after = page.next;
  } while (!request.after.empty());
  return names;
}

absl::StatusOr<uint64_t> JobRecords::IdOf(const QualifiedName& name) const {
  BALLAST_ASSIGN_OR_RETURN(const std::string key, JobNameKey(name));
  BALLAST_ASSIGN_OR_RETURN(const std::optional<MetaEntry> entry, meta_->Get(key));
  if (!entry.has_value()) return uint64_t{0};
  const absl::StatusOr<uint64_t> job = NumberOfKey("/" + entry->value);
  return job.ok() ? job : Damaged(key, "it is no job id");
}

absl::StatusOr<JobPlan> JobRecords::Find(uint64_t job) const {
  BALLAST_ASSIGN_OR_RETURN(const std::optional<MetaEntry> entry, meta_->Get(JobPlanKey(job)));
  if (entry.has_value()) return Decode(job, entry->value);
  return absl::NotFoundError(absl::StrCat("there is no metadata record ", JobPlanKey(job)));
}

absl::Status JobRecords::CheckFits(const JobPlan& plan) const {
  const size_t bytes = Encode(plan).size();
  if (bytes <= kPlanBytesMax) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
      absl::StrCat("the plan of job \"", plan.spec.name, "\" takes ", bytes,
                   " bytes; the metadata store holds plans of up to ", kPlanBytesMax,
                   ". Use fewer tensors, shorter names, or larger extents"),
      {.job = plan.spec.name});
}

absl::Status JobRecords::Create(const JobPlan& plan) {
  BALLAST_ASSIGN_OR_RETURN(const std::string name, JobNameKey(plan.name()));
  MetaTxn txn;
  txn.compares.push_back(MetaCompare::Absent(JobPlanKey(plan.job)));
  txn.puts.push_back({JobPlanKey(plan.job), Encode(plan)});
  txn.puts.push_back({name, absl::StrCat(plan.job)});
  BALLAST_RETURN_IF_ERROR(AddEpoch(plan, &txn));
  return Commit(txn, plan.job);
}

absl::Status JobRecords::Save(const JobPlan& plan) {
  MetaTxn txn;
  txn.compares.push_back(MetaCompare::Exists(JobPlanKey(plan.job)));
  txn.puts.push_back({JobPlanKey(plan.job), Encode(plan)});
  BALLAST_RETURN_IF_ERROR(AddEpoch(plan, &txn));
  return Commit(txn, plan.job);
}

absl::Status JobRecords::AddEpoch(const JobPlan& plan, MetaTxn* txn) const {
  const std::string key = JobEpochKey(plan.job, plan.epoch.epoch);
  std::string value = EncodeEpoch(plan.epoch);
  BALLAST_ASSIGN_OR_RETURN(const std::optional<MetaEntry> there, meta_->Get(key));
  if (!there.has_value()) {
    txn->compares.push_back(MetaCompare::Absent(key));
    txn->puts.push_back({key, std::move(value)});
    return absl::OkStatus();
  }
  if (there->value == value) return absl::OkStatus();
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat("epoch ", plan.epoch.epoch, " of job \"", plan.spec.name,
                   "\" was written with other members (metadata record ", key,
                   "): some server of the job runs on older data; put back the newest data "
                   "directories"),
      {.job = plan.spec.name});
}

// The plan goes last: while it exists, Remove can be called again after a failure.
absl::Status JobRecords::Remove(uint64_t job) {
  BALLAST_RETURN_IF_ERROR(RemoveEpochs(job));
  BALLAST_ASSIGN_OR_RETURN(const auto names, Names());
  MetaTxn txn;
  txn.deletes.push_back(JobPlanKey(job));
  for (const auto& [name, id] : names) {
    if (id == job) txn.deletes.push_back(kJobNamesPrefix + name);
  }
  return Commit(txn, job);
}

absl::Status JobRecords::RemoveEpochs(uint64_t job) {
  while (true) {
    BALLAST_ASSIGN_OR_RETURN(
        const MetaPage page,
        meta_->List({.prefix = JobEpochsPrefix(job), .after = "", .limit = kRemovedAtOnce}));
    if (page.entries.empty()) return absl::OkStatus();
    MetaTxn txn;
    for (const MetaEntry& entry : page.entries) txn.deletes.push_back(entry.key);
    BALLAST_RETURN_IF_ERROR(Commit(txn, job));
  }
}

absl::Status JobRecords::Commit(const MetaTxn& txn, uint64_t job) {
  BALLAST_FAILPOINT_RETURN("record.before_commit");
  BALLAST_ASSIGN_OR_RETURN(const MetaTxnResult result, meta_->Txn(txn));
  BALLAST_FAILPOINT_RETURN("record.after_commit");
  if (result.committed) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the metadata records of job ", JobIdText(job), " are not what they were"));
}

}  // namespace ballast::server
