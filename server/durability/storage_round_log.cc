// StorageRoundLog: the RoundLog of JobStorage::MakeRoundLog. Two executors, one for the log and one
// for the images, so that a checkpoint never delays a vote.
// Comes from: JobStorage. Goes to: GradientLog, ImageFile. Thread safety: as RoundLog; mu_ guards
// the holds.
#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "common/faults/failpoint.h"
#include "common/faults/mutant.h"
#include "common/threads/executor.h"
#include "server/durability/flush_group.h"
#include "server/durability/job_storage.h"
#include "server/durability/log_queue.h"

namespace ballast::server {

class StorageRoundLog final : public RoundLog, private ImageIo {
 public:
  using Done = RoundLog::Done;
  static constexpr uint64_t kNoRound = std::numeric_limits<uint64_t>::max();

  StorageRoundLog(std::unique_ptr<JobStorage> storage, uint64_t durable_round,
                  ExecutorSource* executors, int tier_threads)
      : storage_(std::move(storage)),
        durable_round_(durable_round),
        prepared_round_(durable_round),
        start_round_(storage_->start_round_),
        log_thread_(executors->MakeExecutor("log", 1)),
        image_writers_(executors->MakeExecutor("images", std::max(1, tier_threads))) {
    if (tier_threads > 0) image_readers_ = executors->MakeExecutor("image-reads", tier_threads);
    Trim(storage_->CoveredRound());  // The files do not store the last TrimTo.
  }

  ~StorageRoundLog() override {
    // Unflushed votes will not be sent any more, but a job at rest has ended its last round: its
    // next start wants that decision. The log's thread ends last, as flushed images post trims.
    queue_.End();
    if (image_readers_ != nullptr) image_readers_->Shutdown();
    image_writers_->Shutdown();
    log_thread_->Shutdown();
  }

  void AppendExtent(ReducedExtent extent) override {
    if (BALLAST_MUTANT(kPrepareIncomplete) && extent.at.extent == 0) return;
    Enqueue([this, extent = std::move(extent)] { return storage_->log()->AppendExtent(extent); });
  }

  void AppendDecision(DecisionRecord record) override {
    if (BALLAST_MUTANT(kNoDecisionLogged)) return;
    Enqueue([this, record = std::move(record)] { return storage_->log()->AppendDecision(record); },
            /*after_end=*/true);
  }

  void Prepare(PreparedRecord record, Done done) override {
    Enqueue([this, record = std::move(record), done = std::move(done)] {
      BALLAST_FAILPOINT("prepare.before_log");
      absl::Status status = storage_->log()->AppendPrepared(record);
      // Without `done`: the record waits in front of the queue for a checkpoint to make room.
      if (absl::IsResourceExhausted(status)) return status;
      // One flush covers all of the round, its extents and the decision of the round before.
      if (status.ok() && !BALLAST_MUTANT(kVoteBeforeSync)) status = storage_->log()->Sync();
      if (status.ok()) {
        // Only now: before the flush, a crash would leave the older vote as the newest one.
        prepared_round_ = record.round;
        TrimLog();
        durable_round_.store(record.round, std::memory_order_relaxed);
        BALLAST_FAILPOINT("prepare.after_log");
      }
      done(status);
      return absl::OkStatus();
    });
  }

  void AppendRatios(RatiosRecord record, Done done) override {
    Enqueue([this, record = std::move(record), done = std::move(done)] {
      BALLAST_FAILPOINT("ratios.before_log");
      absl::Status status = storage_->log()->AppendRatios(record);
      if (absl::IsResourceExhausted(status)) return status;
      if (status.ok() && !BALLAST_MUTANT(kRatiosBeforeSync)) status = storage_->log()->Sync();
      if (status.ok()) BALLAST_FAILPOINT("ratios.after_log");
      done(status);
      return absl::OkStatus();
    });
  }

  void EndEpoch(uint64_t start_round, Done done) override {
    Enqueue([this, start_round, done = std::move(done)] {
      // Flushed before the epoch is saved: once it is, a restart takes the older copies for dead.
      absl::Status status = storage_->log()->Repeat(start_round - 1);
      if (absl::IsResourceExhausted(status)) return status;
      if (status.ok()) status = storage_->log()->Sync();
      done(status);
      return absl::OkStatus();
    });
  }

  void BeginEpoch(uint32_t epoch, uint64_t start_round) override {
    Enqueue([this, epoch, start_round] {
      storage_->log()->BeginEpoch(epoch, start_round);
      start_round_ = start_round;
      // Votes of older epochs from `start_round` on are void: no peer asks for them, and the rounds
      // run again.
      prepared_round_ = std::min(prepared_round_, start_round - 1);
      durable_round_.store(prepared_round_, std::memory_order_relaxed);
      TrimLog();
      return absl::OkStatus();
    });
  }

  uint64_t durable_round() const override { return durable_round_.load(std::memory_order_relaxed); }
  bool short_of_room() const override { return short_of_room_.load(std::memory_order_relaxed); }

  void OnShortOfRoom(std::function<void()> callback) override {
    on_short_of_room_ = std::move(callback);
  }

  void WriteImage(ExtentImage image, Done done) override {
    if (BALLAST_MUTANT(kTrimBeforeImageSync)) Trim(image.version);
    image_writers_->Post([this, image = std::move(image), done = std::move(done)] {
      const absl::Status status = WriteNow(image);
      if (!status.ok()) return done(status);
      // Queued after the images that wait to be written: one flush for all of them.
      if (written_.Add(done)) image_writers_->Post([this] { FlushWritten(); });
    });
  }

  ImageIo* image_io() override { return image_readers_ != nullptr ? this : nullptr; }

  void Hold(std::function<void(absl::StatusOr<HeldState>)> done) override {
    log_thread_->Post([this, done = std::move(done)] {
      RunAll();  // The hold starts from the newest vote that the caller has asked for.
      done(HoldNow());
    });
  }

  void LetGo(uint32_t extent) override {
    {
      MutexLock lock(&mu_);
      if (held_.erase(extent) == 0) return;
    }
    storage_->images()->LetGo(extent);  // The next flush, or want of room, trims the log.
  }

  void LetAllGo() override {
    DropHeld();
    {
      MutexLock lock(&mu_);
      holding_ = false;
    }
    log_thread_->Post([this] { held_round_ = kNoRound; });  // Before the trim, which respects it.
    Trim(storage_->CoveredRound());
  }

  void ReadRounds(uint64_t until, std::function<void(absl::StatusOr<HeldRounds>)> done) override {
    log_thread_->Post([this, until, done = std::move(done)] {
      RunAll();
      done(RoundsNow(until));
    });
  }

  absl::Status ReadHeld(uint32_t extent, uint64_t version, void* to) override {
    return UnlessGone(storage_->images()->Read(extent, version, to));
  }

  absl::Status ReadHeld(const LoggedExtent& extent, void* to) override {
    return UnlessGone(storage_->log()->ReadFlushed(extent, to));
  }

 private:
  // On the log's thread, so that nothing is trimmed meanwhile.
  absl::StatusOr<HeldState> HoldNow() {
    MutexLock lock(&mu_);
    if (holding_) {
      return absl::AlreadyExistsError("another snapshot of the job is being taken; wait for it");
    }
    HeldState held;
    absl::Status status;
    for (const ImageShape& shape : storage_->shapes_) {
      const absl::StatusOr<uint64_t> version = storage_->images()->Hold(shape.extent);
      if (!version.ok()) {
        status = version.status();
        break;
      }
      held.versions[shape.extent] = *version;
      held_.insert(shape.extent);
    }
    gave_way_ = false;
    holding_ = status.ok();
    if (holding_) {
      // CoveredRound does not pass a held version, so the rounds since then stay anyway. ReadRounds
      // also returns the round before its own, which newer images may cover before it is read.
      held_round_ = std::max<uint64_t>(prepared_round_, 2) - 1;
      return held;
    }
    for (const uint32_t extent : held_) storage_->images()->LetGo(extent);
    held_.clear();
    return status;
  }

  void DropHeld() {
    std::set<uint32_t> held;
    {
      MutexLock lock(&mu_);
      held.swap(held_);
    }
    for (const uint32_t extent : held) storage_->images()->LetGo(extent);
  }

  absl::StatusOr<HeldRounds> RoundsNow(uint64_t until) {
    uint64_t oldest = std::max<uint64_t>(until, 1) - 1;
    held_round_ = kNoRound;
    {
      MutexLock lock(&mu_);
      for (const uint32_t extent : held_) {
        oldest = std::min(oldest, storage_->images()->Held(extent).value_or(until));
      }
    }
    const auto& rounds = storage_->log()->rounds();
    HeldRounds found(rounds.lower_bound(oldest), rounds.lower_bound(until));
    BALLAST_RETURN_IF_ERROR(UnlessGone(absl::OkStatus()));
    if (short_of_room() && !EndsDecided(found, until)) {
      return absl::AbortedError(
          "rounds wait for room in the gradient log, so the snapshot's are not all there yet; take "
          "it again, or raise storage.checkpoint_rounds");
    }
    return found;
  }

  static bool EndsDecided(const HeldRounds& rounds, uint64_t until) {
    const auto last = until <= 1 ? rounds.end() : rounds.find(until - 1);
    return until <= 1 || (last != rounds.end() && last->second.decision.has_value());
  }

  // Called after a read: its bytes may have been overwritten under it once the hold gave way.
  absl::Status UnlessGone(absl::Status status) {
    MutexLock lock(&mu_);
    if (!gave_way_ || BALLAST_MUTANT(kGaveWayUntold)) return status;
    return absl::AbortedError(
        "the gradient log needed the room that a snapshot held; take it again, or raise "
        "storage.checkpoint_rounds");
  }

  // For a full log: rounds never wait for a snapshot, so holds give way. Whether this lets more
  // rounds be trimmed.
  bool Reclaim() {
    {
      MutexLock lock(&mu_);
      // Before anything is let go, so that no reader takes overwritten bytes for held ones.
      gave_way_ = gave_way_ || !held_.empty() || held_round_ != kNoRound;
      if (gave_way_ && holding_) BALLAST_PROBE(kHoldGaveWay);
    }
    DropHeld();
    const bool held = std::exchange(held_round_, kNoRound) != kNoRound;
    const uint64_t before = std::exchange(covered_round_, storage_->CoveredRound());
    TrimLog();
    return held || covered_round_ > before;
  }

  void Read(uint32_t extent, void* to, Done done) override {
    BALLAST_PROBE(kExtentLoaded);
    image_readers_->Post([this, extent, to, done = std::move(done)] {
      ImageFile* const images = storage_->images();
      const std::vector<uint64_t> versions = images->Versions(extent);
      const uint64_t newest = versions.empty() ? 0 : versions.front();
      done(images->Read(extent, BALLAST_MUTANT(kReadOlderImage) ? versions.back() : newest, to));
    });
  }

  void Write(ExtentImage image, Done done) override {
    if (!image.initial) BALLAST_PROBE(kExtentWrittenBack);
    if (!image.initial && BALLAST_MUTANT(kEvictUnwritten)) return done(absl::OkStatus());
    image_writers_->Post(
        [this, image = std::move(image), done = std::move(done)] { done(WriteNow(image)); });
  }

  void Flush(Done done) override {
    image_writers_->Post([this, done = std::move(done)] { done(FlushNow()); });
  }

  absl::Status WriteNow(const ExtentImage& image) {
    ImageFile* const images = storage_->images();
    // Initial weights start the versions again, below those of earlier images.
    if (image.initial && !BALLAST_MUTANT(kKeepInitialImage)) images->Forget(image.extent);
    // The place to overwrite holds the only image of the extent that a flush has covered.
    if (images->NeedsSync(image.extent)) BALLAST_RETURN_IF_ERROR(FlushNow());
    if (BALLAST_MUTANT(kHeldImageOverwritten)) images->LetGo(image.extent);
    return images->Write(image.extent, image.version, image.data, image.chunk_crcs);
  }

  void FlushWritten() {
    const std::vector<Done> written = written_.Take();  // Before the flush, which covers them.
    for (const absl::Status status = FlushNow(); const Done& done : written) done(status);
  }

  absl::Status FlushNow() {
    BALLAST_RETURN_IF_ERROR(storage_->images()->Sync());
    // Never before: until the flush, the log is the only safe copy of these rounds.
    Trim(storage_->CoveredRound());
    return absl::OkStatus();
  }

  // The log keeps the errors of an append other than RESOURCE_EXHAUSTED, and returns them to the
  // next Prepare.
  void Enqueue(std::function<absl::Status()> run, bool after_end = false) {
    if (queue_.Add({std::move(run), after_end})) log_thread_->Post([this] { RunNext(); });
  }

  void Trim(uint64_t covered) {
    log_thread_->Post([this, covered] {
      covered_round_ = covered;
      TrimLog();
      if (short_of_room()) RunNext();
    });
  }

  // The newest PREPARE is kept: a peer may still ask for that vote. Of the rounds before this epoch
  // a peer asks for the last at most, and the log keeps that.
  void TrimLog() {
    const uint64_t needed = std::min(covered_round_, std::max(prepared_round_, start_round_));
    storage_->log()->TrimTo(BALLAST_MUTANT(kHeldRoundsTrimmed) ? needed
                                                               : std::min(needed, held_round_));
  }

  // One task at a time, so that trims and holds posted meanwhile run between two of them.
  void RunNext() {
    if (RunOne()) log_thread_->Post([this] { RunNext(); });
  }

  // Runs all queued tasks, unless the first waits for room.
  void RunAll() {
    while (!short_of_room() && RunOne()) continue;
  }

  // Whether there was a task, and it is over.
  bool RunOne() {
    LogQueue::Task* const task = queue_.Front();
    if (task == nullptr) return false;
    absl::Status status = task->run();
    while (absl::IsResourceExhausted(status) && Reclaim()) status = task->run();
    if (absl::IsResourceExhausted(status)) {
      WaitForRoom(status);
      return false;
    }
    short_of_room_.store(false, std::memory_order_relaxed);
    queue_.Pop();  // Not earlier: a task without room has to be found here again.
    return true;
  }

  // The task stays in front, as the log takes records in the order of the rounds; the next Trim
  // tries it again.
  void WaitForRoom(const absl::Status& status) {
    if (short_of_room_.exchange(true)) return;
    BALLAST_PROBE(kLogFull);
    BALLAST_LOG(WARN) << "the gradient log is full; rounds wait for the checkpoint: " << status;
    if (on_short_of_room_) on_short_of_room_();
  }

  const std::unique_ptr<JobStorage> storage_;
  std::atomic<uint64_t> durable_round_;
  std::atomic<bool> short_of_room_{false};
  std::function<void()> on_short_of_room_;
  // On the log's thread. A server without extents has all rounds covered, but no images to show it.
  uint64_t prepared_round_;
  uint64_t start_round_;
  uint64_t covered_round_ = 0;
  uint64_t held_round_ = kNoRound;  // rounds from here on are kept for a hold

  LogQueue queue_;
  FlushGroup written_;  // images
  Mutex mu_;
  std::set<uint32_t> held_ ABSL_GUARDED_BY(mu_);  // extents
  bool holding_ ABSL_GUARDED_BY(mu_) = false;     // from Hold to LetAllGo
  bool gave_way_ ABSL_GUARDED_BY(mu_) = false;    // the last hold, to the log

  // Last: their threads use all of the above.
  const std::unique_ptr<Executor> log_thread_;
  const std::unique_ptr<Executor> image_writers_;
  std::unique_ptr<Executor> image_readers_;  // for a tier only
};

std::unique_ptr<RoundLog> JobStorage::MakeRoundLog(std::unique_ptr<JobStorage> storage,
                                                   uint64_t durable_round,
                                                   ExecutorSource* executors, int tier_threads) {
  return std::make_unique<StorageRoundLog>(std::move(storage), durable_round, executors,
                                           tier_threads);
}

}  // namespace ballast::server
