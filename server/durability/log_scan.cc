#include "server/durability/log_scan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "server/durability/log_format.h"

namespace ballast::server {
namespace {

// A record of the chain: its header, and what it says.
struct ChainedRecord {
  RecordHeader header;
  std::optional<PreparedRecord> prepared;
  std::optional<DecisionRecord> decision;
};

// Where a record is expected, and what it must follow.
struct Position {
  uint64_t sequence = 0;
  uint64_t offset = 0;
  uint64_t lsn = 0;
  uint32_t previous_crc = 0;
  uint32_t generation = 0;
};

// Who says that records up to `lsn` were flushed.
struct FlushProof {
  uint64_t lsn = 0;
  std::string witness;
};

class LogScanner {
 public:
  LogScanner(const LogFiles& files, const LogOptions& options, const Arena& scratch)
      : files_(files), options_(options), scratch_(scratch), sequence_of_file_(files.count()) {}

  absl::StatusOr<LogState> Run() {
    BALLAST_RETURN_IF_ERROR(ReadSegmentHeaders());
    BALLAST_RETURN_IF_ERROR(FollowChain());
    BALLAST_RETURN_IF_ERROR(LookAhead());
    if (end_.lsn <= proof_.lsn) return DamagedEnd();
    BALLAST_RETURN_IF_ERROR(CheckBodies());
    return MakeState();
  }

 private:
  // What is there.

  absl::Status ReadSegmentHeaders() {
    for (uint32_t index = 0; index < files_.count(); ++index) {
      BALLAST_RETURN_IF_ERROR(files_.Read(index, 0, kPageBytes, scratch_.data()));
      const absl::StatusOr<SegmentHeader> header = DecodeSegmentPage(scratch_.data());
      if (absl::IsFailedPrecondition(header.status())) {
        return absl::FailedPreconditionError(
            absl::StrCat(files_.Path(index), ": ", header.status().message()));
      }
      if (!header.ok()) continue;  // Never used, torn, or damaged: LookAhead tells.
      BALLAST_RETURN_IF_ERROR(CheckOwner(index, *header));
      segments_[header->sequence] = *header;
      sequence_of_file_[index] = header->sequence;
    }
    if (!segments_.empty()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("no file of the gradient log has a whole header, ", files_.Path(0),
                     " first; the files were overwritten or ", "the log was never finished"));
  }

  absl::Status CheckOwner(uint32_t index, const SegmentHeader& header) const {
    if (header.job != options_.job || header.server != options_.server) {
      return absl::FailedPreconditionError(
          absl::StrCat(files_.Path(index), " belongs to job ", header.job, ", server ",
                       header.server, ", not to ", "job ", options_.job, ", server ",
                       options_.server, "; put the right directory there"));
    }
    if (header.segment_bytes != options_.segment_bytes || header.segments != options_.segments) {
      return absl::FailedPreconditionError(
          absl::StrCat(files_.Path(index), " is one of ", header.segments, " segments of ",
                       header.segment_bytes, " bytes, not of ", options_.segments, " of ",
                       options_.segment_bytes, "; open the log with the sizes it was made with"));
    }
    if (header.sequence == 0 || files_.IndexOf(header.sequence) != index) {
      return absl::DataLossError(absl::StrCat(files_.Path(index), " holds segment ",
                                              header.sequence,
                                              ", which has another place; files were exchanged"));
    }
    return absl::OkStatus();
  }

  // The chain.

  absl::Status FollowChain() {
    const SegmentHeader& first = segments_.begin()->second;
    end_ = {.sequence = first.sequence,
            .offset = kPageBytes,
            .lsn = first.first_lsn,
            .previous_crc = first.previous_crc,
            .generation = first.generation};
    for (bool more = true; more;) {
      BALLAST_ASSIGN_OR_RETURN(more, TakeRecord());
      if (!more) more = EnterNextSegment();
    }
    return absl::OkStatus();
  }

  // Moves the end behind the record that stands there, if it is the next one.
  absl::StatusOr<bool> TakeRecord() {
    if (end_.offset == options_.segment_bytes) return false;
    BALLAST_RETURN_IF_ERROR(
        files_.Read(files_.IndexOf(end_.sequence), end_.offset, kPageBytes, scratch_.data()));
    const absl::StatusOr<RecordHeader> header = DecodeRecordPage(scratch_.data());
    if (absl::IsFailedPrecondition(header.status())) {
      return absl::FailedPreconditionError(absl::StrCat(
          files_.PathOf(end_.sequence), " at byte ", end_.offset, ": ", header.status().message()));
    }
    if (!header.ok() || !Belongs(*header, end_.sequence, end_.offset) || header->lsn != end_.lsn ||
        header->previous_crc != end_.previous_crc || header->generation < end_.generation) {
      return false;
    }
    end_.offset += GradientLog::RecordBytes(header->payload_bytes);
    end_.lsn += 1;
    end_.previous_crc = PageCrc(scratch_.data());
    end_.generation = header->generation;
    chain_.push_back({.header = *header});
    return true;
  }

  // Moves the end into the next segment, if that one follows the last record.
  bool EnterNextSegment() {
    const auto next = segments_.find(end_.sequence + 1);
    if (next == segments_.end()) return false;
    const SegmentHeader& header = next->second;
    if (header.first_lsn != end_.lsn || header.previous_crc != end_.previous_crc ||
        header.generation < end_.generation) {
      return false;
    }
    end_.sequence = header.sequence;
    end_.offset = kPageBytes;
    end_.generation = header.generation;
    return true;
  }

  // Whether the record was written to this very place of this log.
  bool Belongs(const RecordHeader& header, uint64_t sequence, uint64_t offset) const {
    return header.job == options_.job && header.server == options_.server &&
           header.sequence == sequence && header.offset == offset &&
           header.payload_bytes <= options_.segment_bytes &&
           offset + GradientLog::RecordBytes(header.payload_bytes) <= options_.segment_bytes;
  }

  // What follows the end.

  // Looks at every page behind the end for records that say what was flushed, and for the newest
  // generation.
  absl::Status LookAhead() {
    if (!chain_.empty()) Hear(chain_.back().header);
    generation_ = std::max(generation_, end_.generation);
    BALLAST_RETURN_IF_ERROR(LookThrough(end_.sequence, end_.offset).status());
    for (uint32_t index = 0; index < files_.count(); ++index) {
      uint64_t sequence = sequence_of_file_[index];
      if (sequence == 0) {  // Then what the file would hold next.
        BALLAST_ASSIGN_OR_RETURN(const bool unused, NeverUsed(index));
        if (unused) continue;
        for (sequence = end_.sequence + 1; files_.IndexOf(sequence) != index;) ++sequence;
        if (sequence > segments_.rbegin()->first + 1) return DamagedHeader(index);
      } else if (sequence > end_.sequence) {
        Hear(segments_.at(sequence));
      } else {
        continue;
      }
      BALLAST_ASSIGN_OR_RETURN(const bool used, LookThrough(sequence, kPageBytes));
      if (used && sequence_of_file_[index] == 0) return DamagedHeader(index);
    }
    return absl::OkStatus();
  }

  // Whether neither a header nor a first record was ever written to the file. Saves reading all of
  // it during the first lap.
  absl::StatusOr<bool> NeverUsed(uint32_t index) {
    BALLAST_RETURN_IF_ERROR(files_.Read(index, 0, 2 * kPageBytes, scratch_.data()));
    return std::all_of(scratch_.data(), scratch_.data() + 2 * kPageBytes,
                       [](char c) { return c == 0; });
  }

  // Hears every record of segment `sequence` from `offset` on; whether there is one.
  absl::StatusOr<bool> LookThrough(uint64_t sequence, uint64_t offset) {
    bool any = false;
    const uint32_t index = files_.IndexOf(sequence);
    while (offset < options_.segment_bytes) {
      const uint64_t bytes = std::min<uint64_t>(scratch_.bytes(), options_.segment_bytes - offset);
      BALLAST_RETURN_IF_ERROR(files_.Read(index, offset, bytes, scratch_.data()));
      for (uint64_t at = 0; at < bytes; at += kPageBytes) {
        const char* const page = scratch_.data() + at;
        if (!LooksLikeRecord(page)) continue;
        const absl::StatusOr<RecordHeader> header = DecodeRecordPage(page);
        if (!header.ok() || !Belongs(*header, sequence, offset + at)) continue;
        Hear(*header);
        any = true;
      }
      offset += bytes;
    }
    return any;
  }

  void Hear(const SegmentHeader& header) {
    generation_ = std::max(generation_, header.generation);
    if (header.flushed_lsn <= proof_.lsn) return;
    proof_ = {header.flushed_lsn, absl::StrCat("the header of segment ", header.sequence, " in ",
                                               files_.PathOf(header.sequence))};
  }

  void Hear(const RecordHeader& header) {
    generation_ = std::max(generation_, header.generation);
    if (header.flushed_lsn <= proof_.lsn) return;
    proof_ = {header.flushed_lsn,
              absl::StrCat("record ", header.lsn, " of round ", header.round, " at byte ",
                           header.offset, " of ", files_.PathOf(header.sequence))};
  }

  // What the records say.

  // Reads PREPARED and DECISION records, and the bodies of extents that may not have been flushed.
  // The first body that is not whole ends the chain.
  absl::Status CheckBodies() {
    for (size_t i = 0; i < chain_.size(); ++i) {
      ChainedRecord& record = chain_[i];
      const bool flushed = record.header.lsn <= proof_.lsn;
      if (flushed && record.header.type == RecordType::kExtent) continue;
      BALLAST_ASSIGN_OR_RETURN(const bool whole, ReadBody(&record));
      if (whole) continue;
      if (flushed) return DamagedBody(record.header);
      end_ = {.sequence = record.header.sequence,
              .offset = record.header.offset,
              .lsn = record.header.lsn,
              .previous_crc = record.header.previous_crc};
      chain_.resize(i);
      break;
    }
    return absl::OkStatus();
  }

  // Whether the body's checksum matches; if so, what a PREPARED or DECISION says.
  absl::StatusOr<bool> ReadBody(ChainedRecord* record) {
    const RecordHeader& header = record->header;
    const uint32_t index = files_.IndexOf(header.sequence);
    const bool keep = header.type != RecordType::kExtent;
    std::string body;
    uint32_t crc = PayloadSeed(header);
    for (uint64_t done = 0; done < header.payload_bytes;) {
      const uint64_t bytes = std::min<uint64_t>(scratch_.bytes(), header.payload_bytes - done);
      BALLAST_RETURN_IF_ERROR(files_.Read(index, header.offset + kPageBytes + done,
                                          PaddedBytes(bytes), scratch_.data()));
      crc = Crc32c(scratch_.data(), bytes, crc);
      if (keep) body.append(scratch_.data(), bytes);
      done += bytes;
    }
    if (crc != header.payload_crc) return false;
    if (keep) BALLAST_RETURN_IF_ERROR(DecodeBody(body, record));
    return true;
  }

  absl::Status DecodeBody(const std::string& body, ChainedRecord* record) const {
    const RecordHeader& header = record->header;
    absl::Status status;
    uint64_t round = 0;
    uint32_t epoch = 0;
    if (header.type == RecordType::kPrepared) {
      absl::StatusOr<PreparedRecord> prepared = DecodePrepared(body);
      status = prepared.status();
      if (status.ok()) {
        round = prepared->round;
        epoch = prepared->epoch;
        record->prepared = *std::move(prepared);
      }
    } else {
      absl::StatusOr<DecisionRecord> decision = DecodeDecision(body);
      status = decision.status();
      if (status.ok()) {
        round = decision->round;
        epoch = decision->epoch;
        record->decision = *std::move(decision);
      }
    }
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(Where(header), ": ", status.message()));
    }
    if (round == header.round && epoch == header.epoch) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(Where(header), " contains a record of round ", round, ", epoch ", epoch));
  }

  // Errors.

  std::string Where(const RecordHeader& header) const {
    return absl::StrCat(files_.PathOf(header.sequence), " at byte ", header.offset, ", round ",
                        header.round, ", epoch ", header.epoch);
  }

  absl::Status DamagedEnd() const {
    const uint64_t round = chain_.empty() ? 0 : chain_.back().header.round;
    return absl::DataLossError(absl::StrCat(
        "the gradient log is damaged in ", files_.PathOf(end_.sequence), " at byte ", end_.offset,
        ": record ", end_.lsn, " is missing, after the last whole one, of round ", round, "; ",
        proof_.witness, " says that all up to ", proof_.lsn,
        " had been flushed; restore the files ", "from a copy"));
  }

  // Only the newest header can be unfinished, and then no record follows it: each is flushed before
  // the first record of its segment is written.
  absl::Status DamagedHeader(uint32_t index) const {
    return absl::DataLossError(absl::StrCat(
        "the gradient log is damaged in ", files_.Path(index), " at byte 0: the header ",
        "of a segment in use does not match its checksum; restore the files from a ", "copy"));
  }

  absl::Status DamagedBody(const RecordHeader& header) const {
    return absl::DataLossError(
        absl::StrCat("the gradient log is damaged in ", Where(header), ": the ",
                     header.type == RecordType::kPrepared ? "PREPARED" : "DECISION",
                     " record's checksum does not match, and ", proof_.witness,
                     " says that it had been flushed; restore the files from a copy"));
  }

  // Result.

  void AddUnproven(const RecordHeader& header, LogState* state) const {
    if (header.offset == kPageBytes && header.sequence != end_.sequence) {
      state->unproven.push_back({.sequence = header.sequence, .bytes = kPageBytes});
    }
    state->unproven.push_back({.sequence = header.sequence,
                               .offset = header.offset,
                               .bytes = GradientLog::RecordBytes(header.payload_bytes)});
  }

  absl::StatusOr<LogState> MakeState() {
    LogState state;
    for (uint64_t s = segments_.begin()->first; s <= end_.sequence; ++s) {
      state.live.push_back({.sequence = s});
    }
    state.unproven.push_back({.sequence = end_.sequence, .bytes = kPageBytes});  // Its header.
    for (const ChainedRecord& record : chain_) {
      if (record.header.lsn > proof_.lsn) AddUnproven(record.header, &state);
      if (record.prepared.has_value()) {
        state.index.Add(*record.prepared);
      } else if (record.decision.has_value()) {
        state.index.Add(*record.decision);
      } else {
        state.index.Add(ExtentOf(record.header));
      }
    }
    MarkNeeded(&state.live);
    state.index.BeginEpoch(options_.epoch, options_.start_round);
    BALLAST_RETURN_IF_ERROR(CheckLastPrepared(state.index));
    state.offset = end_.offset;
    state.next_lsn = end_.lsn;
    state.last_crc = end_.previous_crc;
    state.generation = generation_ + 1;
    return state;
  }

  // Newest records first: of what was repeated, only the last is needed.
  void MarkNeeded(std::deque<LiveSegment>* live) const {
    std::set<RecordType> repeated;
    for (auto record = chain_.rbegin(); record != chain_.rend(); ++record) {
      const RecordHeader& header = record->header;
      if (header.epoch < options_.epoch && header.round >= options_.start_round) continue;  // Dead.
      uint64_t needed_by = NeededBy(header);
      if (header.type != RecordType::kExtent && header.round + 1 == options_.start_round &&
          !repeated.insert(header.type).second) {
        needed_by = header.round;
      }
      LiveSegment& segment = (*live)[header.sequence - live->front().sequence];
      segment.newest_round = std::max(segment.newest_round, needed_by);
    }
  }

  LoggedExtent ExtentOf(const RecordHeader& header) const {
    return {.epoch = header.epoch,
            .round = header.round,
            .extent = header.extent,
            .dtype = header.dtype,
            .sumsq = header.sumsq,
            .nonfinite = header.nonfinite,
            .bytes = header.payload_bytes,
            .first_nonfinite = header.first_nonfinite,
            .crc32c = header.payload_crc,
            .segment = files_.IndexOf(header.sequence),
            .offset = header.offset + kPageBytes};
  }

  // The newest vote must be backed by its extents: a decision on it may still come.
  absl::Status CheckLastPrepared(const LogIndex& index) const {
    for (auto at = index.rounds().rbegin(); at != index.rounds().rend(); ++at) {
      if (!at->second.prepared.has_value()) continue;
      if (at->second.decision.has_value()) return absl::OkStatus();
      const absl::Status status = index.CheckWhole(*at->second.prepared);
      if (status.ok()) return status;
      return absl::DataLossError(absl::StrCat(status.message(), "; its segment, before ",
                                              files_.PathOf(segments_.begin()->first),
                                              ", is gone"));
    }
    return absl::OkStatus();
  }

  const LogFiles& files_;
  const LogOptions& options_;
  const Arena& scratch_;

  std::map<uint64_t, SegmentHeader> segments_;  // by sequence
  std::vector<uint64_t> sequence_of_file_;      // 0: no whole header
  std::vector<ChainedRecord> chain_;
  Position end_;  // behind the last record of the chain
  FlushProof proof_;
  uint32_t generation_ = 0;
};

}  // namespace

absl::StatusOr<LogState> ScanLog(const LogFiles& files, const LogOptions& options,
                                 const Arena& scratch) {
  return LogScanner(files, options, scratch).Run();
}

}  // namespace ballast::server
