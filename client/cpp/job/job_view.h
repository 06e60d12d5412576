// A trainer's view of its job: the result of the attach, as changed since by growth, epochs and
// rounds.
// Comes from: the home's answers. Goes to: every part of a session; only SessionCore changes it.
// Thread safety: none; lives under the session's lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ballast/client.h"
#include "ballast/v1/control.pb.h"
#include "client/cpp/job/policy_view.h"
#include "client/cpp/job/send_plan.h"
#include "common/base/reason.h"
#include "common/job/contributors.h"
#include "common/job/job_spec.h"
#include "common/tensor/layout.h"

namespace ballast::client {

// The trainers that take part: slot -> incarnation.
using Members = std::map<uint32_t, uint64_t>;
Members MembersOf(const v1::EpochRecord& record);
// Its contributor sets, in the order of the groups.
std::vector<ContributorSet> ContributorsIn(const v1::EpochRecord& record);

// The result of an attach.
struct AttachedJob {
  JobSpec spec;
  Layout layout;
  v1::AttachReply reply;
  uint64_t incarnation = 0;
};

struct JobView {
  JobView(const JobOptions& options, const AttachedJob& attached);
  JobView(const JobView&) = delete;
  JobView& operator=(const JobView&) = delete;

  // Constant.
  const JobOptions options;
  const uint64_t id;
  const uint64_t incarnation;
  const bool durable;  // a lost server is a pause
  const bool resumed;  // the job was there before
  const SendLimits limits;
  const std::chrono::nanoseconds heartbeat;
  const std::chrono::nanoseconds report_after;  // of silence a server is lost

  // Growth changes these.
  JobSpec spec;
  Layout layout;
  std::vector<uint32_t> owner;  // server id per extent
  uint32_t layout_version = 0;

  // A new epoch changes these.
  uint32_t epoch = 0;
  uint64_t start_round = 0;  // of the epoch
  Members members;
  std::vector<ContributorSet> contributors;  // per group; growth changes them, too

  // Rounds change these.
  // Next round, and version of the weights; 0 in a new job before the first Welcome.
  uint64_t round = 0;
  uint64_t opt_step = 0;
  PolicyView policy;
  // From this extent on no finished round has changed the initial weights.
  uint32_t fresh_extent = 0;

  // The lead trainer, which has the lowest slot, uploads initial weights.
  bool IsLeadTrainer() const { return members.begin()->first == options.slot; }
  // The sets of the present members and groups, as the specification has them.
  std::vector<ContributorSet> ContributorsByRule() const;
  // Whether this trainer pushes its gradient of `extent`, by the epoch's record.
  bool Contributes(uint32_t extent) const;
  // As Client::dealt.
  std::vector<DealtExtent> Dealt() const;
  // Whether it sends digests of its gradients with the present round.
  bool ComparesGradients() const;
  uint32_t world() const { return static_cast<uint32_t>(members.size()); }
  bool Owns(uint32_t server, uint32_t extent) const {
    return extent < owner.size() && owner[extent] == server;
  }

  // The policy as the program sees it.
  Policy ShownPolicy() const;

  // For messages: the job's name and the present round.
  ErrorFields Fields() const;
  // `status` with job and round added where missing.
  absl::Status InThisRound(const absl::Status& status) const;
  // FAILED_PRECONDITION STALE_EPOCH: the round is redone by other members, with other sums.
  absl::Status SumsAreStale(uint32_t of_epoch, uint32_t next_epoch) const;
  // FAILED_PRECONDITION WRONG_INCARNATION: another process has this slot.
  absl::Status SlotWasTaken(const absl::Status& status) const;
};

}  // namespace ballast::client
