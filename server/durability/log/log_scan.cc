#include "server/durability/log/log_scan.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "common/io/arena.h"
#include "server/durability/log/log_chain.h"
#include "server/durability/log/log_format.h"
#include "server/durability/records/bytes.h"

namespace ballast::server {
namespace {

// A record of the chain: its header and its content.
struct ChainedRecord {
  RecordHeader header;
  std::optional<PreparedRecord> prepared;
  std::optional<DecisionRecord> decision;
  std::optional<RatiosRecord> ratios;
};

const char* NameOf(RecordType type) {
  switch (type) {
    case RecordType::kExtent:
      return "EXTENT";
    case RecordType::kPrepared:
      return "PREPARED";
    case RecordType::kDecision:
      return "DECISION";
    case RecordType::kRatios:
      return "RATIOS";
  }
  return "?";
}

// Keeps a decoded record, or returns the error of decoding; `round` and `epoch` are the record's.
template <class Record>
absl::Status Keep(absl::StatusOr<Record> decoded, std::optional<Record>* kept, uint64_t* round,
                  uint32_t* epoch) {
  BALLAST_RETURN_IF_ERROR(decoded.status());
  *round = decoded->round;
  *epoch = decoded->epoch;
  *kept = *std::move(decoded);
  return absl::OkStatus();
}

// Reads the records of a chain, and derives the log's state from them.
class LogScanner {
 public:
  LogScanner(const LogFiles& files, const LogOptions& options, ReadLanes* lanes, LogChain chain)
      : files_(files),
        options_(options),
        lanes_(lanes),
        first_sequence_(chain.first_sequence),
        proof_(std::move(chain.proof)),
        generation_(chain.generation),
        secret_(chain.secret),
        end_(chain.end) {
    for (const RecordHeader& header : chain.records) chain_.push_back({.header = header});
  }

  absl::StatusOr<LogState> Run() {
    BALLAST_RETURN_IF_ERROR(CheckBodies());
    return MakeState();
  }

 private:
  // Content of the records.

  // Reads PREPARED, RATIOS and DECISION records, and the bodies of extents that may not have been
  // flushed. The first damaged body ends the chain.
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
              .previous_crc = header.previous_crc,
              .secret = header.secret};
      chain_.resize(wanted[i]);
      break;
    }
    return absl::OkStatus();
  }

  bool Flushed(const RecordHeader& header) const { return header.lsn <= proof_.lsn; }

  // Whether the body's checksum matches; if so, decodes any but an EXTENT.
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
      status = Keep(DecodePrepared(body), &record->prepared, &round, &epoch);
    } else if (header.type == RecordType::kRatios) {
      status = Keep(DecodeRatios(body), &record->ratios, &round, &epoch);
    } else {
      status = Keep(DecodeDecision(body), &record->decision, &round, &epoch);
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

  absl::Status DamagedBody(const RecordHeader& header) const {
    return absl::DataLossError(
        absl::StrCat("the gradient log is damaged in ", Where(header), ": the ",
                     NameOf(header.type), " record's checksum does not match, and ", proof_.witness,
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
    for (uint64_t s = first_sequence_; s <= end_.sequence; ++s) {
      state.live.push_back({.sequence = s});
    }
    state.unproven.push_back({.sequence = end_.sequence, .bytes = kPageBytes});  // Its header.
    for (const ChainedRecord& record : chain_) {
      if (!Flushed(record.header)) AddUnproven(record.header, &state);
      if (record.prepared.has_value()) {
        state.index.Add(*record.prepared);
      } else if (record.decision.has_value()) {
        state.index.Add(*record.decision);
      } else if (record.ratios.has_value()) {
        state.index.Add(*record.ratios);
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
    state.segment_secret = end_.secret;
    state.secret = secret_ == 0 ? options_.secret : secret_;
    return state;
  }

  // Newest records first: of repeated records only the last is needed.
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
                                              files_.PathOf(first_sequence_), ", is gone"));
    }
    return absl::OkStatus();
  }

  const LogFiles& files_;
  const LogOptions& options_;
  ReadLanes* const lanes_;
  const uint64_t first_sequence_;
  const FlushProof proof_;
  const uint32_t generation_;
  const uint64_t secret_;

  std::vector<ChainedRecord> chain_;
  LogPosition end_;  // the end of the chain's last record
};

}  // namespace

absl::StatusOr<LogState> ScanLog(const LogFiles& files, const LogOptions& options,
                                 ReadLanes* lanes) {
  BALLAST_ASSIGN_OR_RETURN(LogChain chain, ReadLogChain(files, options, lanes));
  return LogScanner(files, options, lanes, std::move(chain)).Run();
}

}  // namespace ballast::server
