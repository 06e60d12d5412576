// A RoundFsm fed by hand, and its answers.
// Comes from: the tests in this folder. Goes to: RoundFsm. Thread safety: none needed.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/round/job_plan.h"
#include "server/round/round_fsm.h"
#include "tests/server/round/plans.h"

namespace ballast::server::testing {

inline constexpr uint32_t kFsmChunk = 256;

class FsmFixture {
 public:
  explicit FsmFixture(const JobPlan& plan, uint32_t self = 0, uint32_t window = 64)
      : plan_(plan), fsm_(plan, LayoutOf(plan), self, kFsmChunk, window) {}

  Effects Feed(const Input& input) {
    Effects effects;
    fsm_.Step(input, &effects);
    return effects;
  }
  // As the engine does: the FSM admits the frame, and takes it then.
  Effects Deliver(const FrameHeader& frame) {
    if (std::optional<FrameRefused> refused = fsm_.RefusalOf(frame)) {
      refusals_.push_back(*std::move(refused));
      return {};
    }
    return Feed(FrameInput{frame});
  }
  // Why the frame is refused, if it is delivered now.
  Reason RefusalOf(const FrameHeader& frame) {
    refusals_.clear();
    Deliver(frame);
    return FirstRefusal();
  }
  // The first refusal delivered since the last Push or RefusalOf began.
  Reason FirstRefusal() const {
    return refusals_.empty() ? Reason::kUnspecified : refusals_.front().reason;
  }
  // Uploads all initial weights of slot 0.
  void Init() {
    for (const uint32_t extent : fsm_.owned()) {
      for (const ChunkRange& range : ChunkRanges(fsm_.layout(), extent, kFsmChunk, {})) {
        Deliver(MakeFrame(plan_, FrameKind::kInit, 0, fsm_.round(), extent, range));
      }
    }
  }
  Effects Begin(uint32_t slot, std::vector<bool> presence = {}) {
    return Feed(BeginInput{slot, MakeBegin(fsm_.round(), std::move(presence))});
  }
  // Sends every frame of `slot`; completes reductions at once. Returns all effects.
  Effects Push(uint32_t slot, const std::vector<bool>& presence = {}, uint64_t nonfinite = 0) {
    Effects all;
    refusals_.clear();
    for (const uint32_t extent : fsm_.owned()) {
      for (const ChunkRange& range : ChunkRanges(fsm_.layout(), extent, kFsmChunk, presence)) {
        Append(&all,
               Deliver(MakeFrame(plan_, FrameKind::kGradient, slot, fsm_.round(), extent, range)));
      }
    }
    Reduce(&all, nonfinite);
    return all;
  }
  void Reduce(Effects* all, uint64_t nonfinite = 0) {
    for (size_t i = 0; i < all->size(); ++i) {
      if (const auto* reduce = std::get_if<ReduceExtent>(&(*all)[i])) {
        Append(all, Feed(ReducedInput{reduce->extent, 1.0, nonfinite}));
      }
    }
  }
  static void Append(Effects* all, Effects more) {
    all->insert(all->end(), more.begin(), more.end());
  }
  JobPlan plan_;
  RoundFsm fsm_;
  std::vector<FrameRefused> refusals_;
};

template <typename T>
size_t Count(const Effects& effects) {
  size_t n = 0;
  for (const Effect& e : effects) n += std::holds_alternative<T>(e) ? 1 : 0;
  return n;
}
template <typename T>
const T* First(const Effects& effects) {
  for (const Effect& e : effects) {
    if (const T* found = std::get_if<T>(&e)) return found;
  }
  return nullptr;
}

inline JobPlan Durable(JobPlan plan) {
  plan.spec.durability = Durability::kPower;
  return plan;
}

}  // namespace ballast::server::testing
