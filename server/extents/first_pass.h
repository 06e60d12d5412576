// FirstPass: LAMB's first pass over the extents of this server, a few at a time. It changes no
// state: its results form the second vote.
//
//   Run -> acquire -> squares of its tiles on the workers -> release, as it was -> next ... -> done
//
// Comes from: Sweep (MeasureRound). Goes to: RoundDriver (MeasuredInput).
// Thread safety: on the job's strand; tiles run on workers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/job/decide.h"
#include "common/threads/worker_pool.h"
#include "server/extents/contributions.h"
#include "server/extents/tier_walk.h"
#include "server/round/job_strand.h"
#include "server/round/model_state.h"
#include "server/round/step_plan.h"

namespace ballast::server {

class FirstPass {
 public:
  struct Deps {
    JobStrand* strand = nullptr;
    WorkerPool* workers = nullptr;
    Contributions* contributions = nullptr;
    ModelState* state = nullptr;
    std::function<void(std::vector<RunSquares>)> measured;    // all extents, by id, then by run
    std::function<void(const absl::Status&)> storage_failed;  // of the tier
  };

  // All objects in `deps` outlive this.
  explicit FirstPass(Deps deps);

  // Measures `extents`, first layers first, by `plan`. `layout` stays valid until `measured`, which
  // is called at once without extents. One run at a time.
  void Run(const Layout& layout, std::shared_ptr<const StepPlan> plan,
           std::vector<uint32_t> extents);

 private:
  // `extent` is in memory.
  void Measure(uint32_t extent);
  void OnMeasured(uint32_t extent, const ExtentSquares& squares);
  void Finish();

  const Deps deps_;
  TierWalk walk_;
  const Layout* layout_ = nullptr;
  std::shared_ptr<const StepPlan> plan_;
  std::map<uint32_t, std::vector<RunSquares>> found_;  // by extent
};

}  // namespace ballast::server
