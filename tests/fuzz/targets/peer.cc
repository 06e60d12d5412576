// Target peer: messages between servers, and RoundBegin, into the types of the round room. An
// accepted plan holds together by rules that are written here a second time, and a round machine
// can be made of it; accepted messages can be written and read again.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>

#include "common/base/check.h"
#include "common/job/decide.h"
#include "common/job/job_spec.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "server/convert/data_convert.h"
#include "server/convert/plan_convert.h"
#include "server/round/job_plan.h"
#include "server/round/round_fsm.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/kinds.h"
#include "tests/fuzz/targets/specs.h"

namespace ballast::fuzz {
namespace {

using server::JobPlan;

constexpr size_t kMessageMax = 1 << 20;
constexpr size_t kPresenceMax = 8;
constexpr uint32_t kChunkBytes = 256;
constexpr uint64_t kElementsMax = 1 << 16;  // of a plan of which a machine is made
constexpr uint32_t kSeatsMax = 256;

v1::PeerJob GoodJob(v1::JobSpec spec) {
  v1::PeerJob job;
  job.set_job(77);
  *job.mutable_spec() = std::move(spec);
  job.add_servers(0);
  job.add_servers(2);
  job.set_layout_version(1);
  const auto layout = server::LayoutOfSpec(*JobSpecFromProto(job.spec()));
  BALLAST_CHECK(layout.ok());
  for (const uint32_t index : PlanOwners(*layout, 2)) {
    job.mutable_plan()->add_owner(job.servers(static_cast<int>(index)));
  }
  v1::EpochRecord* epoch = job.mutable_epoch();
  epoch->set_epoch(1);
  epoch->set_start_round(1);
  for (uint32_t slot = 0; slot < job.spec().world(); ++slot) {
    v1::Member* member = epoch->add_members();
    member->set_slot(slot);
    member->set_incarnation(1000 + slot);
  }
  for (uint32_t group = 0; group < job.spec().group_count(); ++group) {
    v1::ContributorSet* set = epoch->add_contributors();
    set->set_group(group);
    set->set_divisor(job.spec().world());
    for (uint32_t slot = 0; slot < job.spec().world(); ++slot) set->add_slots(slot);
  }
  return job;
}

v1::Prepare GoodVote() {
  v1::Prepare vote;
  vote.set_job(77);
  vote.set_epoch(1);
  vote.set_round(1);
  for (uint32_t extent = 0; extent < 2; ++extent) {
    vote.add_norms()->set_extent(extent);
    vote.mutable_norms(static_cast<int>(extent))->set_sumsq(1);
  }
  v1::ScalarSet* scalars = vote.add_scalars();
  scalars->set_step(1);
  scalars->add_bits(1);
  vote.add_rates()->set_lr(0.1);
  vote.mutable_squares()->add_runs()->set_p(1);
  vote.mutable_first_nonfinite()->set_kind(v1::NONFINITE_KIND_SUM);
  return vote;
}

v1::RoundBegin GoodBegin() {
  v1::RoundBegin begin;
  begin.set_round(1);
  begin.set_layout_version(1);
  for (int group = 0; group < 2; ++group) {
    v1::GroupHyper* hyper = begin.add_hyper();
    for (const double value : {1e-2, 0.9, 0.999, 1e-8, 0.1}) hyper->add_value(value);
  }
  begin.set_presence("\x07");
  begin.set_user_state("state");
  return begin;
}

bool Ascends(const std::vector<uint32_t>& numbers) {
  return std::is_sorted(numbers.begin(), numbers.end()) &&
         std::set<uint32_t>(numbers.begin(), numbers.end()).size() == numbers.size();
}

void CheckEpoch(const server::EpochRecord& epoch) {
  std::vector<uint32_t> seated;
  for (const server::Member& member : epoch.members) seated.push_back(member.slot);
  BALLAST_CHECK(Ascends(seated) && epoch.min_world >= 1);
  for (const ContributorSet& set : epoch.contributors) {
    BALLAST_CHECK(!set.slots.empty() && Ascends(set.slots) && set.divisor > 0);
    for (const uint32_t slot : set.slots) BALLAST_CHECK(epoch.Find(slot) != nullptr);
  }
}

// Of a plan that CheckPlan has taken.
void CheckMachine(const JobPlan& plan) {
  const absl::StatusOr<Layout> layout = server::LayoutOfSpec(plan.spec);
  BALLAST_CHECK(layout.ok() && plan.owner.size() == layout->extents().size());
  BALLAST_CHECK(plan.epoch.contributors.size() == plan.spec.group_count);
  BALLAST_CHECK(!plan.servers.empty() && Ascends(plan.servers));
  if (plan.epoch.seats() > kSeatsMax) return;
  for (const uint32_t self : plan.servers) {
    server::RoundFsm fsm(plan, *layout, self, kChunkBytes, 64);
    server::JobStatus status;
    fsm.FillStatus(&status);
    BALLAST_CHECK(status.slots.size() == plan.epoch.members.size());
  }
}

void RunJob(const v1::PeerJob& message) {
  const absl::StatusOr<JobPlan> plan = server::PeerJobFromProto(message);
  if (!plan.ok()) return;
  CheckEpoch(plan->epoch);
  const std::string written = server::PeerJobToProto(*plan).SerializeAsString();
  v1::PeerJob again;
  BALLAST_CHECK(again.ParseFromString(written));
  const absl::StatusOr<JobPlan> second = server::PeerJobFromProto(again);
  BALLAST_CHECK(second.ok() && server::PeerJobToProto(*second).SerializeAsString() == written);
  // As the directory does, in this order.
  if (!ValidateJobSpec(plan->spec, JobLimits()).ok()) return;
  uint64_t elements = 0;
  for (const LayoutTensor& tensor : LayoutTensors(plan->spec.tensors)) elements += tensor.elements;
  if (elements > kElementsMax) return;
  if (server::CheckPlan(*plan).ok()) CheckMachine(*plan);
}

void RunVote(const v1::Prepare& message) {
  const absl::StatusOr<Vote> vote = VoteFromProto(message);
  if (!vote.ok()) return;
  for (size_t i = 1; i < vote->norms.size(); ++i) {
    BALLAST_CHECK(vote->norms[i - 1].extent < vote->norms[i].extent);
  }
  v1::Prepare written;
  ToProto(*vote, &written);
  v1::Prepare again;
  BALLAST_CHECK(again.ParseFromString(written.SerializeAsString()));
  const absl::StatusOr<Vote> second = VoteFromProto(again);
  BALLAST_CHECK(second.ok());
  v1::Prepare third;
  ToProto(*second, &third);
  BALLAST_CHECK(third.SerializeAsString() == written.SerializeAsString());
  DecideInput input;
  input.divisor = {2};
  input.extent_group = {0, 0};
  const absl::StatusOr<Decision> decision = Decide(input, {*vote});
  if (decision.ok() && decision->applied) BALLAST_CHECK(std::isfinite(decision->grad_norm));
}

class Peer : public FuzzTarget {
 public:
  std::vector<std::string> Seeds() const override {
    v1::VoteReply reply;
    *reply.mutable_vote() = GoodVote();
    v1::RoundBegin upload;
    upload.set_round(1);
    upload.set_layout_version(1);
    upload.set_upload(true);
    for (int i = 0; i < 3; ++i) upload.add_weight_crc32c(9);
    v1::RoundBegin plane = upload;
    plane.set_upload(false);
    plane.set_plane(v1::STATE_PLANE_ARRAY1);
    for (int i = 0; i < 3; ++i) plane.add_tensor_step(4);
    plane.set_opt_step(4);
    plane.set_schedule_index(-1);
    return {JoinKind(0, GoodJob(GoodSpec())),
            JoinKind(0, GoodJob(GoodScheduledSpec())),
            JoinKind(1, GoodVote()),
            JoinKind(2, reply),
            JoinKind(3, GoodBegin()),
            JoinKind(3, upload),
            JoinKind(3, plane)};
  }

  void Run(absl::string_view input) const override {
    const KindInput parts = SplitKind(input, like_.size());
    const std::unique_ptr<google::protobuf::Message> message(like_[parts.kind]->New());
    const Payload bytes = Payload::FromString(std::string(parts.rest));
    if (!ParseMessage(bytes, kMessageMax, message.get()).ok()) return;
    if (parts.kind == 0) RunJob(static_cast<const v1::PeerJob&>(*message));
    if (parts.kind == 1) RunVote(static_cast<const v1::Prepare&>(*message));
    if (parts.kind == 2) RunVote(static_cast<const v1::VoteReply&>(*message).vote());
    if (parts.kind == 3) RunBegin(static_cast<const v1::RoundBegin&>(*message));
  }

  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    return MutateKind(like_, input, random);
  }

 private:
  // A machine takes whatever a slot of its job begins with, and says so or refuses it.
  void RunBegin(const v1::RoundBegin& message) const {
    const absl::StatusOr<server::RoundBegin> begin = server::BeginFromProto(message, kPresenceMax);
    if (!begin.ok()) return;
    BALLAST_CHECK(begin->presence.size() == message.presence().size() * 8);
    for (const bool scheduled : {false, true}) {
      const JobPlan& plan = scheduled ? scheduled_ : plan_;
      server::RoundFsm fsm(plan, *server::LayoutOfSpec(plan.spec), 0, kChunkBytes, 64);
      for (uint32_t slot = 0; slot < 2; ++slot) {
        server::Effects effects;
        fsm.Step(server::BeginInput{slot, *begin}, &effects);
        BALLAST_CHECK(!effects.empty() || fsm.phase() != server::Phase::kIdle);
      }
    }
  }

  const v1::PeerJob job_;
  const v1::Prepare vote_;
  const v1::VoteReply reply_;
  const v1::RoundBegin begin_;
  const std::vector<const google::protobuf::Message*> like_ = {&job_, &vote_, &reply_, &begin_};
  const JobPlan plan_ = *server::PeerJobFromProto(GoodJob(GoodSpec()));
  const JobPlan scheduled_ = *server::PeerJobFromProto(GoodJob(GoodScheduledSpec()));
};

}  // namespace

std::unique_ptr<FuzzTarget> PeerTarget() { return std::make_unique<Peer>(); }

}  // namespace ballast::fuzz
