#include "server/durability/log_scan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/names.h"
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

// The records of one segment that follow its header, and where they end.
struct SegmentChain {
  absl::Status status;
  std::vector<ChainedRecord> records;
  Position end;
};

// What pages say of flushes and generations.
struct Heard {
  bool any_record = false;
  uint32_t generation = 0;
  FlushProof proof;

  void Add(const Heard& other) {
    any_record = any_record || other.any_record;
    generation = std::max(generation, other.generation);
    if (other.proof.lsn > proof.lsn) proof = other.proof;
  }
};

class LogScanner {
 public:
  LogScanner(const LogFiles& files, const LogOptions& options, ReadLanes* lanes)
      : files_(files), options_(options), lanes_(lanes), sequence_of_file_(files.count()) {}

  absl::StatusOr<LogState> Run() {
    BALLAST_RETURN_IF_ERROR(ReadSegmentHeaders());
    BALLAST_RETURN_IF_ERROR(FollowChain());
    BALLAST_RETURN_IF_ERROR(LookAhead());
    if (end_.lsn <= heard_.proof.lsn) return DamagedEnd();
    BALLAST_RETURN_IF_ERROR(CheckBodies());
    return MakeState();
  }

 private:
  // What is there.

  absl::Status ReadSegmentHeaders() {
    std::vector<absl::StatusOr<SegmentHeader>> headers(files_.count(), absl::UnknownError(""));
    const absl::Status read =
        lanes_->ForEach(files_.count(), [&](size_t index, const Arena& scratch) {
          const auto file = static_cast<uint32_t>(index);
          const absl::Status status = files_.Read(file, 0, kPageBytes, scratch.data());
          if (status.ok()) headers[index] = DecodeSegmentPage(scratch.data());
          return status;
        });
    BALLAST_RETURN_IF_ERROR(read);
    for (uint32_t index = 0; index < files_.count(); ++index) {
      const absl::StatusOr<SegmentHeader>& header = headers[index];
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
      return absl::DataLossError(
          absl::StrCat(files_.Path(index), " belongs to job ", JobIdText(header.job), ", server ",
                       header.server, ", not to ", "job ", JobIdText(options_.job), ", server ",
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

  // Each segment by itself, from what its header says; then as far as one follows the other.
  absl::Status FollowChain() {
    std::vector<const SegmentHeader*> headers;
    for (const auto& [sequence, header] : segments_) headers.push_back(&header);
    std::vector<SegmentChain> chains(headers.size());
    BALLAST_RETURN_IF_ERROR(
        lanes_->ForEach(headers.size(), [&](size_t i, const Arena& scratch) -> absl::Status {
          chains[i].status = FollowSegment(*headers[i], scratch, &chains[i]);
          return absl::OkStatus();
        }));
    for (size_t i = 0; i < chains.size(); ++i) {
      if (i > 0 && !Follows(*headers[i])) break;
      BALLAST_RETURN_IF_ERROR(chains[i].status);
      std::move(chains[i].records.begin(), chains[i].records.end(), std::back_inserter(chain_));
      end_ = chains[i].end;
    }
    return absl::OkStatus();
  }

  absl::Status FollowSegment(const SegmentHeader& header, const Arena& scratch,
                             SegmentChain* chain) const {
    chain->end = {.sequence = header.sequence,
                  .offset = kPageBytes,
                  .lsn = header.first_lsn,
                  .previous_crc = header.previous_crc,
                  .generation = header.generation};
    for (bool more = true; more;) {
      BALLAST_ASSIGN_OR_RETURN(more, TakeRecord(scratch, chain));
    }
    return absl::OkStatus();
  }

  // Moves the chain's end behind the record that stands there, if it is the next one.
  absl::StatusOr<bool> TakeRecord(const Arena& scratch, SegmentChain* chain) const {
    Position& end = chain->end;
    if (end.offset == options_.segment_bytes) return false;
    BALLAST_RETURN_IF_ERROR(
        files_.Read(files_.IndexOf(end.sequence), end.offset, kPageBytes, scratch.data()));
    const absl::StatusOr<RecordHeader> header = DecodeRecordPage(scratch.data());
    if (absl::IsFailedPrecondition(header.status())) {
      return absl::FailedPreconditionError(absl::StrCat(
          files_.PathOf(end.sequence), " at byte ", end.offset, ": ", header.status().message()));
    }
    if (!header.ok() || !Belongs(*header, end.sequence, end.offset) || header->lsn != end.lsn ||
        header->previous_crc != end.previous_crc || header->generation < end.generation) {
      return false;
    }
    end.offset += GradientLog::RecordBytes(header->payload_bytes);
    end.lsn += 1;
    end.previous_crc = PageCrc(scratch.data());
    end.generation = header->generation;
    chain->records.push_back({.header = *header});
    return true;
  }

  // Whether the segment goes on where the chain ends.
  bool Follows(const SegmentHeader& header) const {
    return header.sequence == end_.sequence + 1 && header.first_lsn == end_.lsn &&
           header.previous_crc == end_.previous_crc && header.generation >= end_.generation;
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
    if (!chain_.empty()) heard_.Add(Say(chain_.back().header));
    heard_.generation = std::max(heard_.generation, end_.generation);
    BALLAST_RETURN_IF_ERROR(LookThrough(end_.sequence, end_.offset).status());
    for (uint32_t index = 0; index < files_.count(); ++index) {
      uint64_t sequence = sequence_of_file_[index];
      if (sequence == 0) {  // Then what the file would hold next.
        BALLAST_ASSIGN_OR_RETURN(const bool unused, NeverUsed(index));
        if (unused) continue;
        for (sequence = end_.sequence + 1; files_.IndexOf(sequence) != index;) ++sequence;
        if (sequence > segments_.rbegin()->first + 1) return DamagedHeader(index);
      } else if (sequence > end_.sequence) {
        heard_.Add(Say(segments_.at(sequence)));
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
    bool zeros = false;
    const absl::Status read = lanes_->ForEach(1, [&](size_t, const Arena& scratch) {
      const absl::Status status = files_.Read(index, 0, 2 * kPageBytes, scratch.data());
      zeros = status.ok() && std::all_of(scratch.data(), scratch.data() + 2 * kPageBytes,
                                         [](char c) { return c == 0; });
      return status;
    });
    BALLAST_RETURN_IF_ERROR(read);
    return zeros;
  }

  // Hears every record of segment `sequence` from `offset` on; whether there is one.
  absl::StatusOr<bool> LookThrough(uint64_t sequence, uint64_t offset) {
    const uint64_t left = options_.segment_bytes - offset;
    std::vector<Heard> pieces((left + kLogPieceBytes - 1) / kLogPieceBytes);
    BALLAST_RETURN_IF_ERROR(
        lanes_->ForEach(pieces.size(), [&](size_t i, const Arena& scratch) -> absl::Status {
          const uint64_t at = offset + i * kLogPieceBytes;
          return LookAtPiece(sequence, at, std::min(kLogPieceBytes, options_.segment_bytes - at),
                             scratch, &pieces[i]);
        }));
    bool any = false;
    for (const Heard& piece : pieces) {
      any = any || piece.any_record;
      heard_.Add(piece);
    }
    return any;
  }

  absl::Status LookAtPiece(uint64_t sequence, uint64_t offset, uint64_t bytes, const Arena& scratch,
                           Heard* heard) const {
    BALLAST_RETURN_IF_ERROR(files_.Read(files_.IndexOf(sequence), offset, bytes, scratch.data()));
    for (uint64_t at = 0; at < bytes; at += kPageBytes) {
      const char* const page = scratch.data() + at;
      if (!LooksLikeRecord(page)) continue;
      const absl::StatusOr<RecordHeader> header = DecodeRecordPage(page);
      if (!header.ok() || !Belongs(*header, sequence, offset + at)) continue;
      heard->Add(Say(*header));
    }
    return absl::OkStatus();
  }

  Heard Say(const SegmentHeader& header) const {
    return {.generation = header.generation,
            .proof = {header.flushed_lsn, absl::StrCat("the header of segment ", header.sequence,
                                                       " in ", files_.PathOf(header.sequence))}};
  }

  Heard Say(const RecordHeader& header) const {
    return {.any_record = true,
            .generation = header.generation,
            .proof = {header.flushed_lsn,
                      absl::StrCat("record ", header.lsn, " of round ", header.round, " at byte ",
                                   header.offset, " of ", files_.PathOf(header.sequence))}};
  }

  // What the records say.

  // Reads PREPARED and DECISION records, and the bodies of extents that may not have been flushed.
  // The first body that is not whole ends the chain.
  absl::Status CheckBodies() {
    std::vector<size_t> wanted;
    for (size_t i = 0; i < chain_.size(); ++i) {
      const RecordHeader& header = chain_[i].header;
      if (!Flushed(header) || header.type != RecordType::kExtent) wanted.push_back(i);
    }
    std::vector<absl::StatusOr<bool>> whole(wanted.size(), false);
    BALLAST_RETURN_IF_ERROR(
        lanes_->ForEach(wanted.size(), [&](size_t i, const Arena& scratch) -> absl::Status {
          whole[i] = ReadBody(&chain_[wanted[i]], scratch);
          return absl::OkStatus();
        }));
    for (size_t i = 0; i < wanted.size(); ++i) {
      BALLAST_RETURN_IF_ERROR(whole[i].status());
      if (*whole[i]) continue;
      const RecordHeader& header = chain_[wanted[i]].header;
      if (Flushed(header)) return DamagedBody(header);
      end_ = {.sequence = header.sequence,
              .offset = header.offset,
              .lsn = header.lsn,
              .previous_crc = header.previous_crc};
      chain_.resize(wanted[i]);
      break;
    }
    return absl::OkStatus();
  }

  bool Flushed(const RecordHeader& header) const { return header.lsn <= heard_.proof.lsn; }

  // Whether the body's checksum matches; if so, what a PREPARED or DECISION says.
  absl::StatusOr<bool> ReadBody(ChainedRecord* record, const Arena& scratch) const {
    const RecordHeader& header = record->header;
    const uint32_t index = files_.IndexOf(header.sequence);
    const bool keep = header.type != RecordType::kExtent;
    std::string body;
    uint32_t crc = PayloadSeed(header);
    for (uint64_t done = 0; done < header.payload_bytes;) {
      const uint64_t bytes = std::min(kLogPieceBytes, header.payload_bytes - done);
      BALLAST_RETURN_IF_ERROR(files_.Read(index, header.offset + kPageBytes + done,
                                          PaddedBytes(bytes), scratch.data()));
      crc = Crc32c(scratch.data(), bytes, crc);
      if (keep) body.append(scratch.data(), bytes);
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
        heard_.proof.witness, " says that all up to ", heard_.proof.lsn,
        " had been flushed; restore the files ", "from a copy"));
  }

  // Only the newest header can be unfinished, and then no record follows it: each is flushed before
  // the first record of its segment is written.
  absl::Status DamagedHeader(uint32_t index) const {
    return absl::DataLossError(absl::StrCat(
        "the gradient log is damaged in ", files_.Path(index), " at byte 0: the header ",
        "of a segment in use does not match its checksum; ",
        chain_.empty()
            ? "no whole record is left"
            : absl::StrCat("the last whole record is of round ", chain_.back().header.round),
        "; restore the files from a copy"));
  }

  absl::Status DamagedBody(const RecordHeader& header) const {
    return absl::DataLossError(
        absl::StrCat("the gradient log is damaged in ", Where(header), ": the ",
                     header.type == RecordType::kPrepared ? "PREPARED" : "DECISION",
                     " record's checksum does not match, and ", heard_.proof.witness,
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
      if (!Flushed(record.header)) AddUnproven(record.header, &state);
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
    state.generation = heard_.generation + 1;
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
  ReadLanes* const lanes_;

  std::map<uint64_t, SegmentHeader> segments_;  // by sequence
  std::vector<uint64_t> sequence_of_file_;      // 0: no whole header
  std::vector<ChainedRecord> chain_;
  Position end_;  // behind the last record of the chain
  Heard heard_;
};

}  // namespace

absl::StatusOr<LogState> ScanLog(const LogFiles& files, const LogOptions& options,
                                 ReadLanes* lanes) {
  return LogScanner(files, options, lanes).Run();
}

}  // namespace ballast::server
