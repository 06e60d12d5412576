#include "server/durability/log/log_chain.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "common/text/names.h"
#include "server/durability/log/gradient_log.h"

namespace ballast::server {
namespace {

// Of records and segments. At one for each nanosecond a log reaches it after 146 years.
constexpr uint64_t kNumberMax = uint64_t{1} << 62;

// Place of a page, and which secret a header there has: 0 of version 1, nullopt if unknown.
struct Spot {
  uint64_t sequence = 0;
  uint64_t offset = 0;
  std::optional<uint64_t> secret;
};

// The records of one segment that follow its header, and where they end.
struct SegmentChain {
  absl::Status status;
  std::vector<RecordHeader> records;
  LogPosition end;
};

// Evidence of flushes and generations on pages.
struct FlushEvidence {
  bool any_record = false;
  uint32_t generation = 0;
  FlushProof proof;

  void Add(const FlushEvidence& other) {
    any_record = any_record || other.any_record;
    generation = std::max(generation, other.generation);
    if (other.proof.lsn > proof.lsn) proof = other.proof;
  }
};

class ChainReader {
 public:
  ChainReader(const LogFiles& files, const LogOptions& options, ReadLanes* lanes)
      : files_(files), options_(options), lanes_(lanes), sequence_of_file_(files.count()) {}

  absl::StatusOr<LogChain> Run() {
    BALLAST_RETURN_IF_ERROR(ReadSegmentHeaders());
    BALLAST_RETURN_IF_ERROR(CheckRing());
    BALLAST_RETURN_IF_ERROR(FollowChain());
    BALLAST_RETURN_IF_ERROR(LookAhead());
    if (end_.lsn <= evidence_.proof.lsn) return DamagedEnd();
    if (!CanContinue()) return DamagedNumbers();
    return LogChain{.first_sequence = segments_.begin()->first,
                    .records = std::move(records_),
                    .end = end_,
                    .proof = std::move(evidence_.proof),
                    .generation = evidence_.generation,
                    .secret = segments_.rbegin()->second.secret};
  }

 private:
  // State of the files.

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

  // Each file holds the newest segment written to it, so a ring spans no more than itself.
  absl::Status CheckRing() const {
    const uint64_t first = segments_.begin()->first, last = segments_.rbegin()->first;
    if (last - first < files_.count()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        "the gradient log is damaged: ", files_.PathOf(last), " holds segment ", last, " and ",
        files_.PathOf(first), " segment ", first, ", too far apart for a ring of ", files_.count(),
        " files; restore the files from a copy"));
  }

  // The chain.

  // Each segment by itself, from its header; then as far as one follows the other.
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
      std::move(chains[i].records.begin(), chains[i].records.end(), std::back_inserter(records_));
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
                  .generation = header.generation,
                  .secret = header.secret};
    for (bool more = true; more;) {
      BALLAST_ASSIGN_OR_RETURN(more, TakeRecord(scratch, chain));
    }
    return absl::OkStatus();
  }

  // Moves the chain's end past the record at that place, if it is the next one.
  absl::StatusOr<bool> TakeRecord(const Arena& scratch, SegmentChain* chain) const {
    LogPosition& end = chain->end;
    if (end.offset == options_.segment_bytes) return false;
    BALLAST_RETURN_IF_ERROR(
        files_.Read(files_.IndexOf(end.sequence), end.offset, kPageBytes, scratch.data()));
    const Spot spot{.sequence = end.sequence, .offset = end.offset, .secret = end.secret};
    const absl::StatusOr<RecordHeader> header = DecodeAt(scratch.data(), spot);
    BALLAST_RETURN_IF_ERROR(CheckVersion(header, spot));
    if (!header.ok() || header->lsn != end.lsn || header->previous_crc != end.previous_crc ||
        header->generation < end.generation) {
      return false;
    }
    end.offset += GradientLog::RecordBytes(header->payload_bytes);
    end.lsn += 1;
    end.previous_crc = PageCrc(scratch.data());
    end.generation = header->generation;
    chain->records.push_back(*header);
    return true;
  }

  // Whether the segment begins where the chain ends.
  bool Follows(const SegmentHeader& header) const {
    return header.sequence == end_.sequence + 1 && header.first_lsn == end_.lsn &&
           header.previous_crc == end_.previous_crc && header.generation >= end_.generation;
  }

  // The record written to this very place of this log. DATA_LOSS for anything else: payloads lie on
  // pages too, and a trainer's bytes may look like a header of any version.
  absl::StatusOr<RecordHeader> DecodeAt(const char* page, const Spot& spot) const {
    const RecordPlace place = PlaceOf(page);
    if (place != RecordPlace{.job = options_.job,
                             .server = options_.server,
                             .sequence = spot.sequence,
                             .offset = spot.offset,
                             .secret = spot.secret.value_or(place.secret)}) {
      return absl::DataLossError("the page was not written here");
    }
    BALLAST_ASSIGN_OR_RETURN(const RecordHeader header, DecodeRecordPage(page));
    if (header.payload_bytes > options_.segment_bytes ||
        spot.offset + GradientLog::RecordBytes(header.payload_bytes) > options_.segment_bytes) {
      return absl::DataLossError("the record does not fit the segment");
    }
    return header;
  }

  // The pages after the end.

  // Looks at every page after the end for records that prove a flush, and for the newest
  // generation.
  absl::Status LookAhead() {
    if (!records_.empty()) evidence_.Add(Say(records_.back()));
    // Before its first record only the header says what was flushed in front of the segment.
    evidence_.Add(Say(segments_.at(end_.sequence)));
    evidence_.generation = std::max(evidence_.generation, end_.generation);
    BALLAST_RETURN_IF_ERROR(LookThrough(end_.sequence, end_.offset).status());
    for (uint32_t index = 0; index < files_.count(); ++index) {
      uint64_t sequence = sequence_of_file_[index];
      if (sequence == 0) {  // Then the file's next segment.
        BALLAST_ASSIGN_OR_RETURN(const bool unused, NeverUsed(index));
        if (unused) continue;
        for (sequence = end_.sequence + 1; files_.IndexOf(sequence) != index;) ++sequence;
        if (sequence > segments_.rbegin()->first + 1) return DamagedHeader(index);
      } else if (sequence > end_.sequence) {
        evidence_.Add(Say(segments_.at(sequence)));
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

  // That of segment `sequence`. Without a whole header it has the log's, if the log has one: a
  // segment of version 1 is in front of all others.
  std::optional<uint64_t> SecretOf(uint64_t sequence) const {
    const auto header = segments_.find(sequence);
    if (header != segments_.end()) return header->second.secret;
    const uint64_t newest = segments_.rbegin()->second.secret;
    return newest == 0 ? std::nullopt : std::make_optional(newest);
  }

  // Collects the evidence of every record of segment `sequence` from `offset` on; whether there is
  // one.
  absl::StatusOr<bool> LookThrough(uint64_t sequence, uint64_t offset) {
    const uint64_t left = options_.segment_bytes - offset;
    std::vector<FlushEvidence> pieces((left + kLogPieceBytes - 1) / kLogPieceBytes);
    BALLAST_RETURN_IF_ERROR(
        lanes_->ForEach(pieces.size(), [&](size_t i, const Arena& scratch) -> absl::Status {
          const Spot spot{.sequence = sequence,
                          .offset = offset + i * kLogPieceBytes,
                          .secret = SecretOf(sequence)};
          return LookAtPiece(spot, scratch, &pieces[i]);
        }));
    bool any = false;
    for (const FlushEvidence& piece : pieces) {
      any = any || piece.any_record;
      evidence_.Add(piece);
    }
    return any;
  }

  absl::Status LookAtPiece(const Spot& begin, const Arena& scratch, FlushEvidence* evidence) const {
    const uint64_t bytes = std::min(kLogPieceBytes, options_.segment_bytes - begin.offset);
    BALLAST_RETURN_IF_ERROR(
        files_.Read(files_.IndexOf(begin.sequence), begin.offset, bytes, scratch.data()));
    for (uint64_t at = 0; at < bytes; at += kPageBytes) {
      const char* const page = scratch.data() + at;
      if (!LooksLikeRecord(page)) continue;
      Spot spot = begin;
      spot.offset += at;
      const absl::StatusOr<RecordHeader> header = DecodeAt(page, spot);
      // Its evidence is unknown, and records appended later would end at it.
      BALLAST_RETURN_IF_ERROR(CheckVersion(header, spot));
      if (!header.ok()) continue;
      evidence->Add(Say(*header));
    }
    return absl::OkStatus();
  }

  FlushEvidence Say(const SegmentHeader& header) const {
    return {.generation = header.generation,
            .proof = {header.flushed_lsn, absl::StrCat("the header of segment ", header.sequence,
                                                       " in ", files_.PathOf(header.sequence))}};
  }

  FlushEvidence Say(const RecordHeader& header) const {
    return {.any_record = true,
            .generation = header.generation,
            .proof = {header.flushed_lsn,
                      absl::StrCat("record ", header.lsn, " of round ", header.round, " at byte ",
                                   header.offset, " of ", files_.PathOf(header.sequence))}};
  }

  // The last generation is followed by a lower one, and a reader skips its records.
  bool CanContinue() const {
    return evidence_.generation < UINT32_MAX && end_.lsn < kNumberMax && end_.sequence < kNumberMax;
  }

  // Errors.

  // In a segment of version 1 a newer header is a payload.
  absl::Status CheckVersion(const absl::StatusOr<RecordHeader>& header, const Spot& spot) const {
    if (!absl::IsFailedPrecondition(header.status()) || spot.secret == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        files_.PathOf(spot.sequence), " at byte ", spot.offset, ": ", header.status().message()));
  }

  absl::Status DamagedNumbers() const {
    return absl::DataLossError(
        absl::StrCat("the gradient log is damaged: generation ", evidence_.generation, ", record ",
                     end_.lsn, " in segment ", end_.sequence,
                     " are numbers that no log reaches; restore the files from a copy"));
  }

  absl::Status DamagedEnd() const {
    const uint64_t round = records_.empty() ? 0 : records_.back().round;
    return absl::DataLossError(absl::StrCat(
        "the gradient log is damaged in ", files_.PathOf(end_.sequence), " at byte ", end_.offset,
        ": record ", end_.lsn, " is missing, after the last whole one, of round ", round, "; ",
        evidence_.proof.witness, " says that all up to ", evidence_.proof.lsn,
        " had been flushed; restore the files ", "from a copy"));
  }

  // Only the newest header can be unfinished, and then no record follows it: each is flushed before
  // the first record of its segment is written.
  absl::Status DamagedHeader(uint32_t index) const {
    return absl::DataLossError(absl::StrCat(
        "the gradient log is damaged in ", files_.Path(index), " at byte 0: the header ",
        "of a segment in use does not match its checksum; ",
        records_.empty()
            ? "no whole record is left"
            : absl::StrCat("the last whole record is of round ", records_.back().round),
        "; restore the files from a copy"));
  }

  const LogFiles& files_;
  const LogOptions& options_;
  ReadLanes* const lanes_;

  std::map<uint64_t, SegmentHeader> segments_;  // by sequence
  std::vector<uint64_t> sequence_of_file_;      // 0: no whole header
  std::vector<RecordHeader> records_;
  LogPosition end_;  // the end of the chain's last record
  FlushEvidence evidence_;
};

}  // namespace

absl::StatusOr<LogChain> ReadLogChain(const LogFiles& files, const LogOptions& options,
                                      ReadLanes* lanes) {
  return ChainReader(files, options, lanes).Run();
}

}  // namespace ballast::server
