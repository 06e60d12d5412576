#include "tests/sim/nodes/snapshots.h"

#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"

namespace ballast::sim {

SimSnapshots::SimSnapshots(const Context& context, SimProcess* home, const SimDisk* shelf)
    : context_(context), home_(home), shelf_(shelf) {
  context_.shelf->OnTaking(false);
  if (context_.swarm->snapshots.most > 0) DoNext();
}

server::SnapshotRequest SimSnapshots::Named(const std::string& name) const {
  return {.job = context_.plan->name(), .name = name};
}

void SimSnapshots::DoNext() {
  const auto next = [this] {
    SnapshotShelf* const shelf = context_.shelf;
    if (shelf->no_more() || shelf->begun() == context_.swarm->snapshots.most) return;
    if (busy_ || !context_.oracle->begun()) return DoNext();
    // Before there is a state most of them would be in vain.
    const bool begins = home_->engine() != nullptr && home_->fsm().round() == 1;
    if (begins && !random().OneIn(8)) return DoNext();
    if (!shelf->taken().empty() && random().OneIn(3)) {
      const auto which = static_cast<ptrdiff_t>(random().Below(shelf->taken().size()));
      Remove(*std::next(shelf->taken().begin(), which));
    } else {
      if (context_.swarm->snapshots.write_errors && random().OneIn(3)) {
        shelf->disk()->Fail(MemoryDisk::Operation::kWrite, random().Spread(1, 16), EIO);
      }
      Take(absl::StrCat("s", shelf->NextNumber()), [](const absl::Status&) {});
    }
    DoNext();
  };
  context_.world->clock(node())->AfterInLife(
      random().Between(1, 2 * context_.swarm->snapshots.mean_gap), home_->life(), EventKind::kTimer,
      next);
}

void SimSnapshots::Take(const std::string& name, const Done& done) {
  busy_ = true;
  context_.shelf->OnTaking(true);
  context_.shelf->OnDoubtful(name);
  const auto taken = [this, name, done,
                      errors = shelf_->errors()](const absl::StatusOr<server::SnapshotInfo>& info) {
    busy_ = false;
    context_.shelf->OnTaking(false);
    info.ok() ? OnAnswer(*info) : OnError(name, info.status(), shelf_->errors() == errors);
    done(info.status());
  };
  home_->snapshots()->CreateSnapshot(Named(name), home_->InLife(taken));
}

void SimSnapshots::OnAnswer(const server::SnapshotInfo& info) const {
  const bool rests = home_->engine() == nullptr || home_->ended();
  if (rests) context_.world->Met(Cover::kSnapshotOfResting);
  if (!rests && home_->fsm().round() > info.round) {
    context_.world->Met(Cover::kRoundsBesideCapture);
  }
  context_.shelf->OnTaken(info.name);
  if (!context_.world->tracing()) return;
  context_.world->Trace(node(),
                        absl::StrCat("snapshot ", info.name, " taken of round ", info.round));
}

// `clean`: the disk refused nothing, so nothing is left of it.
void SimSnapshots::OnError(const std::string& name, const absl::Status& why, bool clean) const {
  context_.world->Met(Cover::kSnapshotGivenUp);
  if (context_.world->tracing()) {
    context_.world->Trace(node(), absl::StrCat("snapshot given up: ", why.ToString()));
  }
  if (!clean) return;
  context_.shelf->OnGone(name);
  // Else it is a job that is not so far or has ended, the room that rounds want, a server that is
  // lost, or a disk that fails. No request is wrong, and held state is there until it gives way.
  const bool state_lost =
      absl::IsDataLoss(why) || (absl::IsNotFound(why) && ReasonOf(why) != Reason::kUnknownJob);
  const Faults& faults = context_.swarm->faults;
  const bool disks_fail = context_.swarm->may_refuse() || faults.write_errors || faults.sync_errors;
  const bool wrong = absl::IsInvalidArgument(why) || absl::IsAlreadyExists(why) ||
                     absl::IsUnimplemented(why) || absl::IsOutOfRange(why) ||
                     (state_lost && !disks_fail);
  if (wrong) context_.world->Red(absl::StrCat("snapshot ", name, ": ", why.ToString()));
}

void SimSnapshots::Remove(const std::string& name) {
  busy_ = true;
  context_.shelf->OnDoubtful(name);
  const auto removed = [this, name](const absl::StatusOr<server::SnapshotInfo>& info) {
    busy_ = false;
    if (absl::IsNotFound(info.status())) {
      return context_.world->Red(absl::StrCat("snapshot ", name, ": ", info.status().ToString()));
    }
    if (!info.ok()) return;
    context_.world->Met(Cover::kSnapshotRemoved);
    context_.shelf->OnGone(name);
  };
  home_->snapshots()->DeleteSnapshot(Named(name), home_->InLife(removed));
}

}  // namespace ballast::sim
