// Reads a gradient log after a restart: follows the chain of records, tells an unfinished tail from
// damage, and says where appending continues. docs/formats/log.md explains the rules.
// Cost: one page a record, the bodies of records whose flush is unproven, the rest of the last
// segment; segments and bodies are read by several threads at a time.
// Comes from: GradientLog::Open. Goes to: GradientLog. Thread safety: pure but for reading; writes
// nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/statusor.h"
#include "server/durability/log/gradient_log.h"
#include "server/durability/log/log_chain.h"
#include "server/durability/log/log_files.h"
#include "server/durability/log/log_format.h"
#include "server/durability/log/log_index.h"
#include "server/durability/records/read_lanes.h"

namespace ballast::server {

// A segment that holds something, oldest first in a row.
struct LiveSegment {
  uint64_t sequence = 0;
  uint64_t newest_round = 0;  // that needs a record in it (NeededBy); 0: none
};

// The newest round that needs a record: its own, and for a vote or decision the one after it.
constexpr uint64_t NeededBy(const RecordHeader& header) {
  return header.type == RecordType::kExtent ? header.round : header.round + 1;
}

// Whole pages of a segment.
struct PageRange {
  uint64_t sequence = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Where appending continues: at `offset` of the last of `live`.
struct LogState {
  LogIndex index;
  std::deque<LiveSegment> live;
  uint64_t offset = 0;
  uint64_t next_lsn = 1;
  uint32_t last_crc = 0;  // of the last record header; 0 for none
  // Read whole, but without evidence of a flush: after a failed flush the kernel may give back
  // bytes that the disk does not have, and no later flush writes them.
  std::vector<PageRange> unproven;
  uint32_t generation = 1;      // newer than that of everything in the files
  uint64_t segment_secret = 0;  // of the last of `live`
  uint64_t secret = 0;          // of segments that begin from now on
};

// Errors as GradientLog::Open. The lanes have kLogPieceBytes each.
absl::StatusOr<LogState> ScanLog(const LogFiles& files, const LogOptions& options,
                                 ReadLanes* lanes);

}  // namespace ballast::server
