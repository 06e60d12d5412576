#include "server/durability/log/gradient_log.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "common/faults/mutant.h"
#include "server/durability/log/log_disk.h"
#include "server/durability/log/log_files.h"
#include "server/durability/log/log_format.h"
#include "server/durability/log/log_index.h"
#include "server/durability/log/log_scan.h"
#include "server/durability/log/log_writes.h"
#include "server/durability/records/bytes.h"

namespace ballast::server {
namespace {

class SegmentedLog : public GradientLog {
 public:
  // `state` describes the files; its generation goes into every record written from now on.
  SegmentedLog(LogFiles files, const LogOptions& options, LogState state, Arena scratch,
               std::unique_ptr<LogWrites> writes)
      : options_(options),
        state_(std::move(state)),
        disk_(std::move(files), options, std::move(scratch), std::move(writes)) {}

  // Writes the header of the first segment: from then on there is a log.
  absl::Status Begin() { return StartSegment(); }
  // Takes back a Begin that failed.
  void Remove(FileSystem* fs) { disk_.Remove(fs); }
  // Makes the end that the scan found final: nothing after it ever comes back.
  absl::Status CutTail(ReadLanes* lanes);

  const std::map<uint64_t, LoggedRound>& rounds() const override { return state_.index.rounds(); }
  absl::Status ReadExtent(const LoggedExtent& extent, void* to) override;
  absl::Status ReadFlushed(const LoggedExtent& extent, void* to) const override {
    return disk_.Read(extent, to);
  }
  absl::Status AppendExtent(const ReducedExtent& reduced) override;
  absl::Status AppendPrepared(const PreparedRecord& record) override;
  absl::Status AppendDecision(const DecisionRecord& record) override;
  absl::Status AppendRatios(const RatiosRecord& record) override;
  absl::Status Sync() override;
  void TrimTo(uint64_t round) override;
  absl::Status Repeat(uint64_t round) override;
  void BeginEpoch(uint32_t epoch, uint64_t start_round) override;
  absl::Status Seed(const PreparedRecord& prepared, const DecisionRecord& decision) override;
  uint64_t FreeBytes() const override;

 private:
  // Segments at the front of the row that hold nothing newer than TrimTo.
  size_t Reusable() const;
  absl::Status MakeRoom(uint64_t record_bytes);
  absl::Status StartSegment();
  absl::Status Write(const PreparedRecord& record);
  absl::Status Write(const DecisionRecord& record);
  absl::Status Write(const RatiosRecord& record);
  // Begins to write the record at the end; fills in the rest of `header`. `data_crc` and `owner` as
  // in ReducedExtent.
  absl::Status Append(RecordHeader* header, const void* data,
                      std::optional<uint32_t> data_crc = std::nullopt,
                      std::shared_ptr<const void> owner = nullptr);
  // Makes an error final, and returns it from now on.
  absl::Status Fail(const absl::Status& cause);

  const LogOptions options_;
  LogState state_;
  LogDisk disk_;

  uint64_t flushed_lsn_ = 0;
  uint64_t trim_round_ = 0;
  std::optional<uint64_t> repeated_round_;  // by the last Repeat
  uint64_t repeated_sequence_ = 0;          // of the segment where that begins
  absl::Status failure_;
};

absl::Status SegmentedLog::Fail(const absl::Status& cause) {
  // Which pages reached the disk is unknown now, and the kernel may report a repeated flush as good
  // after dropping them. RESOURCE_EXHAUSTED would invite to try again.
  const auto code = absl::IsResourceExhausted(cause) ? absl::StatusCode::kInternal : cause.code();
  failure_ = absl::Status(code, absl::StrCat("the gradient log takes nothing more until it is ",
                                             "opened again: ", cause.message()));
  return failure_;
}

absl::Status SegmentedLog::CutTail(ReadLanes* lanes) {
  // The next scan must not find more than this one. Should the page at the end be readable then,
  // records after it would count again, and with them a vote that this server has denied to peers.
  if (state_.offset < options_.segment_bytes) {
    BALLAST_RETURN_IF_ERROR(disk_.ClearPage(state_.live.back().sequence, state_.offset));
  }
  BALLAST_RETURN_IF_ERROR(disk_.WriteAgain(state_.unproven, lanes));
  // Bytes read may have been in the kernel's cache only; peers get to hear of these records next.
  for (const LiveSegment& segment : state_.live) disk_.NeedsFlush(segment.sequence);
  return Sync();
}

// Appending.

absl::Status SegmentedLog::AppendExtent(const ReducedExtent& reduced) {
  const LoggedExtent& extent = reduced.at;
  if (DTypeBytes(extent.dtype) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("extent ", extent.extent, " of round ", extent.round, " has no dtype"));
  }
  BALLAST_RETURN_IF_ERROR(failure_);
  BALLAST_RETURN_IF_ERROR(state_.index.Check(extent));
  RecordHeader header{.type = RecordType::kExtent,
                      .dtype = extent.dtype,
                      .epoch = extent.epoch,
                      .round = extent.round,
                      .extent = extent.extent,
                      .payload_bytes = extent.bytes,
                      .sumsq = extent.sumsq,
                      .nonfinite = extent.nonfinite,
                      .first_nonfinite = extent.first_nonfinite};
  // A record refused for want of room is appended again later, so the index must not have it yet.
  BALLAST_RETURN_IF_ERROR(Append(&header, reduced.data, reduced.data_crc, reduced.owner));
  LoggedExtent logged = extent;
  logged.crc32c = header.payload_crc;
  logged.segment = disk_.IndexOf(header.sequence);
  logged.offset = header.offset + kPageBytes;
  state_.index.Add(logged);
  return absl::OkStatus();
}

absl::Status SegmentedLog::AppendPrepared(const PreparedRecord& record) {
  BALLAST_RETURN_IF_ERROR(failure_);
  BALLAST_RETURN_IF_ERROR(state_.index.Check(record));
  // The vote is final once peers have it: a gradient that never was appended would be missed only
  // after a restart, when the round cannot be applied and cannot be refused any more.
  if (!BALLAST_MUTANT(kPrepareIncomplete)) {
    BALLAST_RETURN_IF_ERROR(state_.index.CheckWhole(record));
  }
  BALLAST_RETURN_IF_ERROR(Write(record));
  state_.index.Add(record);
  return absl::OkStatus();
}

absl::Status SegmentedLog::AppendDecision(const DecisionRecord& record) {
  BALLAST_RETURN_IF_ERROR(failure_);
  BALLAST_RETURN_IF_ERROR(state_.index.Check(record));
  BALLAST_RETURN_IF_ERROR(Write(record));
  state_.index.Add(record);
  return absl::OkStatus();
}

absl::Status SegmentedLog::AppendRatios(const RatiosRecord& record) {
  BALLAST_RETURN_IF_ERROR(failure_);
  BALLAST_RETURN_IF_ERROR(state_.index.Check(record));
  BALLAST_RETURN_IF_ERROR(Write(record));
  state_.index.Add(record);
  return absl::OkStatus();
}

absl::Status SegmentedLog::Write(const PreparedRecord& record) {
  const std::string payload = EncodePrepared(record);
  RecordHeader header{.type = RecordType::kPrepared,
                      .epoch = record.epoch,
                      .round = record.round,
                      .payload_bytes = payload.size()};
  return Append(&header, payload.data());
}

absl::Status SegmentedLog::Write(const DecisionRecord& record) {
  const std::string payload = EncodeDecision(record);
  RecordHeader header{.type = RecordType::kDecision,
                      .epoch = record.epoch,
                      .round = record.round,
                      .payload_bytes = payload.size()};
  return Append(&header, payload.data());
}

absl::Status SegmentedLog::Write(const RatiosRecord& record) {
  const std::string payload = EncodeRatios(record);
  RecordHeader header{.type = RecordType::kRatios,
                      .epoch = record.epoch,
                      .round = record.round,
                      .payload_bytes = payload.size()};
  return Append(&header, payload.data());
}

absl::Status SegmentedLog::Seed(const PreparedRecord& prepared, const DecisionRecord& decision) {
  BALLAST_RETURN_IF_ERROR(failure_);
  BALLAST_RETURN_IF_ERROR(Write(prepared));
  state_.index.Add(prepared);
  BALLAST_RETURN_IF_ERROR(Write(decision));
  state_.index.Add(decision);
  return Sync();
}

absl::Status SegmentedLog::Append(RecordHeader* header, const void* data,
                                  std::optional<uint32_t> data_crc,
                                  std::shared_ptr<const void> owner) {
  const uint64_t record_bytes = RecordBytes(header->payload_bytes);
  // First, as it may begin a segment: the header names segment, offset and last flush.
  BALLAST_RETURN_IF_ERROR(MakeRoom(record_bytes));
  LiveSegment& segment = state_.live.back();
  header->job = options_.job;
  header->server = options_.server;
  header->generation = state_.generation;
  header->lsn = state_.next_lsn;
  header->sequence = segment.sequence;
  header->offset = state_.offset;
  // Evidence for the scan: damage up to that record is DATA_LOSS, not the tail of a crash.
  header->flushed_lsn = flushed_lsn_;
  const uint32_t seed = PayloadSeed(*header);
  header->payload_crc = data_crc.has_value() ? Crc32cJoin(seed, *data_crc, header->payload_bytes)
                                             : Crc32c(data, header->payload_bytes, seed);
  // Whole records of the ring's last lap stand on these pages, too; none has this predecessor.
  header->previous_crc = state_.last_crc;
  header->secret = state_.segment_secret;
  const absl::StatusOr<uint32_t> crc = disk_.WriteRecord(*header, data, std::move(owner));
  if (!crc.ok()) return Fail(crc.status());
  segment.newest_round = std::max(segment.newest_round, NeededBy(*header));
  state_.offset += record_bytes;
  state_.next_lsn += 1;
  state_.last_crc = *crc;
  return absl::OkStatus();
}

absl::Status SegmentedLog::Sync() {
  BALLAST_RETURN_IF_ERROR(failure_);
  if (const absl::Status status = disk_.Flush(); !status.ok()) return Fail(status);
  flushed_lsn_ = state_.next_lsn - 1;
  return absl::OkStatus();
}

// Room.

size_t SegmentedLog::Reusable() const {
  // Only a prefix: the next segment's file is always that of the oldest one.
  size_t count = 0;
  // The last segment is being written.
  while (count + 1 < state_.live.size() && state_.live[count].newest_round < trim_round_) ++count;
  return count;
}

absl::Status SegmentedLog::MakeRoom(uint64_t record_bytes) {
  if (record_bytes > options_.segment_bytes - kPageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a log record of ", record_bytes, " bytes does not fit a segment of ",
                     options_.segment_bytes, "; make the log with larger segments"));
  }
  if (record_bytes <= options_.segment_bytes - state_.offset) return absl::OkStatus();
  if (state_.live.size() == options_.segments && Reusable() == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a log record of ", record_bytes, " bytes does not fit the ",
                     options_.segment_bytes - state_.offset, " bytes left of ", DiskBytes(options_),
                     "; the oldest segment holds round ", state_.live.front().newest_round,
                     "; wait until newer checkpoints are written, or make the log larger"));
  }
  return StartSegment();
}

// Flushes all older records, then the segment's header; only then comes a first record. So a crash
// leaves its traces in the last segment only, and a trimmed record is overwritten only after the
// decision that made it dispensable is safe.
absl::Status SegmentedLog::StartSegment() {
  BALLAST_RETURN_IF_ERROR(Sync());
  if (state_.live.size() == options_.segments) state_.live.pop_front();
  const uint64_t sequence = state_.live.empty() ? 1 : state_.live.back().sequence + 1;
  const SegmentHeader header{.job = options_.job,
                             .server = options_.server,
                             .segments = options_.segments,
                             .segment_bytes = options_.segment_bytes,
                             .generation = state_.generation,
                             .sequence = sequence,
                             .first_lsn = state_.next_lsn,
                             .flushed_lsn = flushed_lsn_,
                             .previous_crc = state_.last_crc,
                             .secret = state_.secret};
  if (const absl::Status status = disk_.WriteSegmentHeader(header); !status.ok()) {
    return Fail(status);
  }
  state_.live.push_back({.sequence = sequence});
  state_.offset = kPageBytes;
  // Only now: a log written without a secret gets its own here, and the records of one segment
  // share one, or the scan would take the later ones for payload.
  state_.segment_secret = state_.secret;
  return absl::OkStatus();
}

void SegmentedLog::TrimTo(uint64_t round) {
  // Never back: a hold lowers the caller's bound, but the index has dropped those rounds already.
  trim_round_ = std::max(trim_round_, round);
  state_.index.TrimTo(round);
}

// Epochs.

absl::Status SegmentedLog::Repeat(uint64_t round) {
  BALLAST_RETURN_IF_ERROR(failure_);
  const LoggedRound* const last = state_.index.Find(round);
  if (round == 0 && last == nullptr) return absl::OkStatus();
  if (last == nullptr || !last->prepared.has_value() || !last->decision.has_value()) {
    return absl::InternalError(absl::StrCat("the gradient log lacks vote or decision of round ",
                                            round, ", which is said to be over"));
  }
  // In the order of a round, so that a scan without the old copies accepts them: it passes over
  // RATIOS before their PREPARED. They may span two segments; the first of them has to be kept.
  BALLAST_RETURN_IF_ERROR(Write(*last->prepared));
  const uint64_t sequence = state_.live.back().sequence;
  if (last->ratios.has_value()) BALLAST_RETURN_IF_ERROR(Write(*last->ratios));
  BALLAST_RETURN_IF_ERROR(Write(*last->decision));
  repeated_round_ = round;
  repeated_sequence_ = sequence;
  return absl::OkStatus();
}

void SegmentedLog::BeginEpoch(uint32_t epoch, uint64_t start_round) {
  state_.index.BeginEpoch(epoch, start_round);
  // Otherwise dead records of a round retried in epoch after epoch would keep their segments until
  // it ends, and fill the ring. The copies that Repeat replaced stop counting, too.
  const bool repeated = repeated_round_.has_value() && *repeated_round_ + 1 == start_round;
  for (LiveSegment& segment : state_.live) {
    const bool kept = repeated && segment.sequence >= repeated_sequence_;
    segment.newest_round = std::min(segment.newest_round, kept ? start_round : start_round - 1);
  }
}

uint64_t SegmentedLog::FreeBytes() const {
  const uint64_t unused = options_.segments - state_.live.size() + Reusable();
  return options_.segment_bytes - state_.offset + unused * (options_.segment_bytes - kPageBytes);
}

// Reading.

absl::Status SegmentedLog::ReadExtent(const LoggedExtent& extent, void* to) {
  // The extent may be one whose write is under way: the disk would give the bytes of an older lap.
  BALLAST_RETURN_IF_ERROR(disk_.Wait());
  return ReadFlushed(extent, to);
}

}  // namespace

uint64_t GradientLog::DiskBytes(const LogOptions& options) {
  return options.segments * options.segment_bytes;
}

uint64_t GradientLog::RecordBytes(uint64_t payload_bytes) {
  return kPageBytes + PaddedBytes(payload_bytes);
}

absl::StatusOr<std::unique_ptr<GradientLog>> GradientLog::Create(FileSystem* fs,
                                                                 const std::string& directory,
                                                                 const LogOptions& options) {
  BALLAST_ASSIGN_OR_RETURN(Arena scratch, Arena::Create(Arena::kAlignmentBytes));
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<LogWrites> writes, LogWrites::Create());
  BALLAST_ASSIGN_OR_RETURN(LogFiles files, LogFiles::Create(fs, directory, options));
  auto log =
      std::make_unique<SegmentedLog>(std::move(files), options, LogState{.secret = options.secret},
                                     std::move(scratch), std::move(writes));
  // The files have their full size by now; left over, they would take the room of the next attempt.
  if (absl::Status status = log->Begin(); !status.ok()) {
    log->Remove(fs);
    return status;
  }
  return log;
}

absl::StatusOr<std::unique_ptr<GradientLog>> GradientLog::Open(FileSystem* fs,
                                                               const std::string& directory,
                                                               const LogOptions& options) {
  BALLAST_ASSIGN_OR_RETURN(Arena scratch, Arena::Create(Arena::kAlignmentBytes));
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<LogWrites> writes, LogWrites::Create());
  BALLAST_ASSIGN_OR_RETURN(LogFiles files, LogFiles::Open(fs, directory, options));
  BALLAST_ASSIGN_OR_RETURN(ReadLanes lanes,
                           ReadLanes::Create(options.open_threads, kLogPieceBytes));
  BALLAST_ASSIGN_OR_RETURN(LogState state, ScanLog(files, options, &lanes));
  auto log = std::make_unique<SegmentedLog>(std::move(files), options, std::move(state),
                                            std::move(scratch), std::move(writes));
  BALLAST_RETURN_IF_ERROR(log->CutTail(&lanes));
  return log;
}

}  // namespace ballast::server
