#include "server/durability/gradient_log.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "server/durability/log_files.h"
#include "server/durability/log_format.h"
#include "server/durability/log_index.h"
#include "server/durability/log_scan.h"
#include "server/durability/log_writes.h"

namespace ballast::server {
namespace {

// Shorter payloads are written before the next record is made: beginning a write and being told of
// its end takes longer than it saves.
constexpr uint64_t kBeginBytesMin = uint64_t{512} << 10;

class SegmentedLog : public GradientLog {
 public:
  // `state` is what the files hold; its generation is that of everything written from now on.
  SegmentedLog(LogFiles files, const LogOptions& options, LogState state, Arena scratch,
               std::unique_ptr<LogWrites> writes)
      : files_(std::move(files)),
        options_(options),
        state_(std::move(state)),
        scratch_(std::move(scratch)),
        writes_(std::move(writes)) {}

  // Writes the header of the first segment: from then on there is a log.
  absl::Status Begin() { return StartSegment(); }
  // Takes back a Begin that failed.
  void Remove(FileSystem* fs) { files_.Remove(fs); }
  // Makes the end of what was found final: what follows it never comes back.
  absl::Status CutTail(ReadLanes* lanes);
  // Writes what was read, so that the next flush has to save it.
  absl::Status WriteAgain(const std::vector<PageRange>& ranges, ReadLanes* lanes);

  const std::map<uint64_t, LoggedRound>& rounds() const override { return state_.index.rounds(); }
  absl::Status ReadExtent(const LoggedExtent& extent, void* to) override;
  absl::Status ReadFlushed(const LoggedExtent& extent, void* to) const override;
  absl::Status AppendExtent(const LoggedExtent& extent, const void* data,
                            std::shared_ptr<const void> owner) override;
  absl::Status AppendPrepared(const PreparedRecord& record) override;
  absl::Status AppendDecision(const DecisionRecord& record) override;
  absl::Status Sync() override;
  void TrimTo(uint64_t round) override;
  absl::Status Repeat(uint64_t round) override;
  void BeginEpoch(uint32_t epoch, uint64_t start_round) override;
  absl::Status Seed(const PreparedRecord& prepared, const DecisionRecord& decision) override;
  uint64_t FreeBytes() const override;

 private:
  // The scratch arena: one page for headers, the rest for payloads that do not lie on pages.
  char* header_page() const { return scratch_.data(); }
  char* bounce() const { return scratch_.data() + kPageBytes; }
  uint64_t bounce_bytes() const { return scratch_.bytes() - kPageBytes; }

  // Segments at the front of the row that hold nothing newer than TrimTo.
  size_t Reusable() const;
  absl::Status MakeRoom(uint64_t record_bytes);
  absl::Status StartSegment();
  absl::Status WriteSegmentHeader(uint64_t sequence);
  absl::Status Write(const PreparedRecord& record);
  absl::Status Write(const DecisionRecord& record);
  // Begins to write the record at the end; fills in what `header` does not say.
  absl::Status Append(RecordHeader* header, const void* data, std::shared_ptr<const void> owner);
  absl::Status Write(const RecordHeader& header, const LogWrites::Pages& pages, const void* data,
                     std::shared_ptr<const void> owner);
  absl::Status WriteOnPages(const RecordHeader& header, const LogWrites::Pages& pages,
                            const char* data, std::shared_ptr<const void> owner);
  absl::Status WriteThroughBounce(const RecordHeader& header, const LogWrites::Pages& pages,
                                  const char* data);
  absl::Status Flush();
  // Makes an error final, and returns it from now on.
  absl::Status Fail(const absl::Status& cause);

  LogFiles files_;
  const LogOptions options_;
  LogState state_;
  const Arena scratch_;

  uint64_t flushed_lsn_ = 0;
  uint64_t trim_round_ = 0;
  uint64_t repeated_round_ = 0;     // by the last Repeat
  uint64_t repeated_sequence_ = 0;  // of the segment where that begins
  std::set<uint64_t> unflushed_;    // sequences of segments
  absl::Status failure_;
  const std::unique_ptr<LogWrites> writes_;  // Last: it waits for writes to the files.
};

absl::Status SegmentedLog::Fail(const absl::Status& cause) {
  // RESOURCE_EXHAUSTED would invite to try again.
  const auto code = absl::IsResourceExhausted(cause) ? absl::StatusCode::kInternal : cause.code();
  failure_ = absl::Status(code, absl::StrCat("the gradient log takes nothing more until it is ",
                                             "opened again: ", cause.message()));
  return failure_;
}

absl::Status SegmentedLog::CutTail(ReadLanes* lanes) {
  const uint64_t sequence = state_.live.back().sequence;
  if (state_.offset < options_.segment_bytes) {
    BALLAST_RETURN_IF_ERROR(
        files_.Read(files_.IndexOf(sequence), state_.offset, kPageBytes, header_page()));
    const bool written =
        std::any_of(header_page(), header_page() + kPageBytes, [](char c) { return c != 0; });
    if (written) {
      std::memset(header_page(), 0, kPageBytes);
      const ConstBytes zeros{header_page(), kPageBytes};
      BALLAST_RETURN_IF_ERROR(files_.FileOf(sequence)->WriteAt(state_.offset, {zeros}));
    }
  }
  BALLAST_RETURN_IF_ERROR(WriteAgain(state_.unproven, lanes));
  // What was read may have been in the kernel's cache only.
  for (const LiveSegment& segment : state_.live) unflushed_.insert(segment.sequence);
  return Sync();
}

absl::Status SegmentedLog::WriteAgain(const std::vector<PageRange>& ranges, ReadLanes* lanes) {
  std::vector<PageRange> pieces;
  for (const PageRange& range : ranges) {
    for (uint64_t done = 0; done < range.bytes; done += kLogPieceBytes) {
      pieces.push_back({.sequence = range.sequence,
                        .offset = range.offset + done,
                        .bytes = std::min(kLogPieceBytes, range.bytes - done)});
    }
  }
  return lanes->ForEach(pieces.size(), [&](size_t i, const Arena& scratch) -> absl::Status {
    const PageRange& piece = pieces[i];
    BALLAST_RETURN_IF_ERROR(
        files_.Read(files_.IndexOf(piece.sequence), piece.offset, piece.bytes, scratch.data()));
    const ConstBytes again{scratch.data(), piece.bytes};
    return files_.FileOf(piece.sequence)->WriteAt(piece.offset, {again});
  });
}

// Appending.

absl::Status SegmentedLog::AppendExtent(const LoggedExtent& extent, const void* data,
                                        std::shared_ptr<const void> owner) {
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
  BALLAST_RETURN_IF_ERROR(Append(&header, data, std::move(owner)));
  LoggedExtent logged = extent;
  logged.crc32c = header.payload_crc;
  logged.segment = files_.IndexOf(header.sequence);
  logged.offset = header.offset + kPageBytes;
  state_.index.Add(logged);
  return absl::OkStatus();
}

absl::Status SegmentedLog::AppendPrepared(const PreparedRecord& record) {
  BALLAST_RETURN_IF_ERROR(failure_);
  BALLAST_RETURN_IF_ERROR(state_.index.Check(record));
  BALLAST_RETURN_IF_ERROR(state_.index.CheckWhole(record));
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

absl::Status SegmentedLog::Write(const PreparedRecord& record) {
  const std::string payload = EncodePrepared(record);
  RecordHeader header{.type = RecordType::kPrepared,
                      .epoch = record.epoch,
                      .round = record.round,
                      .payload_bytes = payload.size()};
  return Append(&header, payload.data(), nullptr);
}

absl::Status SegmentedLog::Write(const DecisionRecord& record) {
  const std::string payload = EncodeDecision(record);
  RecordHeader header{.type = RecordType::kDecision,
                      .epoch = record.epoch,
                      .round = record.round,
                      .payload_bytes = payload.size()};
  return Append(&header, payload.data(), nullptr);
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
                                  std::shared_ptr<const void> owner) {
  const uint64_t record_bytes = RecordBytes(header->payload_bytes);
  BALLAST_RETURN_IF_ERROR(MakeRoom(record_bytes));
  LiveSegment& segment = state_.live.back();
  header->job = options_.job;
  header->server = options_.server;
  header->generation = state_.generation;
  header->lsn = state_.next_lsn;
  header->sequence = segment.sequence;
  header->offset = state_.offset;
  header->flushed_lsn = flushed_lsn_;
  header->payload_crc = Crc32c(data, header->payload_bytes, PayloadSeed(*header));
  header->previous_crc = state_.last_crc;
  const LogWrites::Pages pages = writes_->Take();
  const uint32_t crc = EncodePage(*header, pages.header());
  unflushed_.insert(segment.sequence);
  if (const absl::Status status = Write(*header, pages, data, std::move(owner)); !status.ok()) {
    return Fail(status);
  }
  segment.newest_round = std::max(segment.newest_round, NeededBy(*header));
  state_.offset += record_bytes;
  state_.next_lsn += 1;
  state_.last_crc = crc;
  return absl::OkStatus();
}

absl::Status SegmentedLog::Write(const RecordHeader& header, const LogWrites::Pages& pages,
                                 const void* data, std::shared_ptr<const void> owner) {
  BALLAST_FAILPOINT_RETURN("log.before_append");
  BALLAST_RETURN_IF_ERROR(writes_->status());
  const char* const bytes = static_cast<const char*>(data);
  const bool on_pages = reinterpret_cast<uintptr_t>(bytes) % kPageBytes == 0;
  BALLAST_RETURN_IF_ERROR(on_pages ? WriteOnPages(header, pages, bytes, std::move(owner))
                                   : WriteThroughBounce(header, pages, bytes));
  BALLAST_FAILPOINT_RETURN("log.after_append");
  return absl::OkStatus();
}

absl::Status SegmentedLog::WriteOnPages(const RecordHeader& header, const LogWrites::Pages& pages,
                                        const char* data, std::shared_ptr<const void> owner) {
  const uint64_t rest = header.payload_bytes % kPageBytes;
  const uint64_t whole = header.payload_bytes - rest;
  std::vector<ConstBytes> parts = {{pages.header(), kPageBytes}};
  if (whole > 0) parts.push_back({data, whole});
  if (rest > 0) {
    std::memcpy(pages.last(), data + whole, rest);
    std::memset(pages.last() + rest, 0, kPageBytes - rest);
    parts.push_back({pages.last(), kPageBytes});
  }
  File* const file = files_.FileOf(header.sequence);
  if (whole < kBeginBytesMin) return file->WriteAt(header.offset, parts);
  writes_->Begin(pages, file, header.offset, parts, std::move(owner));
  return absl::OkStatus();
}

absl::Status SegmentedLog::WriteThroughBounce(const RecordHeader& header,
                                              const LogWrites::Pages& pages, const char* data) {
  std::vector<ConstBytes> parts = {{pages.header(), kPageBytes}};
  uint64_t offset = header.offset;
  uint64_t left = header.payload_bytes;
  do {
    const uint64_t bytes = std::min(bounce_bytes(), left);
    const uint64_t padded = PaddedBytes(bytes);
    std::memcpy(bounce(), data, bytes);
    std::memset(bounce() + bytes, 0, padded - bytes);
    parts.push_back({bounce(), padded});
    BALLAST_RETURN_IF_ERROR(files_.FileOf(header.sequence)->WriteAt(offset, parts));
    offset += padded + (offset == header.offset ? kPageBytes : 0);
    data += bytes;
    left -= bytes;
    parts.clear();
  } while (left > 0);
  return absl::OkStatus();
}

absl::Status SegmentedLog::Sync() {
  BALLAST_RETURN_IF_ERROR(failure_);
  if (const absl::Status status = Flush(); !status.ok()) return Fail(status);
  unflushed_.clear();
  flushed_lsn_ = state_.next_lsn - 1;
  return absl::OkStatus();
}

absl::Status SegmentedLog::Flush() {
  BALLAST_RETURN_IF_ERROR(writes_->Wait());
  BALLAST_FAILPOINT_RETURN("log.before_sync");
  for (const uint64_t sequence : unflushed_) {
    if (options_.flush) BALLAST_RETURN_IF_ERROR(files_.FileOf(sequence)->Sync());
  }
  BALLAST_FAILPOINT_RETURN("log.after_sync");
  return absl::OkStatus();
}

// Room.

size_t SegmentedLog::Reusable() const {
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

// Flushes what is in front of the segment, then its header, and only then comes a first record. So
// a crash leaves its traces in the last segment only, and nothing that was trimmed is overwritten
// before the decision that made it dispensable is safe.
absl::Status SegmentedLog::StartSegment() {
  BALLAST_RETURN_IF_ERROR(Sync());
  if (state_.live.size() == options_.segments) state_.live.pop_front();
  const uint64_t sequence = state_.live.empty() ? 1 : state_.live.back().sequence + 1;
  EncodePage(SegmentHeader{.job = options_.job,
                           .server = options_.server,
                           .segments = options_.segments,
                           .segment_bytes = options_.segment_bytes,
                           .generation = state_.generation,
                           .sequence = sequence,
                           .first_lsn = state_.next_lsn,
                           .flushed_lsn = flushed_lsn_,
                           .previous_crc = state_.last_crc},
             header_page());
  if (const absl::Status status = WriteSegmentHeader(sequence); !status.ok()) return Fail(status);
  state_.live.push_back({.sequence = sequence});
  state_.offset = kPageBytes;
  return absl::OkStatus();
}

absl::Status SegmentedLog::WriteSegmentHeader(uint64_t sequence) {
  BALLAST_FAILPOINT_RETURN("log.before_segment");
  const ConstBytes page{header_page(), kPageBytes};
  BALLAST_RETURN_IF_ERROR(files_.FileOf(sequence)->WriteAt(0, {page}));
  if (options_.flush) BALLAST_RETURN_IF_ERROR(files_.FileOf(sequence)->Sync());
  BALLAST_FAILPOINT_RETURN("log.after_segment");
  return absl::OkStatus();
}

void SegmentedLog::TrimTo(uint64_t round) {
  trim_round_ = std::max(trim_round_, round);
  state_.index.TrimTo(round);
}

// Epochs.

absl::Status SegmentedLog::Repeat(uint64_t round) {
  BALLAST_RETURN_IF_ERROR(failure_);
  if (round == 0) return absl::OkStatus();
  const LoggedRound* const last = state_.index.Find(round);
  if (last == nullptr || !last->prepared.has_value() || !last->decision.has_value()) {
    return absl::InternalError(absl::StrCat("the gradient log lacks vote or decision of round ",
                                            round, ", which is said to be over"));
  }
  BALLAST_RETURN_IF_ERROR(Write(*last->prepared));
  const uint64_t sequence = state_.live.back().sequence;
  BALLAST_RETURN_IF_ERROR(Write(*last->decision));
  repeated_round_ = round;
  repeated_sequence_ = sequence;
  return absl::OkStatus();
}

void SegmentedLog::BeginEpoch(uint32_t epoch, uint64_t start_round) {
  state_.index.BeginEpoch(epoch, start_round);
  const bool repeated = repeated_round_ != 0 && repeated_round_ + 1 == start_round;
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
  BALLAST_RETURN_IF_ERROR(writes_->Wait());
  return ReadFlushed(extent, to);
}

absl::Status SegmentedLog::ReadFlushed(const LoggedExtent& extent, void* to) const {
  const uint64_t bytes = PaddedBytes(extent.bytes);
  if (extent.segment >= options_.segments || extent.bytes > options_.segment_bytes ||
      extent.offset > options_.segment_bytes - bytes) {
    return absl::InvalidArgumentError(absl::StrCat("extent ", extent.extent, " of round ",
                                                   extent.round, " is not one of this log"));
  }
  BALLAST_RETURN_IF_ERROR(files_.Read(extent.segment, extent.offset, bytes, to));
  const uint32_t seed = PayloadSeed({.type = RecordType::kExtent,
                                     .dtype = extent.dtype,
                                     .job = options_.job,
                                     .server = options_.server,
                                     .epoch = extent.epoch,
                                     .round = extent.round,
                                     .extent = extent.extent});
  if (Crc32c(to, extent.bytes, seed) == extent.crc32c) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the gradient of extent ", extent.extent, " of round ", extent.round, ", epoch ",
                   extent.epoch, " in ", files_.Path(extent.segment), " at byte ", extent.offset,
                   " is not what was written; the extent needs a checkpoint behind round ",
                   extent.round, ", or a copy of the file"));
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
  auto log = std::make_unique<SegmentedLog>(std::move(files), options, LogState{},
                                            std::move(scratch), std::move(writes));
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
