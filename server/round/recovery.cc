#include "server/round/recovery.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "server/round/step_plan.h"

namespace ballast::server {
namespace {

constexpr uint32_t kAdamWArrays = 3;

SlotShape ShapeOf(const Layout& layout, uint32_t extent) {
  return {extent, layout.extents()[extent].elements, kAdamWArrays};
}

// One server's recovery; its parts share what is known of the log.
class Recovery {
 public:
  Recovery(const JobPlan& plan, const Layout& layout, JobStorage* storage, ExtentStore* store)
      : plan_(plan), layout_(layout), storage_(storage), store_(store) {}

  absl::StatusOr<Recovered> Run(const std::vector<uint32_t>& owned);

 private:
  const LoggedRound* Round(uint64_t round) const {
    const auto& rounds = storage_->log()->rounds();
    const auto it = rounds.find(round);
    return it == rounds.end() ? nullptr : &it->second;
  }
  absl::Status FindRound(const std::vector<uint32_t>& owned);
  absl::Status Load(uint32_t extent);
  absl::Status LoadVersion(uint32_t extent, uint64_t version);
  absl::Status Replay(uint32_t extent, uint64_t round);
  absl::StatusOr<std::shared_ptr<StepPlan>> PlanOf(uint64_t round);

  const JobPlan& plan_;
  const Layout& layout_;
  JobStorage* const storage_;
  ExtentStore* const store_;
  Recovered out_;
  Arena buffer_;   // one slot or one gradient
  Arena weights_;  // what the step writes, which nobody reads here
  std::map<uint64_t, std::shared_ptr<StepPlan>> plans_;
};

// Which round is open, and with which policy and step counts it begins.
absl::Status Recovery::FindRound(const std::vector<uint32_t>& owned) {
  Restored& fsm = out_.fsm;
  fsm.round = plan_.epoch.start_round;
  fsm.policy.loss_scale = plan_.spec.loss_scale;
  fsm.tensor_step.assign(layout_.tensors().size(), 0);
  for (const auto& [round, logged] : storage_->log()->rounds()) {
    if (!logged.decision.has_value() || !logged.prepared.has_value()) continue;
    if (round + 1 < fsm.round) continue;
    const Decision& decision = logged.decision->decision;
    fsm.round = round + 1;
    fsm.policy = decision.policy;
    fsm.tensor_step = logged.prepared->tensor_step;
    fsm.tensor_step.resize(layout_.tensors().size(), 0);
    for (size_t t = 0; t < logged.prepared->present.size() && decision.applied; ++t) {
      if (logged.prepared->present[t]) ++fsm.tensor_step[t];
    }
    fsm.last_prepared = logged.prepared;
    out_.last_decision = logged.decision;
  }
  const LoggedRound* const open = Round(fsm.round);
  if (open != nullptr && open->prepared.has_value() && open->prepared->epoch == plan_.epoch.epoch) {
    fsm.prepared = open->prepared;
    fsm.policy = open->prepared->policy;
    fsm.tensor_step = open->prepared->tensor_step;
  }
  for (const uint32_t extent : owned) {
    if (open == nullptr) break;
    const auto logged = open->extents.find(extent);
    if (logged == open->extents.end() || logged->second.epoch != plan_.epoch.epoch) continue;
    out_.open_extents[extent] = logged->second;
    fsm.reduced[extent] = {extent, logged->second.sumsq, logged->second.nonfinite};
  }
  return absl::OkStatus();
}

absl::StatusOr<Recovered> Recovery::Run(const std::vector<uint32_t>& owned) {
  size_t largest = kPageBytes;
  for (const uint32_t extent : owned) {
    largest = std::max<size_t>(largest, SlotFile::BufferBytes(ShapeOf(layout_, extent)));
  }
  BALLAST_ASSIGN_OR_RETURN(buffer_, Arena::Create(largest));
  BALLAST_ASSIGN_OR_RETURN(weights_, Arena::Create(size_t{layout_.extent_elements()} * 4));
  BALLAST_RETURN_IF_ERROR(FindRound(owned));
  for (const uint32_t extent : owned) BALLAST_RETURN_IF_ERROR(Load(extent));
  return std::move(out_);
}

// The newest slot that is whole and that the log can bring to the open round.
absl::Status Recovery::Load(uint32_t extent) {
  const Restored& fsm = out_.fsm;
  const std::vector<uint64_t> versions = storage_->slots()->Versions(extent);
  out_.slot_versions.push_back(versions.empty() ? 0 : versions.front());
  absl::Status why;
  for (const uint64_t version : versions) {
    const absl::Status loaded = LoadVersion(extent, version);
    if (loaded.ok()) return loaded;
    if (!absl::IsDataLoss(loaded)) return loaded;
    BALLAST_LOG(ERROR, LogField("run", plan_.spec.name)) << loaded.message();
    if (why.ok()) why = loaded;
  }
  const bool untouched = !out_.last_decision.has_value() && !fsm.prepared.has_value();
  if (versions.empty() && untouched) {
    out_.fsm.init_missing.push_back(extent);
    return absl::OkStatus();
  }
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat("job \"", plan_.spec.name, "\": extent ", extent, " cannot be brought to round ",
                   fsm.round, ": ",
                   why.ok() ? std::string("it has no slot") : std::string(why.message()),
                   ". Restore a snapshot, or start the run again under a new name"),
      {.job = plan_.spec.name, .round = fsm.round});
}

absl::Status Recovery::LoadVersion(uint32_t extent, uint64_t version) {
  const uint64_t round = out_.fsm.round;
  const bool ahead = version == round + 1 && out_.fsm.prepared.has_value();
  if (version > round && !ahead) {
    return absl::DataLossError(absl::StrCat("slot of extent ", extent, " holds version ", version,
                                            ", but the log ends before round ", round,
                                            " was decided"));
  }
  BALLAST_RETURN_IF_ERROR(storage_->slots()->Read(extent, version, buffer_.data()));
  CopyFromImage(layout_, store_, extent, buffer_.data());
  out_.slot_bytes += SlotFile::PayloadBytes(ShapeOf(layout_, extent));
  if (ahead) {
    out_.ahead.push_back(extent);
    return absl::OkStatus();
  }
  for (uint64_t r = version; r < round; ++r) BALLAST_RETURN_IF_ERROR(Replay(extent, r));
  out_.replayed_rounds = std::max(out_.replayed_rounds, round - version);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<StepPlan>> Recovery::PlanOf(uint64_t round) {
  if (const auto known = plans_.find(round); known != plans_.end()) return known->second;
  const LoggedRound* const logged = Round(round);
  if (logged == nullptr || !logged->decision.has_value() || !logged->prepared.has_value()) {
    return absl::DataLossError(absl::StrCat("the log lacks the decision of round ", round));
  }
  std::vector<bool> present = logged->prepared->present;
  std::vector<uint64_t> steps = logged->prepared->tensor_step;
  present.resize(layout_.tensors().size(), false);
  steps.resize(layout_.tensors().size(), 0);
  std::shared_ptr<StepPlan> plan;
  if (logged->decision->decision.applied) {
    BALLAST_ASSIGN_OR_RETURN(plan,
                             MakeStepPlan(layout_, present, steps, logged->decision->decision));
  }
  plans_[round] = plan;
  return plan;
}

absl::Status Recovery::Replay(uint32_t extent_id, uint64_t round) {
  BALLAST_ASSIGN_OR_RETURN(const std::shared_ptr<StepPlan> plan, PlanOf(round));
  if (plan == nullptr || !Touches(*plan, layout_, extent_id)) return absl::OkStatus();
  const auto& extents = Round(round)->extents;
  const auto logged = extents.find(extent_id);
  if (logged == extents.end()) {
    return absl::DataLossError(
        absl::StrCat("the log lacks extent ", extent_id, " of round ", round));
  }
  BALLAST_RETURN_IF_ERROR(storage_->log()->ReadExtent(logged->second, buffer_.data()));
  out_.log_bytes += logged->second.bytes;
  const ExtentStep step{.grad = buffer_.data(),
                        .grad_dtype = logged->second.dtype,
                        .weight = weights_.data(),
                        .scale = plan->scale_by_group[layout_.extents()[extent_id].group],
                        .scalars = &plan->by_tensor};
  for (uint32_t tile = 0; tile < TileCount(layout_, extent_id); ++tile) {
    store_->StepTile(layout_, extent_id, tile, step);
  }
  return absl::OkStatus();
}

template <typename Copy>
void ForEachPlane(const Layout& layout, ExtentStore* store, uint32_t extent, Copy copy) {
  size_t at = 0;
  for (uint32_t t = 0; t < TileCount(layout, extent); ++t) {
    const TileView tile = store->Tile(extent, t);
    const size_t bytes = size_t{tile.elements} * sizeof(float);
    for (float* plane : {tile.p, tile.m, tile.v}) {
      copy(plane, at, bytes);
      at += bytes;
    }
  }
}

}  // namespace

StorageOptions StorageOptionsOf(const JobPlan& plan, const Layout& layout, uint32_t self,
                                uint32_t checkpoint_rounds) {
  StorageOptions options;
  options.slots.job = plan.job;
  options.slots.server = self;
  options.slots.optimizer = static_cast<uint32_t>(plan.spec.optimizer);
  options.slots.formula_id = plan.spec.formula_id;
  options.slots.tile_elements = plan.spec.tile_elements;
  options.slots.flush = plan.spec.durability == Durability::kPower;
  options.checkpoint_rounds = checkpoint_rounds;
  for (uint32_t extent = 0; extent < layout.extents().size(); ++extent) {
    if (plan.owner[extent] != self) continue;
    options.shapes.push_back(ShapeOf(layout, extent));
    options.gradient_bytes.push_back(uint64_t{layout.extents()[extent].elements} * sizeof(float));
  }
  return options;
}

void CopyToImage(const Layout& layout, ExtentStore* store, uint32_t extent, void* to) {
  ForEachPlane(layout, store, extent, [to](const float* plane, size_t at, size_t bytes) {
    std::memcpy(static_cast<char*>(to) + at, plane, bytes);
  });
}

void CopyFromImage(const Layout& layout, ExtentStore* store, uint32_t extent, const void* from) {
  ForEachPlane(layout, store, extent, [from](float* plane, size_t at, size_t bytes) {
    std::memcpy(plane, static_cast<const char*>(from) + at, bytes);
  });
}

absl::StatusOr<Recovered> Recover(const JobPlan& plan, const Layout& layout,
                                  const std::vector<uint32_t>& owned, JobStorage* storage,
                                  ExtentStore* store) {
  return Recovery(plan, layout, storage, store).Run(owned);
}

}  // namespace ballast::server
