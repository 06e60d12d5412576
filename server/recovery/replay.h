// Replay: applies rounds of a gradient log to one extent, by the kernels of a live round. Recovery
// brings an image to the open round with it, a snapshot to the round it is taken at.
// Comes from: recovery, capture. Goes to: StepPlan, ExtentStore.
// Thread safety: RoundReplay is immutable once made; a Lane and a store belong to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/arena.h"
#include "common/tensor/layout.h"
#include "server/durability/log/gradient_log.h"
#include "server/optim/dispatch.h"
#include "server/round/step_plan.h"
#include "server/state/extent_store.h"

namespace ballast::server {

class RoundReplay {
 public:
  using Rounds = std::map<uint64_t, LoggedRound>;
  // Reads a gradient into memory of an extent's fp32 elements, aligned to pages.
  using ReadGradient = std::function<absl::Status(const LoggedExtent& from, void* to)>;

  // Memory of one thread.
  struct Lane {
    Arena gradient;  // of one extent, as logged
    Arena weights;   // written by the step; not read here
  };
  // Progress of one extent.
  struct Progress {
    bool stepped = false;  // some round has changed it
    uint64_t log_bytes = 0;
  };

  // Resolves the decisions of `rounds` below `until`. `layout` and `rounds` outlive this. An
  // unresolvable decision is an error only for an extent that needs it.
  RoundReplay(Optimizer optimizer, const Layout& layout, const Rounds& rounds, uint64_t until,
              ReadGradient read);

  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<Lane> MakeLane(const Layout& layout);
  // Memory for the state of one extent at a time, any of the job. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<ExtentStore>> MakeScratch(const Optimizer& optimizer,
                                                                  const Layout& layout,
                                                                  const optim::KernelTable* table);

  // Applies one round to the extent's state in `store`. Errors: DATA_LOSS: the rounds lack its
  // decision or gradient; those of MakeStepPlan and ReadGradient.
  absl::Status Apply(uint32_t extent, uint64_t round, ExtentStore* store, Lane* lane,
                     Progress* progress) const;

 private:
  absl::StatusOr<std::shared_ptr<StepPlan>> MakePlan(const LoggedRound& logged) const;

  const Optimizer optimizer_;
  const Layout& layout_;
  const Rounds& rounds_;
  const ReadGradient read_;
  std::map<uint64_t, absl::StatusOr<std::shared_ptr<StepPlan>>> plans_;  // of decided rounds
};

}  // namespace ballast::server
