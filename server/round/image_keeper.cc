#include "server/round/image_keeper.h"

#include <algorithm>

#include "common/base/mutant.h"

namespace ballast::server {
namespace {

// Old extents brought to their images at a time.
constexpr size_t kSavingOldMax = 2;

}  // namespace

void ImageKeeper::Use(RoundLog* log) {
  log_ = log;
  ++generation_;
}

void ImageKeeper::AddInitial(uint32_t extent) {
  checkpointer_.AddInitial(extent);
  Pump();
}

void ImageKeeper::Pump() {
  const bool steps = deps_.fsm->phase() == Phase::kApplying && !BALLAST_MUTANT(kImageWhileApplying);
  if (log_ == nullptr || !log_->keeps_images() || steps) return;
  if (deps_.state->nvme != nullptr) return SaveOldExtents();
  checkpointer_.Pump(
      deps_.fsm->layout(), &deps_.state->store, log_, deps_.fsm->round(), log_->short_of_room(),
      deps_.strand->Callback([this, generation = generation_](const absl::Status& status) {
        // Not one of files that the job has outgrown.
        if (generation_ == generation) OnWritten(status);
      }));
}

void ImageKeeper::OnWritten(const absl::Status& status) {
  checkpointer_.OnWritten();
  if (!status.ok()) return deps_.storage_failed(status);
  Pump();
  deps_.written();
}

// Extents that no round touches, or whose rounds were skipped, are written all the same before the
// log has to keep more rounds than it has room for.
void ImageKeeper::SaveOldExtents() {
  NvmeTier* const nvme = deps_.state->nvme;
  const uint64_t round = deps_.fsm->round();
  const uint64_t rounds = deps_.checkpoint_rounds;
  const uint64_t below = log_->short_of_room() ? round : round - std::min(round, rounds);
  while (saving_old_ < kSavingOldMax) {
    const int64_t extent = nvme->OldestBelow(below);
    if (extent < 0) break;
    ++saving_old_;
    BALLAST_PROBE(kOldExtentSaved);
    nvme->Save(static_cast<uint32_t>(extent), /*initial=*/false,
               [this](const absl::Status& status) {
                 --saving_old_;
                 if (!status.ok()) return deps_.storage_failed(status);
                 if (saving_old_ == 0) Flush();
               });
  }
  // What was written for other reasons may be all that is missing.
  if (log_->short_of_room() && saving_old_ == 0 && nvme->unflushed()) Flush();
}

void ImageKeeper::Flush() {
  deps_.state->nvme->Flush([this](const absl::Status& status) {
    if (!status.ok()) return deps_.storage_failed(status);
    Pump();
  });
}

}  // namespace ballast::server
