#include "server/extents/reducer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/status_macros.h"

namespace ballast::server {

absl::Status Reducer::Start(const RoundFsm& fsm, uint32_t extent) {
  BALLAST_ASSIGN_OR_RETURN(const std::shared_ptr<ReduceWork> work,
                           contributions_->MakeWork(fsm, extent));
  ++under_way_;
  // Sums are worth all workers. Norms alone only read the bytes of one connection: one worker keeps
  // up, and is woken once per extent.
  const size_t tiles = work->norms.size();
  const size_t tiles_per_task = work->input.sum != nullptr ? 1 : std::max<size_t>(1, tiles);
  workers_->Submit(
      tiles / tiles_per_task,
      [this, engine = strand_->KeepAlive(), work, tiles_per_task](size_t task) {
        for (size_t i = 0; i < tiles_per_task; ++i) {
          ReduceTile(*kernels_, work.get(), task * tiles_per_task + i);
        }
      },
      [this, engine = strand_->KeepAlive(), work] {
        strand_->Dispatch([this, work, reduced = FinishReduce(*kernels_, *work)] {
          --under_way_;
          contributions_->OnReduced(*work);
          reduced_(work->extent, reduced);
        });
      });
  return absl::OkStatus();
}

}  // namespace ballast::server
