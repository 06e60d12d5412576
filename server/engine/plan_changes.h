// PlanChanges: the changes of a job's plan at one server: the seal and the adoption of an epoch
// (server/home/epoch_change.h), and growth. Each waits for the moment in the round at which it is
// safe, makes the new plan durable, and only then lets the FSM have it.
//
//   Seal     no later PREPARE in flight           -> saved -> answer
//   Adopt    the round before is over and logged, the workers are idle -> saved -> EnterEpoch
//   Extend   the round before is over, the tier is quiet -> files made -> saved -> TakeGrown
//
// Comes from: LocalJobs. Goes to: RoundControl, RoundLog, GrownFiles, the files of LocalJobs.
// Thread safety: ChangeCalls from any thread, the rest on the job's strand.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/grown_files.h"
#include "server/engine/round_control.h"
#include "server/engine/round_engine.h"
#include "server/extents/reducer.h"
#include "server/round/job_strand.h"
#include "server/round/round_fsm.h"
#include "server/round/waiters.h"
#include "server/tier/state_placement.h"

namespace ballast::server {

class PlanChanges final : public ChangeCalls {
 public:
  struct Deps {
    JobStrand* strand = nullptr;
    RoundControl* rounds = nullptr;
    const RoundFsm* fsm = nullptr;
    const Reducer* reducer = nullptr;
    StatePlacement* placement = nullptr;
    Waiters* waiters = nullptr;
    EngineConfig config;
    EngineDeps engine;
  };
  // All objects in `deps` outlive this.
  explicit PlanChanges(Deps deps)
      : deps_(std::move(deps)), rounds_(deps_.rounds), fsm_(deps_.fsm) {}

  void Seal(uint32_t epoch, std::function<absl::Status(const JobPlan& sealed)> save,
            std::function<void(absl::StatusOr<SealAnswer>)> done) override;
  void Adopt(Adoption adoption) override;
  void Extend(Extension extension) override;
  void SlotGrows(uint32_t slot, bool grows) override;

  // The job has ended: answers the adoptions that wait for the disk.
  void End();

 private:
  struct Sealing {
    uint32_t epoch = 0;
    std::function<absl::Status(const JobPlan& sealed)> save;
    std::function<void(absl::StatusOr<SealAnswer>)> done;
  };

  void SealWhenPrepared(const Sealing& sealing);
  void AdoptWhenOver(const Adoption& adoption);
  // The adoption is durable: enters its epoch once the workers are idle.
  void AdoptFlushed(const Adoption& adoption);
  void GrowWhenOver(const Extension& extension);
  void GrowNow(const Extension& extension);
  absl::Status CommitGrown(const Extension& extension);

  const Deps deps_;
  RoundControl* const rounds_;
  const RoundFsm* const fsm_;

  std::deque<Adoption> adopting_;  // wait for the disk, in the order of its answers
  GrownFiles grown_;
};

}  // namespace ballast::server
