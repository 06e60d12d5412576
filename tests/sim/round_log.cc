#include "tests/sim/round_log.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/durability/image_format.h"
#include "server/durability/log_format.h"

namespace ballast::sim {

using server::GradientLog;

server::LogOptions SmallLogGeometry(const server::StorageOptions& options,
                                    uint64_t segment_bytes_min) {
  // A page is enough for the PREPARE or the decision of so small a job.
  const uint64_t small_record = GradientLog::RecordBytes(kPageBytes);
  uint64_t round_bytes = 2 * small_record;
  uint64_t largest = small_record;
  for (const uint64_t bytes : options.gradient_bytes) {
    round_bytes += GradientLog::RecordBytes(bytes);
    largest = std::max(largest, GradientLog::RecordBytes(bytes));
  }
  server::LogOptions log;
  log.job = options.slots.job;
  log.server = options.slots.server;
  log.flush = options.slots.flush;
  log.direct = options.slots.direct;
  log.open_threads = 1;
  log.epoch = options.epoch;
  log.start_round = options.start_round;
  const uint64_t wanted = std::clamp(round_bytes, segment_bytes_min, 4 * segment_bytes_min);
  log.segment_bytes = server::PaddedBytes(std::max(wanted, 2 * largest) + kPageBytes);
  const uint64_t usable = log.segment_bytes - kPageBytes - largest;
  const uint64_t rounds = options.checkpoint_rounds + 2;
  log.segments = static_cast<uint32_t>((rounds * round_bytes + usable - 1) / usable) + 2;
  return log;
}

void SimRoundLog::Later(Tick full, EventKind kind, void (SimRoundLog::*step)()) {
  const Tick delay = deps_.world->random().Between(full / 4, full);
  deps_.world->AfterInLife(delay, deps_.node, life_, kind, [this, step] { (this->*step)(); });
}

// --- The log's thread ---------------------------------------------------------------------------

void SimRoundLog::AppendExtent(server::ReducedExtent extent) { Enqueue(std::move(extent)); }

void SimRoundLog::AppendDecision(server::DecisionRecord record) {
  if (deps_.mutant == Mutant::kNoDecisionLogged) return;
  Enqueue(std::move(record));
}

void SimRoundLog::Prepare(server::PreparedRecord record, Done done) {
  Enqueue(PrepareTask{std::move(record), std::move(done)});
}

void SimRoundLog::EndEpoch(uint64_t start_round, Done done) {
  Enqueue(EndEpochTask{start_round, std::move(done)});
}

void SimRoundLog::BeginEpoch(uint32_t epoch, uint64_t start_round) {
  Enqueue(BeginEpochTask{epoch, start_round});
}

void SimRoundLog::Enqueue(Task task) {
  tasks_.push_back(std::move(task));
  if (!std::exchange(pumping_, true)) Pump();
}

void SimRoundLog::Pump() {
  if (tasks_.empty()) {
    pumping_ = false;
    return;
  }
  Later(deps_.pace->log_write, EventKind::kLog, &SimRoundLog::RunFront);
}

void SimRoundLog::RunFront() {
  trying_again_ = false;
  const absl::Status status = Append(tasks_.front());
  if (!Alive()) return;
  if (absl::IsResourceExhausted(status)) {
    OnFull(status);
    return;  // Trim goes on.
  }
  auto* const prepare = std::get_if<PrepareTask>(&tasks_.front());
  auto* const ended = std::get_if<EndEpochTask>(&tasks_.front());
  const bool flush = prepare != nullptr || ended != nullptr;
  if (prepare != nullptr && !status.ok()) {
    prepare->done(status);
  } else if (ended != nullptr && !status.ok()) {
    ended->done(status);
  } else if (prepare != nullptr) {
    prepare_operation_ = deps_.disk->operations();
    if (deps_.mutant == Mutant::kVoteBeforeSync) prepare->done(absl::OkStatus());
  }
  if (!Alive()) return;
  if (flush && status.ok()) {
    syncing_ = true;
    Later(deps_.pace->log_sync, EventKind::kLog, &SimRoundLog::SyncLog);
  } else {  // The log keeps an error for the next flush.
    PopFront();
  }
}

absl::Status SimRoundLog::Append(const Task& task) {
  if (const auto* aside = std::get_if<Aside>(&task)) {
    (*aside)();
    return absl::OkStatus();
  }
  if (const auto* extent = std::get_if<server::ReducedExtent>(&task)) {
    const bool dropped = deps_.mutant == Mutant::kPrepareIncomplete && extent->at.extent == 0;
    if (dropped) return absl::OkStatus();
    return storage_->log()->AppendExtent(extent->at, extent->data, extent->owner);
  }
  if (const auto* decision = std::get_if<server::DecisionRecord>(&task)) {
    return storage_->log()->AppendDecision(*decision);
  }
  if (const auto* ended = std::get_if<EndEpochTask>(&task)) {
    return storage_->log()->Repeat(ended->start_round - 1);
  }
  if (const auto* begun = std::get_if<BeginEpochTask>(&task)) {
    storage_->log()->BeginEpoch(begun->epoch, begun->start_round);
    start_round_ = begun->start_round;
    prepared_round_ = durable_round_ = std::min(prepared_round_, start_round_ - 1);
    TrimLog();
    return absl::OkStatus();
  }
  return AppendPrepared(std::get<PrepareTask>(task));
}

absl::Status SimRoundLog::AppendPrepared(const PrepareTask& task) {
  if (deps_.mutant != Mutant::kPrepareIncomplete) {
    return storage_->log()->AppendPrepared(task.record);
  }
  // The log looks for every extent that has squares; so it is told that there are none.
  server::PreparedRecord record = task.record;
  for (ExtentNorm& norm : record.vote.norms) norm.sumsq = norm.extent == 0 ? 0 : norm.sumsq;
  return storage_->log()->AppendPrepared(record);
}

void SimRoundLog::SyncLog() {
  syncing_ = false;
  const Task task = std::move(tasks_.front());
  tasks_.front() = server::DecisionRecord();  // Stands for the task until it is popped.
  const absl::Status status = storage_->log()->Sync();
  if (!Alive()) return;
  if (const auto* prepare = std::get_if<PrepareTask>(&task)) {
    if (status.ok()) {
      prepared_round_ = durable_round_ = prepare->record.round;
      TrimLog();
    }
    if (deps_.mutant != Mutant::kVoteBeforeSync || !status.ok()) prepare->done(status);
  } else {
    std::get<EndEpochTask>(task).done(status);
  }
  if (Alive()) PopFront();
}

void SimRoundLog::PopFront() {
  short_of_room_ = false;
  tasks_.pop_front();
  Pump();
}

void SimRoundLog::Trace(const std::string& text) const {
  if (deps_.world->tracing()) deps_.world->Trace(deps_.node, text);
}

bool SimRoundLog::PrepareIsDurable() const {
  const uint64_t oldest = deps_.disk->OldestUnsyncedLogWrite();
  return oldest == 0 || oldest > prepare_operation_;
}

// --- The slots' thread --------------------------------------------------------------------------

void SimRoundLog::WriteImage(server::ExtentImage image, Done done) {
  if (deps_.mutant == Mutant::kTrimBeforeImageSync) Trim(image.version);
  images_.push_back({std::move(image), std::move(done)});
  if (images_.size() == 1)
    Later(deps_.pace->image_write, EventKind::kImages, &SimRoundLog::WriteFront);
}

void SimRoundLog::WriteFront() {
  const server::ExtentImage& image = images_.front().image;
  if (deps_.mutant == Mutant::kImageInPlace) SpoilNewestImage(image.extent);
  if (image.initial && deps_.mutant != Mutant::kKeepInitialImage) {
    storage_->images()->Forget(image.extent);
  }
  if (deps_.mutant == Mutant::kHeldImageOverwritten) storage_->images()->LetGo(image.extent);
  const absl::Status status =
      storage_->images()->Write(image.extent, image.version, image.data, image.chunk_crcs);
  if (!Alive()) return;
  if (status.ok()) {
    Later(deps_.pace->image_sync, EventKind::kImages, &SimRoundLog::SyncFront);
    return;
  }
  images_.front().done(status);
}

void SimRoundLog::SyncFront() {
  const absl::Status status = storage_->images()->Sync();
  if (!Alive()) return;
  if (status.ok()) {
    Trace(absl::StrCat("slot of extent ", images_.front().image.extent, " holds version ",
                       images_.front().image.version, ", covered ", CoveredRound()));
    Trim(CoveredRound());
  }
  const Image written = std::move(images_.front());
  images_.pop_front();
  if (!images_.empty())
    Later(deps_.pace->image_write, EventKind::kImages, &SimRoundLog::WriteFront);
  written.done(status);
}

uint64_t SimRoundLog::CoveredRound() const {
  uint64_t covered = std::numeric_limits<uint64_t>::max();
  for (const server::ImageShape& shape : shapes_) {
    covered = std::min(covered, image_io_ != nullptr ? image_io_->Flushed(shape.extent)
                                                     : storage_->images()->Flushed(shape.extent));
  }
  return covered;
}

// On the log's thread.
void SimRoundLog::Trim(uint64_t covered) {
  deps_.world->AfterInLife(0, deps_.node, life_, EventKind::kLog, [this, covered] {
    covered_round_ = covered;
    TrimLog();
    if (short_of_room_ && !syncing_ && !std::exchange(trying_again_, true)) Pump();
  });
}

void SimRoundLog::TrimLog() {
  const uint64_t needed = std::min(covered_round_, std::max(prepared_round_, start_round_));
  const bool held = deps_.mutant != Mutant::kHeldRoundsTrimmed;
  storage_->log()->TrimTo(held ? std::min(needed, held_round_) : needed);
}

// What writing over the newest slot instead of the older one would do to it.
void SimRoundLog::SpoilNewestImage(uint32_t extent) {
  constexpr char kSlots[] = "/jobs/1/slots";
  uint64_t offset = kPageBytes;
  const std::vector<uint64_t> versions = storage_->images()->Versions(extent);
  if (versions.empty()) return;
  auto file = deps_.disk->Open(kImages, {.mode = OpenMode::kWrite});
  if (!file.ok()) return;
  for (const server::ImageShape& shape : shapes_) {
    const uint64_t header_bytes = server::ImageHeaderBytes(shape);
    const uint64_t image_bytes = header_bytes + server::ImageFile::BufferBytes(shape);
    for (int slot = 0; slot < 2 && shape.extent == extent; ++slot) {
      std::string page(header_bytes, '\0');
      (void)(*file)->ReadAt(offset + slot * image_bytes, header_bytes, page.data());
      const auto header = server::DecodeImageHeader(shape, page.data());
      if (!header.ok() || header->version != versions.front()) continue;
      std::fill(page.begin(), page.end(), '\0');
      const ConstBytes zeros{page.data(), page.size()};
      (void)(*file)->WriteAt(offset + slot * image_bytes, {zeros});
      return;
    }
    offset += 2 * image_bytes;
  }
}

}  // namespace ballast::sim
