// Which records of a gradient log follow one another, and up to which of them the log was flushed.
// It reads header pages only. docs/formats/log.md explains the rules.
// Cost: one page a record, and the rest of the last segment; several threads read at a time.
// Comes from: log_scan. Goes to: LogFiles. Thread safety: pure but for reading; writes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/durability/log/log_files.h"
#include "server/durability/log/log_format.h"
#include "server/durability/records/read_lanes.h"

namespace ballast::server {

// Bytes a lane needs, and the largest read.
constexpr uint64_t kLogPieceBytes = uint64_t{2} << 20;

// Where a record is expected, and which record it must follow.
struct LogPosition {
  uint64_t sequence = 0;
  uint64_t offset = 0;
  uint64_t lsn = 0;
  uint32_t previous_crc = 0;
  uint32_t generation = 0;
  uint64_t secret = 0;  // of the segment
};

// Evidence that records up to `lsn` were flushed.
struct FlushProof {
  uint64_t lsn = 0;
  std::string witness;
};

struct LogChain {
  uint64_t first_sequence = 0;        // of the oldest segment
  std::vector<RecordHeader> records;  // oldest first; their bodies are not checked
  LogPosition end;                    // the end of the last of them
  FlushProof proof;
  uint32_t generation = 0;  // the newest of all pages
  uint64_t secret = 0;      // of the newest segment
};

// Errors as GradientLog::Open. The lanes have kLogPieceBytes each.
absl::StatusOr<LogChain> ReadLogChain(const LogFiles& files, const LogOptions& options,
                                      ReadLanes* lanes);

}  // namespace ballast::server
