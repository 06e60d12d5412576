#include "tests/sim/nodes/process.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "tests/sim/net/peer_transport.h"
#include "tests/sim/nodes/home.h"

namespace ballast::sim {
namespace {

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
                                            threads_.MakeExecutor("kernels", kWorkers), kWorkers)),
      peers_(server::PeerClient::Create(
          LinkConfig(), strands_.get(), &clock_,
          std::make_unique<SimPeerTransport>(context.world, context.network, node()))) {
  context_.world->SetObserver(node(), [this](Probe probe) { Observe(probe); });
}

SimProcess::~SimProcess() {
  BALLAST_CHECK(!alive());
  if (engine_ != nullptr) engine_->Abandon();
  peers_->Stop();
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

// --- Peers --------------------------------------------------------------------------------------

server::PeerLinkConfig SimProcess::LinkConfig() const {
  server::PeerLinkConfig config;
  config.self = id();
  config.incarnation = life_;
  config.servers = AddressesOf(*context_.plan);
  return config;
}

void SimProcess::StartPeers() {
  peers_->Start([](uint32_t, const std::string&) {},
                [this](uint64_t, uint32_t epoch, uint64_t round, const absl::StatusOr<Vote>& vote) {
                  OnVoteAnswer(epoch, round, vote);
                });
}

void SimProcess::SendVote(uint64_t job, uint32_t epoch, uint64_t round, uint32_t to_server,
                          const Vote& vote) {
  if (!alive()) return;
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("votes on round ", round));
  }
  const bool power = context_.plan->spec.durability == Durability::kPower;
  context_.oracle->OnVote(id(), epoch, round, vote, !power || deps_.disk->PrepareIsDurable(round));
  peers_->SendVote(job, epoch, round, to_server, vote);
}

void SimProcess::OnVoteAnswer(uint32_t epoch, uint64_t round, const absl::StatusOr<Vote>& vote) {
  if (!vote.ok()) return engine_->VoteRefused(round, vote.status());
  if (round == fsm().round()) context_.world->Met(Cover::kVoteFromAnswer);
  engine_->PeerVote(epoch, round, *vote, [](const server::VoteAnswer&) {});
}

}  // namespace ballast::sim
