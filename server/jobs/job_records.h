// JobRecords: the durable jobs of one server as records in its MetaStore (docs/formats/meta.md):
//
//   jobs/<name>             job id; of another tenant than "default": jobs/<tenant>/<name>
//   job/<id>/plan           the plan in force: spec, members, owners, layout version, seal
//   job/<id>/epoch/<epoch>  the members of an epoch, written once, with the plan that adopts it
//
// Comes from: JobStore. Goes to: MetaStore; a plan is encoded by functions that the composition
// root provides (this room knows no protobuf).
// Thread safety: any thread, but one call at a time for a job; every call may block on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/meta/meta_store.h"
#include "server/round/round_types.h"

namespace ballast::server {

// A plan as bytes and back; decoding checks everything, as for a plan that comes from a peer.
struct PlanCodec {
  std::function<std::string(const JobPlan&)> encode;
  std::function<absl::StatusOr<JobPlan>(const std::string&)> decode;
};

// The largest plan record that a job may begin with or grow to: the rest of a value is for the
// members of later epochs.
inline constexpr size_t kPlanBytesMax = kMetaValueBytesMax - (size_t{2} << 20);

class JobRecords {
 public:
  // `meta` outlives the records.
  JobRecords(MetaStore* meta, PlanCodec codec) : meta_(meta), codec_(std::move(codec)) {}

  // Every job by QualifiedName::Text. DATA_LOSS STATE_LOST for a damaged entry.
  absl::StatusOr<std::map<std::string, uint64_t>> Names() const;
  // The job of this name; 0: none.
  absl::StatusOr<uint64_t> IdOf(const QualifiedName& name) const;
  // The job's plan. NOT_FOUND when there is no record; DATA_LOSS STATE_LOST for a damaged one;
  // FAILED_PRECONDITION for one of another format version.
  absl::StatusOr<JobPlan> Find(uint64_t job) const;

  // RESOURCE_EXHAUSTED OVER_BUDGET, with both sizes, for a plan larger than kPlanBytesMax.
  absl::Status CheckFits(const JobPlan& plan) const;
  // Adds the job with its name, plan and first epoch. INTERNAL if it exists.
  absl::Status Create(const JobPlan& plan);
  // Replaces the plan of an existing job, and adds the record of its epoch, in one step. DATA_LOSS
  // STATE_LOST when the epoch was written with other members; then nothing changes.
  absl::Status Save(const JobPlan& plan);
  // Removes all records of the job; it may be missing. Broken off it leaves the plan.
  absl::Status Remove(uint64_t job);

 private:
  std::string Encode(const JobPlan& plan) const;
  absl::StatusOr<JobPlan> Decode(uint64_t job, const std::string& value) const;
  absl::Status AddEpoch(const JobPlan& plan, MetaTxn* txn) const;
  absl::Status RemoveEpochs(uint64_t job);
  absl::Status Commit(const MetaTxn& txn, uint64_t job);

  MetaStore* const meta_;
  const PlanCodec codec_;
};

}  // namespace ballast::server
