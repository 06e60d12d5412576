#include "server/engine/sweep.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/faults/mutant.h"

namespace ballast::server {

Sweep::Sweep(Deps deps)
    : deps_(std::move(deps)),
      first_pass_(
          {.strand = deps_.strand,
           .workers = deps_.workers,
           .contributions = deps_.contributions,
           .state = deps_.state,
           .measured =
               [rounds = deps_.rounds](std::vector<RunSquares> squares) {
                 rounds->Feed(MeasuredInput{std::move(squares)});
               },
           .storage_failed = [rounds = deps_.rounds](
                                 const absl::Status& status) { rounds->StorageFailed(status); }}),
      walk_(
          [this](uint32_t extent) { Step(extent); },
          [rounds = deps_.rounds](const absl::Status& status) { rounds->StorageFailed(status); }) {}

void Sweep::LeaveOut(const std::vector<uint32_t>& extents) {
  ahead_.insert(extents.begin(), extents.end());
}

absl::Status Sweep::RatiosLost(uint32_t extent) const {
  const std::string& name = deps_.fsm->plan().spec.name;
  const uint64_t round = deps_.fsm->round();
  return ReasonedError(absl::StatusCode::kDataLoss, Reason::kStateLost,
                       absl::StrCat("job \"", name, "\": the image of extent ", extent,
                                    " holds version ", round + 1, ", but the log lacks the ratios ",
                                    "of round ", round, ". Put the right files back, restore a ",
                                    "snapshot, or start the run again under a new name"),
                       {.job = name, .round = round});
}

void Sweep::Measure(const Decision& decision) {
  if (const absl::Status planned = Plan(decision); !planned.ok())
    return deps_.rounds->FailLater(planned);
  // The step of this round wrote the image after its ratios were durable, so the log has lost them.
  for (const uint32_t extent : extents_) {
    if (ahead_.count(extent) != 0) return deps_.rounds->FailLater(RatiosLost(extent));
  }
  first_pass_.Run(deps_.fsm->layout(), plan_, extents_);
}

absl::Status Sweep::Plan(const Decision& decision, const std::vector<float>& ratios) {
  const RoundFsm& fsm = *deps_.fsm;
  BALLAST_ASSIGN_OR_RETURN(plan_, MakeStepPlan(OptimizerOf(fsm.plan().spec), fsm.layout(),
                                               fsm.PresentTensors(), fsm.tensor_steps(), decision));
  if (!ratios.empty()) BALLAST_RETURN_IF_ERROR(AddRatios(ratios, plan_.get()));
  extents_.clear();
  for (auto it = fsm.owned().rbegin(); it != fsm.owned().rend(); ++it) {
    if (Touches(*plan_, fsm.layout(), *it)) extents_.push_back(*it);
  }
  weight_overflows_ = 0;
  to_pushers_ = fsm.plan().spec.gradients == Gradients::kScattered && !IsUpload(decision.upload);
  return absl::OkStatus();
}

void Sweep::Run() {
  if (extents_.empty()) return deps_.stepped();
  walk_.Begin(deps_.state->store.tier(), extents_);
}

void Sweep::Step(uint32_t extent) {
  const Layout& layout = deps_.fsm->layout();
  ExtentStore* const store = &deps_.state->store;
  const absl::StatusOr<BufferRef> weight = deps_.state->weights.Acquire(layout, extent);
  if (!weight.ok()) return deps_.rounds->FailLater(weight.status());
  if (ahead_.erase(extent) != 0 && !BALLAST_MUTANT(kApplyTwice)) {  // Stepped before the restart.
    store->ReadWeights(layout, extent, weight->data());
    // Posted, since OnStepped moves the walk, which is in the middle of a step of its own.
    deps_.strand->Post([this, extent, buffer = *weight] { OnStepped(extent, 0, buffer); });
    return;
  }
  // The workers use the plan, the store and the register without the strand, so both of their tasks
  // keep the engine alive.
  const GradientView grad = deps_.contributions->Gradient(layout, extent);
  const ExtentStep step = StepOf(*plan_, layout, extent, grad.data, grad.dtype, weight->data());
  deps_.workers->Submit(
      TileCount(layout, extent),
      [store, &layout, plan = plan_, extent, step,
       engine = deps_.strand->KeepAlive()](size_t tile) {
        const uint64_t overflows =
            store->StepTile(layout, extent, static_cast<uint32_t>(tile), step);
        if (overflows != 0) plan->overflows.fetch_add(overflows, std::memory_order_relaxed);
      },
      [this, extent, buffer = *weight, engine = deps_.strand->KeepAlive()] {
        deps_.strand->Dispatch(
            [this, extent, buffer] { OnStepped(extent, deps_.fsm->round() + 1, buffer); });
      });
}

void Sweep::OnStepped(uint32_t extent, uint64_t version, const BufferRef& weight) {
  walk_.Release(extent, version);
  deps_.contributions->Release(extent);
  const bool stale = BALLAST_MUTANT(kStaleWeights) && deps_.state->weights.Find(extent);
  if (!stale) deps_.state->weights.Keep(extent, weight);
  TellWeights(extent, weight);
  if (!walk_.over()) return walk_.Pump();
  weight_overflows_ = plan_->overflows.load(std::memory_order_relaxed);
  deps_.stepped();
}

bool Sweep::Gets(uint32_t slot, uint32_t extent) const {
  return !to_pushers_ || deps_.fsm->Contributors(extent).front() == slot;
}

uint64_t Sweep::WeightBytes(uint32_t slot) const {
  uint64_t bytes = 0;
  for (const uint32_t extent : extents_) {
    if (Gets(slot, extent)) bytes += deps_.fsm->layout().ExtentWireBytes(extent);
  }
  return bytes;
}

void Sweep::TellWeights(uint32_t extent, const BufferRef& weight) const {
  const Layout& layout = deps_.fsm->layout();
  const OutPiece piece{.kind = FrameKind::kWeight,
                       .round = deps_.fsm->round() + 1,
                       .extent = extent,
                       .dtype = layout.extents()[extent].dtype,
                       .bytes = {weight.data(), layout.ExtentWireBytes(extent), weight.ToShared()}};
  BALLAST_FAILPOINT("weights.before_tell");
  for (const Member& member : deps_.fsm->plan().epoch.members) {
    SlotSink* const sink = deps_.sinks->Sink(member.slot).get();
    if (sink != nullptr && Gets(member.slot, extent)) sink->OnExtent(piece);
  }
  BALLAST_FAILPOINT("weights.after_tell");
}

}  // namespace ballast::server
