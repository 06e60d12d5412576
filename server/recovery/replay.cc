#include "server/recovery/replay.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/faults/mutant.h"
#include "server/round/ratios.h"
#include "server/tier/scratch_tier.h"

namespace ballast::server {

RoundReplay::RoundReplay(Optimizer optimizer, const Layout& layout, const Rounds& rounds,
                         uint64_t until, ReadGradient read)
    : optimizer_(std::move(optimizer)), layout_(layout), rounds_(rounds), read_(std::move(read)) {
  for (const auto& [round, logged] : rounds_) {
    if (round >= until) break;
    if (!logged.decision.has_value() || !logged.prepared.has_value()) continue;
    plans_.emplace(round, MakePlan(logged));
  }
}

absl::StatusOr<std::shared_ptr<StepPlan>> RoundReplay::MakePlan(const LoggedRound& logged) const {
  if (!logged.decision->decision.applied) return std::shared_ptr<StepPlan>();
  std::vector<bool> present = logged.prepared->present;
  std::vector<uint64_t> steps = logged.prepared->tensor_step;
  present.resize(layout_.tensors().size(), false);
  steps.resize(layout_.tensors().size(), 0);
  Optimizer optimizer = optimizer_;
  if (BALLAST_MUTANT(kForgetOptions)) optimizer.options.assign(optimizer.options.size(), 0);
  const Decision& decision = logged.decision->decision;
  BALLAST_ASSIGN_OR_RETURN(std::shared_ptr<StepPlan> plan,
                           MakeStepPlan(optimizer, layout_, present, steps, decision));
  if (!TakesTwoPasses(optimizer_, decision)) return plan;
  if (!logged.ratios.has_value()) {
    return absl::DataLossError(
        absl::StrCat("the log lacks the ratios of round ", logged.decision->round));
  }
  std::vector<float> ratios = logged.ratios->ratios;
  ratios.resize(layout_.tensors().size(), 1.0f);  // Tensors added since.
  BALLAST_RETURN_IF_ERROR(AddRatios(ratios, plan.get()));
  return plan;
}

absl::StatusOr<RoundReplay::Lane> RoundReplay::MakeLane(const Layout& layout) {
  const size_t bytes = size_t{layout.extent_elements()} * sizeof(float);
  Lane lane;
  BALLAST_ASSIGN_OR_RETURN(lane.gradient, Arena::Create(bytes));
  BALLAST_ASSIGN_OR_RETURN(lane.weights, Arena::Create(bytes));
  return lane;
}

absl::StatusOr<std::unique_ptr<ExtentStore>> RoundReplay::MakeScratch(
    const Optimizer& optimizer, const Layout& layout, const optim::KernelTable* table) {
  const StateShape shape{.tile_elements = layout.tile_elements(),
                         .arrays = StateArrayCount(optimizer)};
  BALLAST_ASSIGN_OR_RETURN(Arena state,
                           Arena::Create(DramExtentBytes(layout.extent_elements(), shape)));
  return std::make_unique<ExtentStore>(
      std::make_unique<ScratchTier>(layout, shape, std::move(state)), table);
}

absl::Status RoundReplay::Apply(uint32_t extent, uint64_t round, ExtentStore* store, Lane* lane,
                                Progress* progress) const {
  const auto known = plans_.find(round);
  if (known == plans_.end()) {
    return absl::DataLossError(absl::StrCat("the log lacks the decision of round ", round));
  }
  BALLAST_RETURN_IF_ERROR(known->second.status());
  const std::shared_ptr<StepPlan>& plan = *known->second;
  if (plan == nullptr || !Touches(*plan, layout_, extent)) return absl::OkStatus();
  const auto& extents = rounds_.at(round).extents;
  const auto logged = extents.find(extent);
  if (logged == extents.end()) {
    return absl::DataLossError(absl::StrCat("the log lacks extent ", extent, " of round ", round));
  }
  BALLAST_RETURN_IF_ERROR(read_(logged->second, lane->gradient.data()));
  progress->log_bytes += logged->second.bytes;
  const ExtentStep step = StepOf(*plan, layout_, extent, lane->gradient.data(),
                                 logged->second.dtype, lane->weights.data());
  for (uint32_t tile = 0; tile < TileCount(layout_, extent); ++tile) {
    store->StepTile(layout_, extent, tile, step);
  }
  progress->stepped = true;
  return absl::OkStatus();
}

}  // namespace ballast::server
