// SimServer: its part of a snapshot; the mirror of Directory::SnapshotLocal and its callees
// (server/operator/snapshot_share.cc). See server.h. Thread safety: one thread.
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/snapshot/store.h"
#include "tests/sim/nodes/server.h"

namespace ballast::sim {

using server::CapturedRound;
using server::SnapshotCall;

struct SimServer::Part {
  SnapshotCall call;
  std::shared_ptr<CapturedRound> before;
  std::function<void(absl::StatusOr<uint64_t>)> done;
  std::unique_ptr<server::ImageFile> file;
  bool shelf_failed = false;
};

// As OnDisk: a thread that waits for the disk with the snapshots.
void SimServer::OnShelf(std::function<void()> task) {
  const Tick full = context_.swarm->snapshots.pace;
  context_.world->After(context_.world->random().Between(full / 4, full), node(),
                        EventKind::kImages, std::move(task));
}

void SimServer::OnSnapshot(const SnapshotCall& call, const std::shared_ptr<CapturedRound>& before,
                           const std::function<void(absl::StatusOr<uint64_t>)>& done) {
  if (process() == nullptr) return done(absl::NotFoundError("the job is not here (any more)"));
  if (call.step == SnapshotCall::Step::kHold) return HoldState(done);
  if (call.step == SnapshotCall::Step::kRelease) {
    context_.world->SetGaveWay(node(), true);  // The home ends it.
    process_->engine()->captures().ReleaseState();
    OnShelf([this, id = call.snapshot, done] {
      server::SnapshotStore store(&shelf_disk_, kShelfRoot, id_, kShelfOwner);
      (void)store.DropPart(id);
      holds_ = false;
      if (running_) done(0);
    });
    return;
  }
  auto part = std::make_shared<Part>();
  part->call = call;
  part->before = before;
  part->done = done;
  OnShelf([this, part] { BeginPart(part); });
}

// State held for an earlier snapshot is let go.
void SimServer::HoldState(const std::function<void(absl::StatusOr<uint64_t>)>& done) {
  context_.world->SetGaveWay(node(),
                             std::exchange(holds_, true) || context_.world->log_full(node()));
  process_->engine()->captures().HoldState(
      process_->InLife([this, done](const absl::StatusOr<uint64_t>& round) {
        CheckSnapshotError(round.status(), /*may_give_way=*/true);
        done(round);
      }));
}

void SimServer::BeginPart(const std::shared_ptr<Part>& part) {
  server::SnapshotStore store(&shelf_disk_, kShelfRoot, id_, kShelfOwner);
  auto made = store.CreatePart(part->call.snapshot, *context_.plan, *context_.layout);
  if (!running_) return;
  if (!made.ok()) return part->done(made.status());
  part->file = *std::move(made);
  process_->engine()->captures().CaptureState(
      part->call.round,
      [this, part, process = process_.get()](uint32_t extent, const void* image) {
        if (!process->alive()) return absl::CancelledError("the process has ended");
        return TakeInto(part.get(), extent, image);
      },
      process_->InLife(
          [this, part](const absl::StatusOr<CapturedRound>& before) { EndPart(part, before); }));
}

absl::Status SimServer::TakeInto(Part* part, uint32_t extent, const void* image) {
  context_.oracle->OnImage(absl::StrCat("the capture of server ", id_), part->call.round, extent,
                           static_cast<const float*>(image));
  const absl::Status written = part->file->Write(extent, part->call.round, image);
  part->shelf_failed = part->shelf_failed || !written.ok();
  return written;
}

void SimServer::EndPart(const std::shared_ptr<Part>& part,
                        const absl::StatusOr<CapturedRound>& before) {
  holds_ = false;
  if (!part->shelf_failed) {
    CheckSnapshotError(before.status(), context_.world->gave_way(node()));
  }
  if (before.ok()) {
    if (process_->fsm().round() > part->call.round) {
      context_.world->Met(Cover::kRoundsBesideCapture);
    }
    context_.oracle->OnRoundBefore(absl::StrCat("the capture of server ", id_), part->call.round,
                                   *before);
  }
  OnShelf([this, part, before] {
    absl::Status status = before.status();
    const bool flush = context_.mutant != Mutant::kPartNotFlushed;
    if (status.ok() && flush) status = part->file->Sync();
    if (!running_) return;
    if (status.ok() && part->before != nullptr) *part->before = *before;
    status.ok() ? part->done(part->call.round) : part->done(status);
  });
}

// A snapshot may fail because the job is not so far, has ended, or needs the room, and because of a
// disk that does.
void SimServer::CheckSnapshotError(const absl::Status& status, bool may_give_way) const {
  if (status.ok() || disk_failed() || process_->ended() || absl::IsFailedPrecondition(status))
    return;
  if (absl::IsAborted(status) && may_give_way) return;
  context_.world->Red(
      absl::StrCat("server ", id_, " has no state for a snapshot: ", status.ToString()));
}

}  // namespace ballast::sim
