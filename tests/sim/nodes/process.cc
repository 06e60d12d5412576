#include "tests/sim/nodes/process.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "server/convert/plan_convert.h"
#include "server/meta/keys.h"
#include "server/tier/nvme_tier.h"
#include "tests/sim/net/peer_transport.h"

namespace ballast::sim {
namespace {

constexpr int kWorkers = 4;
constexpr int kTierThreads = 3;
constexpr char kExportsRoot[] = "/exports";

}  // namespace

std::vector<server::ServerAddress> AddressesOf(const server::JobPlan& plan) {
  std::vector<server::ServerAddress> servers;
  for (const uint32_t id : plan.servers) {
    servers.push_back({id, Network::Address(static_cast<uint32_t>(servers.size()))});
  }
  return servers;
}

std::chrono::nanoseconds SimProcess::ProcessClock::Now() const {
  const SimClock* const clock = of_->machine_clock();
  const bool wall = of_->context_.mutant == Mutant::kLeaseOnWallClock;
  return std::chrono::nanoseconds(static_cast<int64_t>(wall ? clock->Wall() : clock->Now()));
}

SimProcess::SimProcess(const Context& context, Deps deps)
    : context_(context),
      deps_(std::move(deps)),
      life_(context.world->Life(context.network->ServerNode(deps_.index))),
      errors_before_(deps_.disk->errors()),
      clock_(this),
      threads_(context.world, context.swarm, node(), deps_.after_task),
      strands_(threads_.MakeExecutor("strand", 1)),
      workers_(std::make_unique<SimWorkers>(context.world,
                                            threads_.MakeExecutor("kernels", kWorkers), kWorkers)),
      records_(deps_.disk, InLife(deps_.storage_failed),
               InLife([this](const server::MetaTxn& txn) { OnRecords(txn); })),
      peers_(server::PeerClient::Create(
          LinkConfig(), strands_.get(), &clock_,
          std::make_unique<SimPeerTransport>(context.world, context.network, node()))),
      holder_(absl::UnavailableError("the server starts")) {
  context_.world->SetObserver(node(), [this](Probe probe) { Observe(probe); });
}

SimProcess::~SimProcess() {
  BALLAST_CHECK(!alive());
  peers_->Stop();
  if (directory_ == nullptr) return;
  const std::weak_ptr<server::RoundEngine> job = directory_->apis().lookup->Find(*context_.job);
  if (engine() != nullptr) engine()->Abandon();
  going_out_.clear();
  threads_.Drop();
  directory_->Abandon();
  holder_.Set(nullptr);
  const std::weak_ptr<server::Directory> directory = directory_;
  directory_ = nullptr;
  // The threads they run on end with this.
  BALLAST_CHECK(directory.expired() && job.expired());
}

server::EngineConfig SimProcess::EngineConfig() const {
  const Shape& shape = context_.swarm->shape;
  return {.self = id(),
          .chunk_bytes = shape.chunk_bytes,
          .checkpoint_rounds = shape.checkpoint_rounds,
          .tier_threads = shape.overlapping_flushes ? kTierThreads : 1};
}

server::DirectoryConfig SimProcess::DirectoryConfig() const {
  server::DirectoryConfig config{.self = id(), .incarnation = life_};
  config.servers = AddressesOf(*context_.plan);
  config.engine = EngineConfig();
  // As the server does: a seat's process may take its lease and a little more to be given up.
  config.takeover_wait = config.engine.lease + config.engine.return_wait;
  config.credit_bytes = context_.swarm->shape.credit_bytes;
  config.new_id = [world = context_.world] {
    return std::max<uint64_t>(1, world->random().Next());
  };
  SetBudget(&config);
  return config;
}

// Memory in which the job has the window of the seed, and as many extents in memory.
void SimProcess::SetBudget(server::DirectoryConfig* config) const {
  const Shape& shape = context_.swarm->shape;
  config->memory_budget_bytes = uint64_t{1} << 40;
  config->window_extents_min = shape.window_extents[deps_.index];
  const server::MemoryPlan least =
      server::LeastMemory(*context_.plan, id(), config->window_extents_min);
  if (config->window_extents_min < kAllExtents) config->memory_budget_bytes = least.total();
  if (shape.nvme_extents == 0) return;
  config->state_budget_bytes = least.state_bytes / server::kNvmeBuffersMin * shape.nvme_extents;
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

absl::Status SimProcess::Recover() {
  BALLAST_RETURN_IF_ERROR(records_.Load());
  auto store =
      std::make_unique<SimStore>(context_, deps_.disk, &records_, id(),
                                 [this](const server::JobPlan& plan, server::JobStorage* storage) {
                                   if (plan.job == *context_.job) deps_.opened(storage);
                                 });
  BALLAST_ASSIGN_OR_RETURN(server::DirectorySnapshots snapshots, OpenSnapshots());
  directory_ = std::static_pointer_cast<server::Directory>(server::JobDirectory::Create(
      DirectoryConfig(), EngineDeps(), peers_.get(), std::move(store), std::move(snapshots)));
  return directory_->Recover();
}

absl::StatusOr<server::DirectorySnapshots> SimProcess::OpenSnapshots() const {
  server::DirectorySnapshots kept;
  if (context_.swarm->snapshots.most == 0) return kept;
  const std::string owner = absl::StrCat("server-", id());
  kept.codec = server::MakePlanCodec();
  kept.store = std::make_unique<server::SnapshotStore>(deps_.shelf, kShelfRoot, id(), owner);
  kept.exports = std::make_unique<server::Exports>(deps_.shelf, kExportsRoot, owner);
  BALLAST_RETURN_IF_ERROR(kept.store->Clear());
  return kept;
}

absl::Status SimProcess::WhyNot() {
  const auto plan = server::JobRecords(&records_, server::MakePlanCodec()).Find(*context_.job);
  if (plan.ok() && plan->resting) return absl::OkStatus();
  return directory_->apis().lookup->WhyNot(*context_.job, Caller());
}

bool SimProcess::rests() const {
  return ReasonOf(failure()) == Reason::kJobFinished &&
         fsm().plan().epoch.epoch <= context_.lives->rested_epoch;
}

void SimProcess::Start() {
  if (engine() != nullptr) TellOracle();
  StartPeers();
  holder_.Set(directory_);
  directory_->StartRecovered();
}

server::RoundDriver* SimProcess::engine() const {
  if (directory_ == nullptr) return nullptr;
  const uint64_t now = context_.world->events();
  if (std::exchange(looked_at_, now) != now || engine_alive_.expired()) {
    const auto found = directory_->apis().lookup->Find(*context_.job);
    engine_ = static_cast<server::RoundDriver*>(found.get());  // Of its one class.
    engine_alive_ = found;
  }
  return engine_;
}

void SimProcess::OnRecords(const server::MetaTxn& txn) {
  const uint64_t job = *context_.job;
  const bool written = std::any_of(txn.puts.begin(), txn.puts.end(), [&](const auto& put) {
    return put.key == server::JobPlanKey(job);
  });
  if (!written) return;
  const auto plan = server::JobRecords(&records_, server::MakePlanCodec()).Find(job);
  BALLAST_CHECK(plan.ok());
  deps_.saved(*plan);
}

// A record that was on the disk when the home's process ended is as good as one it had told of.
void SimProcess::TellOracle() const {
  const server::JobPlan& plan = fsm().plan();
  const bool home = plan.servers.front() == id();
  if (home && plan.epoch.epoch > context_.oracle->newest().epoch) {
    context_.oracle->OnEpoch(plan.epoch);
  }
  context_.oracle->OnAdopted(id(), plan.epoch, deps_.damaged);
  context_.oracle->OnRecovered(id(), fsm(), deps_.damaged);
}

// --- The engine's effects -----------------------------------------------------------------------

void SimProcess::Observe(Probe probe) const {
  if (!alive()) return;
  if (probe == Probe::kDecided) return OnDecided();
  if (probe == Probe::kHeldLogEnded) {
    // A log whose disk has refused a record takes nothing more.
    const bool failed = context_.swarm->may_refuse() || deps_.disk->errors() != errors_before_;
    if (!failed) context_.world->Red("the log lacks rounds that are held");
    return;
  }
  context_.oracle->OnApplied(id(), fsm().round() - 1);
}

void SimProcess::OnDecided() const {
  const server::DecisionRecord& last = *engine()->last_decision();
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
  peers_->Start(
      [this](uint32_t server, const std::string& why) { directory_->PeerLost(server, why); },
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
  if (engine() == nullptr) return;
  if (!vote.ok()) return engine()->VoteRefused(round, vote.status());
  if (round == fsm().round()) context_.world->Met(Cover::kVoteFromAnswer);
  engine()->PeerVote(epoch, round, *vote, [](const server::VoteAnswer&) {});
}

}  // namespace ballast::sim
