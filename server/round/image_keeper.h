// ImageKeeper: keeps the images of a durable job young enough for the log to forget rounds. In
// memory every extent is copied to its image in turn (Checkpointer). A tier on NVMe writes images
// of its own accord; this class asks for those of extents that no round touches.
// Comes from: RoundDriver, InitialWeights. Goes to: Checkpointer, NvmeTier, RoundLog.
// Thread safety: on the job's strand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "server/durability/round_log.h"
#include "server/round/checkpointer.h"
#include "server/round/job_strand.h"
#include "server/round/model_state.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

class ImageKeeper {
 public:
  struct Deps {
    JobStrand* strand = nullptr;
    const RoundFsm* fsm = nullptr;
    ModelState* state = nullptr;
    uint32_t checkpoint_rounds = 1;  // EngineConfig's
    std::function<void(const absl::Status&)> storage_failed;
    std::function<void()> written;  // an image was written
  };

  // What `deps` points to outlives this.
  ImageKeeper(Deps deps, Checkpointer checkpointer)
      : deps_(std::move(deps)), checkpointer_(std::move(checkpointer)) {}

  // The images belong to `log` from now on; null: the job has ended and nothing is written any
  // more. What is under way for an earlier log is not heard of.
  void Use(RoundLog* log);
  // The job has grown: another `checkpointer` for its extents.
  void Replace(Checkpointer checkpointer) { checkpointer_ = std::move(checkpointer); }

  // Starts the writes that are due and possible now. The state is that of version fsm->round(),
  // unless a step is under way.
  void Pump();
  // A round is over: another share of the extents is due.
  void OnRound() { checkpointer_.OnRound(); }
  // With a tier on NVMe: flushes what it has written, and looks then what else is due.
  void Flush();

  // Initial weights of jobs in memory, as Checkpointer's.
  void AddInitial(uint32_t extent);
  void DropInitial() { checkpointer_.DropInitial(); }
  bool initial_pending() const { return checkpointer_.initial_pending(); }

 private:
  void OnWritten(const absl::Status& status);
  void SaveOldExtents();

  const Deps deps_;
  Checkpointer checkpointer_;
  RoundLog* log_ = nullptr;
  uint32_t generation_ = 0;  // of log_: grows with every Use
  size_t saving_old_ = 0;    // writes that SaveOldExtents waits for
};

}  // namespace ballast::server
