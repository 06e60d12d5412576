// The disk side of a gradient log: puts pages into its files, flushes them, and reads payloads
// back. It knows neither rounds nor which bytes may be overwritten; GradientLog does. Comes from:
// GradientLog. Goes to: LogFiles, LogWrites. Thread safety: as GradientLog. Every call may block on
// the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/arena.h"
#include "server/durability/log/gradient_log.h"
#include "server/durability/log/log_files.h"
#include "server/durability/log/log_format.h"
#include "server/durability/log/log_scan.h"
#include "server/durability/log/log_writes.h"
#include "server/durability/records/read_lanes.h"

namespace ballast::server {

class LogDisk {
 public:
  // `scratch` has at least two pages.
  LogDisk(LogFiles files, const LogOptions& options, Arena scratch,
          std::unique_ptr<LogWrites> writes)
      : files_(std::move(files)),
        options_(options),
        scratch_(std::move(scratch)),
        writes_(std::move(writes)) {}

  // The file that holds segment `sequence`.
  uint32_t IndexOf(uint64_t sequence) const { return files_.IndexOf(sequence); }
  // Removes the files of a log that could not be finished.
  void Remove(FileSystem* fs) { files_.Remove(fs); }

  // Opening: zeros the page at `offset` of segment `sequence`, unless it is zero.
  absl::Status ClearPage(uint64_t sequence, uint64_t offset);
  // Opening: rewrites the ranges with their own bytes, so that the next flush has to save them.
  absl::Status WriteAgain(const std::vector<PageRange>& ranges, ReadLanes* lanes);

  // Begins to write a record at header.offset of its segment; returns the checksum of its header
  // page. `data` and `owner`: as GradientLog::AppendExtent. The error may be that of an earlier
  // write.
  absl::StatusOr<uint32_t> WriteRecord(const RecordHeader& header, const void* data,
                                       std::shared_ptr<const void> owner);
  // Writes the header of segment header.sequence, and flushes it.
  absl::Status WriteSegmentHeader(const SegmentHeader& header);
  // The next Flush covers segment `sequence`; WriteRecord does this for its own.
  void NeedsFlush(uint64_t sequence) { unflushed_.insert(sequence); }
  // Waits for all writes, and flushes every segment that needs it.
  absl::Status Flush();

  // Returns when no write is under way; the first error of all writes so far.
  absl::Status Wait() { return writes_->Wait(); }
  // As GradientLog::ReadFlushed.
  absl::Status Read(const LoggedExtent& extent, void* to) const;

 private:
  // The scratch arena: one page for headers, the rest for payloads that do not lie on pages.
  char* header_page() const { return scratch_.data(); }
  char* bounce() const { return scratch_.data() + kPageBytes; }
  uint64_t bounce_bytes() const { return scratch_.bytes() - kPageBytes; }

  absl::Status Write(const RecordHeader& header, const LogWrites::Pages& pages, const void* data,
                     std::shared_ptr<const void> owner);
  absl::Status WriteOnPages(const RecordHeader& header, const LogWrites::Pages& pages,
                            const char* data, std::shared_ptr<const void> owner);
  absl::Status WriteThroughBounce(const RecordHeader& header, const LogWrites::Pages& pages,
                                  const char* data);

  LogFiles files_;
  const LogOptions options_;
  const Arena scratch_;
  std::set<uint64_t> unflushed_;             // sequences of segments
  const std::unique_ptr<LogWrites> writes_;  // Last: it waits for writes to the files.
};

}  // namespace ballast::server
