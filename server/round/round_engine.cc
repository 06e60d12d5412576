// The production driver of RoundFsm: strand, worker pool, sinks. See round_engine.h.
// Thread safety: public methods post to the strand; everything below them runs on it, apart from
// the tile bodies, which run on workers.
#include "server/round/round_engine.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/durability/round_log.h"
#include "server/optim/dispatch.h"
#include "server/round/contributions.h"
#include "server/round/round_fsm.h"
#include "server/round/scalar_bits.h"
#include "server/state/extent_store.h"

namespace ballast::server {
namespace {

// Scalars and scales of one decided round, resolved per tensor; shared by all its step tasks.
struct StepPlan {
  std::vector<optim::AdamWScalars> sets;
  std::vector<const optim::AdamWScalars*> by_tensor;  // null: no gradient anywhere
  std::vector<float> scale_by_group;
  std::atomic<uint64_t> overflows{0};
};

class Engine final : public RoundEngine {
 public:
  Engine(const EngineConfig& config, const EngineDeps& deps, RoundFsm fsm,
         Contributions contributions, ExtentStore store)
      : config_(config),
        deps_(deps),
        strand_(deps.executor),
        step_kernels_(optim::Kernels(deps.isa)),
        reduce_kernels_(reduce::Kernels(deps.isa)),
        job_(fsm.plan().job),
        name_(fsm.plan().spec.name),
        fsm_(std::move(fsm)),
        contributions_(std::move(contributions)),
        store_(std::move(store)),
        log_(std::make_unique<NullRoundLog>()),
        sinks_(fsm_.plan().spec.world),
        seen_(fsm_.plan().spec.world, false) {
    if (deps_.metrics != nullptr) metrics_ = deps_.metrics->Job(name_);
  }

  static absl::StatusOr<std::shared_ptr<Engine>> Make(const JobPlan& plan,
                                                      const EngineConfig& config,
                                                      const EngineDeps& deps);

  void AttachSlot(uint32_t slot, uint64_t incarnation, uint32_t epoch,
                  std::shared_ptr<SlotSink> sink,
                  std::function<void(absl::StatusOr<uint64_t>)> done) override {
    Post([=, this] { done(DoAttach(slot, incarnation, epoch, sink)); });
  }

  void SlotLost(uint32_t slot, uint64_t incarnation, std::string why) override {
    Post([=, this] {
      if (!IsMember(slot, incarnation) || sinks_[slot] == nullptr) return;
      sinks_[slot] = nullptr;
      BALLAST_LOG(WARN, LogField("run", name_), LogField("slot", slot)) << "trainer lost: " << why;
      Feed(SlotLostInput{slot, why});
    });
  }

  void Begin(uint32_t slot, RoundBegin begin) override {
    Post([this, slot, begin = std::move(begin)] {
      if (slot >= sinks_.size() || sinks_[slot] == nullptr) return;
      if (fsm_.phase() == Phase::kIdle) begun_at_ = deps_.clock->Now();
      Feed(BeginInput{slot, begin});
    });
  }

  void Frame(const FrameInfo& info, Payload payload) override {
    // On the poller that read it, if the job has nothing else to do: a copy, never more.
    Dispatch([this, info, payload = std::move(payload)]() mutable {
      payload_ = &payload;
      DoFrame(info);
      payload_ = nullptr;
    });
  }

  void Leave(uint32_t slot, uint64_t) override {
    Post([this, slot] {
      if (slot >= sinks_.size()) return;
      sinks_[slot] = nullptr;
      Feed(SlotLeftInput{slot});
    });
  }

  void FetchState(uint32_t slot, uint64_t round, bool weights,
                  std::vector<uint32_t> arrays) override {
    Post([=, this] { DoFetchState(slot, round, weights, arrays); });
  }

  void PeerVote(uint32_t epoch, uint64_t round, Vote vote) override {
    Post([this, epoch, round, vote = std::move(vote)] { Feed(VoteInput{epoch, round, vote}); });
  }

  void PeerLost(uint32_t server, std::string why) override {
    Post([=, this] {
      const auto& servers = fsm_.plan().servers;
      if (!std::binary_search(servers.begin(), servers.end(), server)) return;
      ErrorFields fields{.job = name_, .round = fsm_.round(), .server = static_cast<int>(server)};
      Feed(
          FailInput{ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                                  absl::StrCat("job \"", name_, "\": server ", server,
                                               " was lost in round ", fsm_.round(), " (", why, ")"),
                                  fields)});
    });
  }

  void SlotGrows(uint32_t slot) override {
    Post([this, slot] { Feed(SlotGrowsInput{slot}); });
  }

  void Extend(JobPlan plan, std::function<void(absl::Status)> done) override {
    Post([this, plan = std::move(plan), done = std::move(done)] { done(DoExtend(plan)); });
  }

  void Snapshot(std::function<void(JobSnapshot)> done) override {
    Post([this, done = std::move(done)] {
      JobSnapshot snapshot;
      fsm_.FillSnapshot(&snapshot);
      snapshot.state_bytes = store_.bytes();
      snapshot.state = fsm_.phase() == Phase::kFailed     ? "failed"
                       : fsm_.phase() == Phase::kFinished ? "finished"
                                                          : "running";
      done(std::move(snapshot));
    });
  }

  void Fail(absl::Status status) override {
    Post([this, status = std::move(status)] { Feed(FailInput{status}); });
  }

  void OnEnd(std::function<void(const absl::Status&)> callback) override {
    Post([this, callback = std::move(callback)] {
      if (ended_) {
        callback(failure_);
      } else {
        on_end_ = callback;
      }
    });
  }

  uint64_t job() const override { return job_; }
  uint32_t window_extents() const override { return config_.window_extents; }

 private:
  // Keeps the engine alive until the task has run.
  void Post(std::function<void()> task) {
    strand_.Post([self = shared_from_this(), task = std::move(task)] { task(); });
  }
  // As Post, but on the calling thread when the job has nothing else to do. For what a poller or a
  // worker brings: waking another thread for it costs more than doing it.
  void Dispatch(std::function<void()> task) {
    strand_.Dispatch([self = shared_from_this(), task = std::move(task)] { task(); });
  }

  bool IsMember(uint32_t slot, uint64_t incarnation) const {
    const auto& members = fsm_.plan().epoch.members;
    return slot < members.size() && members[slot].incarnation == incarnation;
  }

  absl::StatusOr<uint64_t> DoAttach(uint32_t slot, uint64_t incarnation, uint32_t epoch,
                                    const std::shared_ptr<SlotSink>& sink);
  absl::Status DoExtend(const JobPlan& plan);
  void WatchSeats();
  void DoFetchState(uint32_t slot, uint64_t round, bool weights, std::vector<uint32_t> arrays);
  void SendWeightsOf(SlotSink* sink, uint32_t extent);
  void SendArrayOf(SlotSink* sink, uint32_t extent, uint32_t array);

  // Steps the FSM and carries out its effects in order.
  void Feed(const Input& input) {
    strand_.AssertCurrent();
    Effects effects;
    fsm_.Step(input, &effects);
    for (const Effect& effect : effects) {
      std::visit([this](const auto& e) { Do(e); }, effect);
    }
  }

  void DoFrame(const FrameInfo& info);
  void Do(const StoreFrame& effect);
  void Do(const RefuseFrame& effect);
  void Do(const AckSlot& effect);
  void Do(const MoveWindow& effect);
  void Do(const ReduceExtent& effect);
  void Do(const PrepareRound& effect);
  void Do(const SendVote& effect);
  void Do(const ApplyRound& effect);
  void Do(const SkipRound& effect);
  void Do(const OpenRound& effect);
  void Do(const FailSlot& effect);
  void Do(const FailJob& effect);
  void Do(const FinishJob& effect);

  Ack MakeAck(bool flush) const {
    return {.round = fsm_.round(),
            .window_base = fsm_.window_base(),
            .durable_round = log_->durable_round(),
            .applied_round = fsm_.round() - 1,
            .flush = flush};
  }
  absl::StatusOr<std::shared_ptr<StepPlan>> MakeStepPlan(const Decision& decision) const;
  void SendResult(uint64_t round, const Decision& decision, uint64_t weight_bytes);
  void StepExtent(uint32_t extent, const std::shared_ptr<StepPlan>& plan);
  void OnExtentStepped(uint32_t extent, const BufferRef& weight,
                       const std::shared_ptr<StepPlan>& plan);
  absl::StatusOr<BufferRef> WeightBuffer(DType dtype);
  void End();

  const EngineConfig config_;
  const EngineDeps deps_;
  Strand strand_;
  const optim::KernelTable& step_kernels_;
  const reduce::KernelTable& reduce_kernels_;
  const uint64_t job_;
  const std::string name_;
  std::shared_ptr<JobMetrics> metrics_;  // null without metrics

  // Everything below belongs to the strand.
  RoundFsm fsm_;
  Contributions contributions_;
  ExtentStore store_;
  std::unique_ptr<RoundLog> log_;
  std::vector<std::shared_ptr<SlotSink>> sinks_;
  std::vector<bool> seen_;                         // per slot: its stream has been open
  std::vector<std::function<void()>> after_init_;  // fetches that wait for the initial weights
  std::vector<BufferPool> weight_pools_;           // fp32, 16-bit; made at the first use
  // The weights of the present version by extent, as the step left them or a fetch formed them:
  // whoever asks for them again gets the same buffers.
  std::vector<BufferRef> weights_;
  Payload* payload_ = nullptr;  // of the frame being fed
  size_t extents_to_step_ = 0;
  uint64_t weight_overflows_ = 0;
  std::chrono::nanoseconds begun_at_{0};
  std::chrono::nanoseconds prepared_at_{0};
  std::chrono::nanoseconds decided_at_{0};
  std::chrono::nanoseconds stepped_at_{0};
  absl::Status failure_;
  bool ended_ = false;
  std::function<void(const absl::Status&)> on_end_;
};

absl::StatusOr<std::shared_ptr<Engine>> Engine::Make(const JobPlan& plan,
                                                     const EngineConfig& config,
                                                     const EngineDeps& deps) {
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  RoundFsm fsm(plan, layout, config.self, config.chunk_bytes, config.window_extents);
  ExtentStore store(MakeDramTier(plan.spec.tile_elements), &optim::Kernels(deps.isa));
  BALLAST_RETURN_IF_ERROR(store.Add(layout, fsm.owned()));
  BALLAST_ASSIGN_OR_RETURN(
      Contributions contributions,
      Contributions::Create(layout, fsm.owned().size(), plan.spec.world, config.window_extents));
  auto engine = std::make_shared<Engine>(config, deps, std::move(fsm), std::move(contributions),
                                         std::move(store));
  engine->WatchSeats();
  return engine;
}

// A trainer that got its seat must open its stream soon, or the others would wait for ever.
void Engine::WatchSeats() {
  strand_.PostAfter(config_.open_timeout, [weak = weak_from_this()] {
    const auto self = std::static_pointer_cast<Engine>(weak.lock());
    if (self == nullptr) return;
    for (uint32_t slot = 0; slot < self->seen_.size(); ++slot) {
      if (!self->seen_[slot]) self->Feed(SlotLostInput{slot, "it never opened its stream"});
    }
  });
}

// --- Slots --------------------------------------------------------------------------------------

absl::StatusOr<uint64_t> Engine::DoAttach(uint32_t slot, uint64_t incarnation, uint32_t epoch,
                                          const std::shared_ptr<SlotSink>& sink) {
  ErrorFields fields{.job = name_, .round = fsm_.round(), .slot = static_cast<int>(slot)};
  if (!failure_.ok()) return failure_;
  if (epoch != fsm_.plan().epoch.epoch) {
    return ReasonedError(
        absl::StatusCode::kFailedPrecondition,
        epoch < fsm_.plan().epoch.epoch ? Reason::kStaleEpoch : Reason::kFutureEpoch,
        absl::StrCat("stream of epoch ", epoch, ", the job is in epoch ", fsm_.plan().epoch.epoch),
        fields);
  }
  if (!IsMember(slot, incarnation) || sinks_[slot] != nullptr || fsm_.Gone(slot)) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
                         absl::StrCat("slot ", slot, " of job \"", name_,
                                      "\" is held by another process; attach again"),
                         fields);
  }
  sinks_[slot] = sink;
  seen_[slot] = true;
  return fsm_.round();
}

absl::Status Engine::DoExtend(const JobPlan& plan) {
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  const std::vector<uint32_t> before = fsm_.owned();
  BALLAST_RETURN_IF_ERROR(fsm_.Extend(plan, layout));
  std::vector<uint32_t> fresh;
  for (const uint32_t extent : fsm_.owned()) {
    if (std::find(before.begin(), before.end(), extent) == before.end()) fresh.push_back(extent);
  }
  BALLAST_RETURN_IF_ERROR(store_.Add(layout, fresh));
  BALLAST_ASSIGN_OR_RETURN(
      contributions_,
      Contributions::Create(layout, fsm_.owned().size(), plan.spec.world, config_.window_extents));
  weight_pools_.clear();
  weights_.clear();
  return absl::OkStatus();
}

void Engine::DoFetchState(uint32_t slot, uint64_t round, bool weights,
                          std::vector<uint32_t> arrays) {
  if (slot >= sinks_.size() || sinks_[slot] == nullptr) return;
  SlotSink* sink = sinks_[slot].get();
  if (fsm_.init_missing() != 0 && round == fsm_.round()) {
    after_init_.push_back([=, this] { DoFetchState(slot, round, weights, arrays); });
    return;
  }
  // A slot that has begun the round could see it applied while the state is on its way out.
  const bool readable =
      (fsm_.phase() == Phase::kIdle || fsm_.phase() == Phase::kCollect) && !fsm_.Begun(slot);
  const bool known = std::all_of(arrays.begin(), arrays.end(),
                                 [](uint32_t array) { return array < kAdamWStateArrays; });
  if (!readable || round != fsm_.round() || !known) {
    sink->OnError(ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kWrongVersion,
        absl::StrCat("state of version ", round, " was asked for; the job is at version ",
                     fsm_.round(), " (", PhaseName(fsm_.phase()), ") with ", kAdamWStateArrays,
                     " state arrays"),
        {.job = name_, .round = fsm_.round(), .slot = static_cast<int>(slot)}));
    return;
  }
  StateInfo info{.round = round, .tensor_step = fsm_.tensor_steps()};
  info.opt_step = fsm_.policy().opt_step;
  for (const uint32_t extent : fsm_.owned()) {
    const uint64_t elements = fsm_.layout().extents()[extent].elements;
    if (weights) info.bytes += fsm_.layout().ExtentWireBytes(extent);
    info.bytes += elements * sizeof(float) * arrays.size();
  }
  sink->OnState(info);
  for (const uint32_t extent : fsm_.owned()) {
    if (weights) SendWeightsOf(sink, extent);
    for (const uint32_t array : arrays) SendArrayOf(sink, extent, array);
  }
}

void Engine::SendWeightsOf(SlotSink* sink, uint32_t extent) {
  const DType dtype = fsm_.layout().extents()[extent].dtype;
  weights_.resize(fsm_.layout().extents().size());
  BufferRef& weights = weights_[extent];
  if (!weights) {
    absl::StatusOr<BufferRef> buffer = WeightBuffer(dtype);
    if (!buffer.ok()) {
      sink->OnError(buffer.status());
      return;
    }
    weights = *std::move(buffer);
    store_.ReadWeights(fsm_.layout(), extent, weights.data());
  }
  sink->OnExtent(
      {.kind = FrameKind::kWeight,
       .round = fsm_.round(),
       .extent = extent,
       .dtype = dtype,
       .bytes = {weights.data(), fsm_.layout().ExtentWireBytes(extent), weights.ToShared()}});
}

// State planes go out in place: no round can be applied before the slot that asked begins it.
void Engine::SendArrayOf(SlotSink* sink, uint32_t extent, uint32_t array) {
  const Layout& layout = fsm_.layout();
  for (uint32_t t = 0; t < TileCount(layout, extent); ++t) {
    const TileView tile = store_.Tile(extent, t);
    const float* plane = array == 0 ? tile.p : array == 1 ? tile.m : tile.v;
    sink->OnExtent({.kind = FrameKind::kState,
                    .array = static_cast<uint8_t>(array),
                    .round = fsm_.round(),
                    .extent = extent,
                    .dtype = DType::kF32,
                    .offset_bytes = t * layout.tile_elements() * 4,
                    .bytes = {reinterpret_cast<const char*>(plane), size_t{tile.elements} * 4,
                              shared_from_this()}});
  }
}

// --- Effects: collecting ------------------------------------------------------------------------

// Checks the payload before the FSM hears of the frame. A gradient that will be stored is copied to
// its register in the same pass.
void Engine::DoFrame(const FrameInfo& info) {
  const absl::StatusOr<uint32_t> crc =
      fsm_.WouldStore(info) ? contributions_.Store(fsm_.layout(), info, *payload_)
                            : absl::StatusOr<uint32_t>(payload_->Crc32c(info.crc_seed));
  if (!crc.ok()) {
    Fail(crc.status());
    return;
  }
  if (*crc == info.crc32c) {
    Feed(FrameInput{info});
    return;
  }
  if (deps_.metrics != nullptr) deps_.metrics->checksum_errors("push")->Add();
  Do(RefuseFrame{info.slot,
                 {Reason::kBadChecksum, info.round, info.extent, info.offset_bytes,
                  absl::StrCat("frame of round ", info.round, " extent ", info.extent, " offset ",
                               info.offset_bytes, " from slot ", info.slot, ": crc32c ",
                               absl::Hex(info.crc32c, absl::kZeroPad8), " on the wire, ",
                               absl::Hex(*crc, absl::kZeroPad8), " computed; send it again")}});
}

void Engine::Do(const StoreFrame& effect) {
  const FrameInfo& info = effect.info;
  BALLAST_CHECK(payload_ != nullptr && payload_->bytes() == info.length_bytes);
  if (info.kind == FrameKind::kInit) {
    const auto width = static_cast<uint32_t>(DTypeBytes(info.dtype));
    const std::string bytes = payload_->ToString();
    store_.WriteMaster(fsm_.layout(), info.extent, info.offset_bytes / width, bytes.data(),
                       info.length_bytes / width);
    if (info.extent < weights_.size()) weights_[info.extent].Reset();
    if (fsm_.init_missing() == 0) {
      for (const auto& fetch : std::exchange(after_init_, {})) fetch();
    }
  }
  if (metrics_ != nullptr) metrics_->copied_bytes.Add(info.length_bytes);
  // Its bytes count as received from here on, so that the acknowledgement that follows covers them.
  *payload_ = Payload();
}

void Engine::Do(const RefuseFrame& effect) {
  if (deps_.metrics != nullptr) {
    if (effect.refused.reason == Reason::kDuplicate) deps_.metrics->push_duplicates()->Add();
    if (effect.refused.reason == Reason::kConflict) deps_.metrics->push_conflicts()->Add();
    deps_.metrics->frames_rejected(ReasonName(effect.refused.reason))->Add();
  }
  if (effect.refused.reason == Reason::kConflict) {
    BALLAST_LOG(ERROR, LogField("run", name_), LogField("round", effect.refused.round),
                LogField("slot", effect.slot))
        << effect.refused.message;
  }
  if (effect.slot < sinks_.size() && sinks_[effect.slot] != nullptr) {
    sinks_[effect.slot]->OnRefused(effect.refused);
  }
}

void Engine::Do(const AckSlot& effect) {
  if (sinks_[effect.slot] != nullptr) sinks_[effect.slot]->OnAck(MakeAck(effect.flush));
}

void Engine::Do(const MoveWindow&) {
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnAck(MakeAck(false));
  }
}

void Engine::Do(const ReduceExtent& effect) {
  absl::StatusOr<std::shared_ptr<ReduceWork>> made = contributions_.MakeWork(fsm_, effect.extent);
  if (!made.ok()) {
    Fail(made.status());
    return;
  }
  std::shared_ptr<ReduceWork> work = *std::move(made);
  auto self = std::static_pointer_cast<Engine>(shared_from_this());
  // Sums are worth all workers. Norms alone only read what one connection brings: one worker keeps
  // up, and is woken once per extent.
  const size_t tiles = work->norms.size();
  const size_t tiles_per_task = work->input.sum != nullptr ? 1 : std::max<size_t>(1, tiles);
  deps_.workers->Submit(
      tiles / tiles_per_task,
      [self, work, tiles_per_task](size_t task) {
        for (size_t i = 0; i < tiles_per_task; ++i) {
          ReduceTile(self->reduce_kernels_, work.get(), task * tiles_per_task + i);
        }
      },
      [self, work] {
        self->Dispatch([self = self.get(), work] {
          reduce::ExtentNorm norm;
          for (const reduce::TileNorm& tile : work->norms) norm.Add(tile);
          self->contributions_.OnReduced(*work);
          const GradientView grad =
              self->contributions_.Gradient(self->fsm_.layout(), work->extent);
          self->log_->AppendExtent({.round = self->fsm_.round(),
                                    .extent = work->extent,
                                    .dtype = grad.dtype,
                                    .data = grad.data,
                                    .bytes = grad.bytes});
          self->Feed(ReducedInput{work->extent, norm.sumsq, norm.nonfinite});
        });
      });
}

// --- Effects: voting and applying ---------------------------------------------------------------

void Engine::Do(const PrepareRound& effect) {
  prepared_at_ = deps_.clock->Now();
  auto self = std::static_pointer_cast<Engine>(shared_from_this());
  log_->Prepare(fsm_.round(), effect.contributor_digest, [self](absl::Status status) {
    self->Post([self = self.get(), status] {
      if (status.ok()) {
        self->Feed(DurableInput{});
      } else {
        self->Feed(FailInput{status});
      }
    });
  });
}

void Engine::Do(const SendVote& effect) {
  for (const uint32_t server : fsm_.plan().servers) {
    if (server == config_.self) continue;
    deps_.votes->SendVote(job_, fsm_.plan().epoch.epoch, effect.round, server, effect.vote);
  }
}

absl::StatusOr<std::shared_ptr<StepPlan>> Engine::MakeStepPlan(const Decision& decision) const {
  auto plan = std::make_shared<StepPlan>();
  plan->scale_by_group = decision.grad_scale;
  for (const ScalarSet& set : decision.scalars) {
    if (set.bits.size() != kAdamWScalarCount) break;  // Missed below.
    plan->sets.push_back(ScalarsFromBits(set.bits));
  }
  const auto& tensors = fsm_.layout().tensors();
  plan->by_tensor.resize(tensors.size(), nullptr);
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    if (!fsm_.PresentAnywhere(t)) continue;
    for (size_t s = 0; s < plan->sets.size(); ++s) {
      if (decision.scalars[s].group == tensors[t].group &&
          decision.scalars[s].step == fsm_.tensor_steps()[t] + 1) {
        plan->by_tensor[t] = &plan->sets[s];
      }
    }
    if (plan->by_tensor[t] == nullptr) {
      return ReasonedError(
          absl::StatusCode::kAborted, Reason::kVoteMismatch,
          absl::StrCat("job \"", name_, "\": the lead's vote lacks the scalars of ", "tensor ", t,
                       " in round ", fsm_.round()),
          {.job = name_,
           .round = fsm_.round(),
           .server = static_cast<int>(fsm_.plan().servers.front())});
    }
  }
  return plan;
}

void Engine::SendResult(uint64_t round, const Decision& decision, uint64_t weight_bytes) {
  decided_at_ = deps_.clock->Now();
  log_->AppendDecision(round, decision);
  const RoundResult result{.round = round,
                           .applied = decision.applied,
                           .grad_norm = decision.grad_norm,
                           .clip_coef = decision.clip_coef,
                           .loss_scale = decision.policy.loss_scale,
                           .opt_step = decision.policy.opt_step,
                           .nonfinite = decision.nonfinite,
                           .weight_bytes = weight_bytes,
                           .collect_ns = static_cast<uint64_t>((prepared_at_ - begun_at_).count()),
                           .vote_ns = static_cast<uint64_t>((decided_at_ - prepared_at_).count())};
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnResult(result);
  }
  if (metrics_ == nullptr) return;
  metrics_->grad_norm.Set(decision.grad_norm);
  (decision.applied ? metrics_->rounds_committed : metrics_->rounds_skipped_overflow).Add();
  metrics_->MarkCommit();
}

void Engine::Do(const ApplyRound& effect) {
  absl::StatusOr<std::shared_ptr<StepPlan>> made = MakeStepPlan(effect.decision);
  if (!made.ok()) {
    Feed(FailInput{made.status()});
    return;
  }
  const std::shared_ptr<StepPlan> plan = *std::move(made);
  std::vector<uint32_t> todo;
  uint64_t weight_bytes = 0;
  // First layers first: the next forward pass needs them first.
  for (auto it = fsm_.owned().rbegin(); it != fsm_.owned().rend(); ++it) {
    const Extent& extent = fsm_.layout().extents()[*it];
    for (uint32_t i = 0; i < extent.run_count; ++i) {
      if (plan->by_tensor[fsm_.layout().runs()[extent.first_run + i].tensor] == nullptr) continue;
      todo.push_back(*it);
      weight_bytes += fsm_.layout().ExtentWireBytes(*it);
      break;
    }
  }
  SendResult(fsm_.round(), effect.decision, weight_bytes);
  weight_overflows_ = 0;
  extents_to_step_ = todo.size();
  stepped_at_ = decided_at_;
  if (todo.empty()) {
    Feed(SteppedInput{});
    return;
  }
  for (const uint32_t extent : todo) StepExtent(extent, plan);
}

void Engine::StepExtent(uint32_t extent, const std::shared_ptr<StepPlan>& plan) {
  const Layout& layout = fsm_.layout();
  const absl::StatusOr<BufferRef> weight = WeightBuffer(layout.extents()[extent].dtype);
  if (!weight.ok()) {
    Fail(weight.status());
    return;
  }
  const GradientView grad = contributions_.Gradient(layout, extent);
  const ExtentStep step{.grad = grad.data,
                        .grad_dtype = grad.dtype,
                        .weight = weight->data(),
                        .scale = plan->scale_by_group[layout.extents()[extent].group],
                        .scalars = &plan->by_tensor};
  auto self = std::static_pointer_cast<Engine>(shared_from_this());
  deps_.workers->Submit(
      TileCount(layout, extent),
      [self, plan, extent, step](size_t tile) {
        const uint64_t overflows =
            self->store_.StepTile(self->fsm_.layout(), extent, static_cast<uint32_t>(tile), step);
        if (overflows != 0) plan->overflows.fetch_add(overflows, std::memory_order_relaxed);
      },
      [self, plan, extent, buffer = *weight] {
        self->Dispatch([self = self.get(), plan, extent, buffer] {
          self->OnExtentStepped(extent, buffer, plan);
        });
      });
}

void Engine::OnExtentStepped(uint32_t extent, const BufferRef& weight,
                             const std::shared_ptr<StepPlan>& plan) {
  contributions_.Release(extent);
  weights_.resize(fsm_.layout().extents().size());
  weights_[extent] = weight;
  const OutPiece piece{
      .kind = FrameKind::kWeight,
      .round = fsm_.round() + 1,
      .extent = extent,
      .dtype = fsm_.layout().extents()[extent].dtype,
      .bytes = {weight.data(), fsm_.layout().ExtentWireBytes(extent), weight.ToShared()}};
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnExtent(piece);
  }
  if (--extents_to_step_ != 0) return;
  stepped_at_ = deps_.clock->Now();
  weight_overflows_ = plan->overflows.load(std::memory_order_relaxed);
  // The FSM may have failed meanwhile; then the input has no effect.
  Feed(SteppedInput{});
}

void Engine::Do(const SkipRound& effect) {
  SendResult(effect.round, effect.decision, 0);
  stepped_at_ = decided_at_;
  weight_overflows_ = 0;
  BALLAST_LOG(WARN, LogField("run", name_), LogField("round", effect.round))
      << "round skipped: " << effect.decision.nonfinite << " non-finite gradient elements, norm "
      << effect.decision.grad_norm;
}

void Engine::Do(const OpenRound& effect) {
  contributions_.ReleaseAll();
  const RoundDone done{.round = effect.round,
                       .step_ns = static_cast<uint64_t>((stepped_at_ - decided_at_).count()),
                       .weight_overflows = weight_overflows_};
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnDone(done);
  }
  if (deps_.metrics != nullptr) {
    deps_.metrics->ObserveRound(RoundPhase::kCollect, prepared_at_ - begun_at_);
    deps_.metrics->ObserveRound(RoundPhase::kVote, decided_at_ - prepared_at_);
    deps_.metrics->ObserveRound(RoundPhase::kStep, stepped_at_ - decided_at_);
  }
}

absl::StatusOr<BufferRef> Engine::WeightBuffer(DType dtype) {
  if (weight_pools_.empty()) {
    for (const size_t width : {size_t{4}, size_t{2}}) {
      // One set on its way out, one being written. Older ones are back: no slot begins a round
      // before it has received all of the last one's weights.
      BALLAST_ASSIGN_OR_RETURN(
          BufferPool pool,
          BufferPool::Create({.buffer_bytes = fsm_.layout().extent_elements() * width,
                              .max_buffers = 2 * fsm_.owned().size() + 8}));
      weight_pools_.push_back(std::move(pool));
    }
  }
  return weight_pools_[dtype == DType::kF32 ? 0 : 1].Acquire();
}

// --- Effects: ends ------------------------------------------------------------------------------

void Engine::Do(const FailSlot& effect) {
  if (sinks_[effect.slot] == nullptr) return;
  sinks_[effect.slot]->OnError(effect.status);
  sinks_[effect.slot] = nullptr;
}

void Engine::Do(const FailJob& effect) {
  failure_ = effect.status;
  BALLAST_LOG(ERROR, LogField("run", name_), LogField("round", fsm_.round()))
      << "job failed: " << effect.status.message();
  for (auto& sink : sinks_) {
    if (sink != nullptr) sink->OnError(effect.status);
  }
  End();
}

void Engine::Do(const FinishJob&) {
  failure_ = ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobFinished,
                           absl::StrCat("job \"", name_, "\" is finished; all slots have left"),
                           {.job = name_, .round = fsm_.round()});
  BALLAST_LOG(INFO, LogField("run", name_), LogField("round", fsm_.round())) << "job finished";
  End();
}

void Engine::End() {
  if (ended_) return;
  ended_ = true;
  if (on_end_) std::exchange(on_end_, nullptr)(failure_);
}

}  // namespace

absl::StatusOr<std::shared_ptr<RoundEngine>> RoundEngine::Create(const JobPlan& plan,
                                                                 const EngineConfig& config,
                                                                 const EngineDeps& deps) {
  return Engine::Make(plan, config, deps);
}

}  // namespace ballast::server
