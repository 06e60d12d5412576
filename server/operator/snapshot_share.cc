#include "server/operator/snapshot_share.h"

#include <map>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/faults/mutant.h"
#include "server/operator/image_work.h"

namespace ballast::server {
namespace {

constexpr BackgroundTasks::Thread kShareThread = BackgroundTasks::Thread::kSnapshots;

}  // namespace

void SnapshotShare::Snapshot(SnapshotCall call, Done done) {
  parts_.strand->Run([this, call = std::move(call), done = std::move(done)] {
    if (call.step == SnapshotCall::Step::kRelease) return Release(call, done);
    if (const absl::Status status = parts_.files->Check(); !status.ok()) return done(status);
    call.step == SnapshotCall::Step::kHold ? Hold(call, done) : Capture(call, done);
  });
}

void SnapshotShare::Hold(const SnapshotCall& call, const Done& done) {
  const auto held = [done](const absl::StatusOr<uint64_t>& round) {
    round.ok() ? done(SnapshotAnswer{*round, {}}) : done(round.status());
  };
  const DamagedJobs::Ref damaged = parts_.damaged->Find(call.job);
  if (damaged != nullptr) return done(damaged->why);
  if (RestsHere(call.job)) return holds_->Hold(call.job, call.snapshot, held);
  const std::shared_ptr<RoundEngine> engine = parts_.jobs->Find(call.job);
  if (engine == nullptr || parts_.jobs->Get(call.job) == nullptr) {
    return done(parts_.self->NoDurableJob(call.job));
  }
  engine->captures().HoldState(held);
}

bool SnapshotShare::RestsHere(uint64_t job) const {
  return !parts_.jobs->Runs(job) && parts_.store != nullptr;
}

void SnapshotShare::Release(const SnapshotCall& call, const Done& done) {
  if (const auto engine = parts_.jobs->Find(call.job); engine != nullptr)
    engine->captures().ReleaseState();
  holds_->Release(call.job);
  if (!parts_.files->keeps()) return done(SnapshotAnswer());
  const auto drop = [files = parts_.files, call] {
    return files->store(call.tenant).DropPart(call.snapshot);
  };
  parts_.work->Run(kShareThread, drop, [done](const absl::Status& dropped) {
    if (!dropped.ok()) BALLAST_LOG(WARN) << dropped;
    done(SnapshotAnswer());
  });
}

void SnapshotShare::Capture(const SnapshotCall& call, const Done& done) {
  if (holds_->Has(call.job)) return CaptureResting(call, done);
  const LocalJobs::Entry* const job = parts_.jobs->Get(call.job);
  if (job == nullptr || parts_.jobs->Find(call.job) == nullptr) {
    return done(parts_.self->NoDurableJob(call.job));
  }
  CaptureRunning(call, job->plan, done);
}

void SnapshotShare::CaptureRunning(const SnapshotCall& call, const JobPlan& plan,
                                   const Done& done) {
  struct Part {
    std::shared_ptr<ImageFile> file;
    TakeExtent take;
  };
  const auto sync = [work = parts_.work, done, round = call.round](
                        const std::shared_ptr<ImageFile>& file,
                        const absl::StatusOr<CapturedRound>& end) {
    work->Run(
        kShareThread,
        [file, end] {
          return end.ok() && !BALLAST_MUTANT(kPartNotFlushed) ? file->Sync() : end.status();
        },
        [end, done, round](const absl::Status& synced) {
          synced.ok() ? done(SnapshotAnswer{round, *end}) : done(synced);
        });
  };
  const auto create = [this, call, plan]() -> absl::StatusOr<Part> {
    BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
    BALLAST_ASSIGN_OR_RETURN(
        std::shared_ptr<ImageFile> file,
        parts_.files->store(call.tenant).CreatePart(call.snapshot, plan, layout));
    return Part{file, TakeInto(file, plan, layout, call.round)};
  };
  const auto capture = [this, call, engine = parts_.jobs->Find(call.job), done,
                        sync](const absl::StatusOr<Part>& part) {
    if (!part.ok()) return done(part.status());
    engine->captures().CaptureState(
        call.round, part->take,
        [owner = parts_.strand->owner().lock(), sync,
         file = part->file](const absl::StatusOr<CapturedRound>& end) { sync(file, end); });
  };
  parts_.work->Run(kShareThread, create, capture);
}

void SnapshotShare::CaptureResting(const SnapshotCall& call, const Done& done) {
  const auto capture = [this, call](
                           RestingState* state,
                           const std::atomic<bool>& cancelled) -> absl::StatusOr<CapturedRound> {
    BALLAST_ASSIGN_OR_RETURN(
        const std::shared_ptr<ImageFile> part,
        parts_.files->store(call.tenant).CreatePart(call.snapshot, state->plan(), state->layout()));
    const TakeExtent take = TakeInto(part, state->plan(), state->layout(), call.round);
    BALLAST_ASSIGN_OR_RETURN(const CapturedRound end, state->Capture(call.round, take, cancelled));
    BALLAST_RETURN_IF_ERROR(part->Sync());
    return end;
  };
  holds_->Take(call.job, call.snapshot, capture,
               [done, round = call.round](const absl::StatusOr<CapturedRound>& end) {
                 end.ok() ? done(SnapshotAnswer{round, *end}) : done(end.status());
               });
}

TakeExtent SnapshotShare::TakeInto(const std::shared_ptr<ImageFile>& part, const JobPlan& plan,
                                   const Layout& layout, uint64_t round) const {
  const std::vector<ImageShape> owned = OwnedShapes(plan, layout, parts_.self->id());
  std::map<uint32_t, uint64_t> bytes;  // by extent
  for (const ImageShape& shape : owned) bytes[shape.extent] = ImageFile::PayloadBytes(shape);
  return [part, round, bytes = std::move(bytes),
          work = BeginImageWork(parts_.work->works(), "snapshot", plan.spec.name, owned)](
             uint32_t extent, const void* image) -> absl::Status {
    BALLAST_RETURN_IF_ERROR(part->Write(extent, round, image));
    work->done_bytes += bytes.at(extent);
    return absl::OkStatus();
  };
}

}  // namespace ballast::server
