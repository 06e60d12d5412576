#include "tests/sim/nodes/process.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ballast/v1/peer.pb.h"
#include "common/base/check.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "proto/convert/channel.h"
#include "proto/convert/frame_codec.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/methods.h"

namespace ballast::sim {
namespace {

// The vote in the answer to one's own, if any.
server::VoteAnswer VoteIn(const absl::StatusOr<Payload>& answer) {
  BALLAST_RETURN_IF_ERROR(answer.status());
  v1::VoteReply reply;
  BALLAST_RETURN_IF_ERROR(ParseMessage(*answer, kMaxMessageBytes, &reply));
  if (!reply.has_vote()) return std::optional<Vote>();
  BALLAST_ASSIGN_OR_RETURN(Vote vote, VoteFromProto(reply.vote()));
  return std::optional<Vote>(std::move(vote));
}

constexpr Tick kVoteRetry = 50 * kMillisecond;
constexpr int kWorkers = 4;
constexpr int kTierThreads = 3;

}  // namespace

std::chrono::nanoseconds SimProcess::ProcessClock::Now() const {
  const SimClock* const clock = of_->machine_clock();
  const bool wall = of_->context_.mutant == Mutant::kLeaseOnWallClock;
  return std::chrono::nanoseconds(static_cast<int64_t>(wall ? clock->Wall() : clock->Now()));
}

SimProcess::SimProcess(const Context& context, Deps deps)
    : context_(context),
      deps_(std::move(deps)),
      life_(context.world->Life(context.network->ServerNode(deps_.index))),
      clock_(this),
      threads_(context.world, context.swarm, node(), deps_.after_task),
      strands_(threads_.MakeExecutor("strand", 1)),
      workers_(std::make_unique<SimWorkers>(context.world,
                                            threads_.MakeExecutor("kernels", kWorkers), kWorkers)) {
  context_.world->SetObserver(node(), [this](Probe probe) { Observe(probe); });
}

SimProcess::~SimProcess() {
  BALLAST_CHECK(!alive());
  if (engine_ != nullptr) engine_->Abandon();
  going_out_.clear();
  threads_.Drop();
  BALLAST_CHECK(engine_.use_count() <= 1);  // The threads it runs on end with this.
}

server::EngineConfig SimProcess::Config() const {
  const Shape& shape = context_.swarm->shape;
  return {.self = id(),
          .chunk_bytes = shape.chunk_bytes,
          .window_extents = shape.window_extents[deps_.index],
          .checkpoint_rounds = shape.checkpoint_rounds,
          .nvme_extents = shape.nvme_extents,
          .tier_threads = shape.overlapping_flushes ? kTierThreads : 1};
}

server::EngineDeps SimProcess::EngineDeps() {
  return {.executor = strands_.get(),
          .workers = workers_.get(),
          .executors = &threads_,
          .clock = &clock_,
          .isa = simd::DetectIsa(),
          .votes = this,
          .storage_failed = InLife(deps_.storage_failed)};
}

absl::Status SimProcess::Open(const server::JobPlan& plan,
                              std::unique_ptr<server::JobStorage> storage) {
  auto engine = server::MakeEngine(plan, Config(), EngineDeps(), std::move(storage));
  if (!engine.ok()) return server::StateLostIn(plan, id(), engine.status());
  engine_ = *std::move(engine);
  if (!alive()) return absl::OkStatus();  // It ended inside the disk.
  TellOracle(plan);
  return absl::OkStatus();
}

// A record that was on the disk when the home's process ended is as good as one it had told of.
void SimProcess::TellOracle(const server::JobPlan& plan) const {
  const bool home = plan.servers.front() == id();
  if (home && plan.epoch.epoch > context_.oracle->newest().epoch) {
    context_.oracle->OnEpoch(plan.epoch);
  }
  context_.oracle->OnAdopted(id(), plan.epoch, deps_.damaged);
  context_.oracle->OnRecovered(id(), fsm(), deps_.damaged);
}

void SimProcess::Later(Tick delay, std::function<void()> action) const {
  if (delay == 0) {
    context_.world->AfterInLife(0, node(), life_, EventKind::kStrand, std::move(action));
  } else {
    machine_clock()->AfterInLife(delay, life_, EventKind::kTimer, std::move(action));
  }
}

// --- The engine's effects -----------------------------------------------------------------------

void SimProcess::Observe(Probe probe) const {
  if (!alive()) return;
  if (probe == Probe::kDecided) return OnDecided();
  context_.oracle->OnApplied(id(), fsm().round() - 1);
}

void SimProcess::OnDecided() const {
  const server::DecisionRecord& last = *engine_->last_decision();
  context_.oracle->OnDecision(id(), last.epoch, last.round, last.decision);
  const bool power = context_.plan->spec.durability == Durability::kPower;
  if (power && !deps_.disk->PrepareIsDurable(last.round)) {
    context_.world->Red(absl::StrCat("server ", id(), " decides round ", last.round,
                                     " before its PREPARE is durable"));
  }
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("decides round ", last.round,
                                               last.decision.applied ? ": applied" : ": skipped"));
  }
  const JobSpec& spec = context_.plan->spec;
  if (!last.decision.applied) {
    if (spec.policy.loss_scaler.has_value()) context_.world->Met(Cover::kScaledSkip);
    return context_.world->Met(Cover::kSkippedRound);
  }
  const bool several = fsm().plan().epoch.world() > 1;
  if (spec.gradients == Gradients::kReduced && several) {
    context_.world->Met(Cover::kReducedGradients);
  }
  if (spec.gradients == Gradients::kScattered && several) {
    context_.world->Met(Cover::kScatteredGradients);
  }
  if (IsUpload(last.decision.upload)) context_.world->Met(Cover::kUpload);
  if (IsStatePlane(last.decision.upload)) context_.world->Met(Cover::kStatePlane);
  if (spec.policy.schedule.has_value()) context_.world->Met(Cover::kScheduled);
  if (spec.optimizer != OptimizerKind::kAdamW) context_.world->Met(Cover::kOtherOptimizer);
  if (StateArrayCount(spec) == 1) context_.world->Met(Cover::kMasterAlone);
  if (StateArrayCount(spec) == kStateArraysMax) context_.world->Met(Cover::kFourArrays);
}

void SimProcess::KeepWhileSent(std::shared_ptr<const void> owner) {
  going_out_.push_back({context_.world->now() + context_.swarm->pace.network, std::move(owner)});
  if (going_out_.size() == 1) AwaitSent();
}

void SimProcess::AwaitSent() {
  context_.world->AfterInLife(
      going_out_.front().until - context_.world->now(), node(), life_, EventKind::kStrand, [this] {
        while (!going_out_.empty() && going_out_.front().until <= context_.world->now()) {
          going_out_.pop_front();
        }
        if (!going_out_.empty()) AwaitSent();
      });
}

// --- Votes --------------------------------------------------------------------------------------

void SimProcess::SendVote(uint64_t, uint32_t epoch, uint64_t round, uint32_t to_server,
                          const Vote& vote) {
  if (!alive()) return;
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("votes on round ", round));
  }
  const bool power = context_.plan->spec.durability == Durability::kPower;
  context_.oracle->OnVote(id(), epoch, round, vote, !power || deps_.disk->PrepareIsDurable(round));
  const auto under_way = std::make_shared<VoteUnderWay>(VoteUnderWay{epoch, round, vote});
  newest_votes_[to_server] = under_way;
  CallVote(to_server, under_way);
}

void SimProcess::CallVote(uint32_t to_server, const std::shared_ptr<const VoteUnderWay>& vote) {
  const auto& servers = context_.plan->servers;
  const auto to = std::lower_bound(servers.begin(), servers.end(), to_server) - servers.begin();
  v1::Prepare message;
  message.set_job(context_.plan->job);
  message.set_epoch(vote->epoch);
  message.set_round(vote->round);
  ballast::ToProto(vote->vote, &message);
  context_.network->Call(node(), static_cast<uint32_t>(to), method::kPeerVote,
                         Payload::FromString(message.SerializeAsString()),
                         InLife([=, this](const absl::StatusOr<Payload>& answer) {
                           OnVoteAnswer(to_server, vote, VoteIn(answer));
                         }));
}

void SimProcess::OnVoteAnswer(uint32_t to_server, const std::shared_ptr<const VoteUnderWay>& vote,
                              const server::VoteAnswer& answer) {
  if (answer.ok()) {
    if (!answer->has_value()) return;
    if (vote->round == fsm().round()) context_.world->Met(Cover::kVoteFromAnswer);
    return engine_->PeerVote(vote->epoch, vote->round, **answer, [](const server::VoteAnswer&) {});
  }
  const auto newest = newest_votes_.find(to_server);
  if (newest == newest_votes_.end() || newest->second != vote) return;  // A newer one exists.
  if (ReasonOf(answer.status()) == Reason::kStateLost) {
    return engine_->VoteRefused(vote->round, answer.status());
  }
  Later(kVoteRetry, [this, to_server, vote] { CallVote(to_server, vote); });
}

}  // namespace ballast::sim
