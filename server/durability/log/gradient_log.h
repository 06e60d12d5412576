// GradientLog: the redo log of one job at one server. A ring of segments, written once when the job
// is created and recycled from then on, with 4 KiB-aligned records: the reduced gradient of every
// extent, one PREPARE and one decision a round. docs/formats/log.md has the grammar.
//
// Durability: everything appended before a Sync that returned OK survives. A PREPARE counts only
// when every record in front of it is whole, so that one flush a round is enough.
//
// Comes from: StorageRoundLog (writes), recovery (reads). Goes to: common/io files.
// Thread safety: thread-compatible, except that several ReadExtent may run at the same time, and
// ReadFlushed during any other call; every call may block on the disk.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/arena.h"
#include "common/io/file.h"
#include "common/tensor/dtype.h"
#include "server/durability/records/ratios_record.h"
#include "server/durability/records/records.h"

namespace ballast::server {

struct LogOptions {
  uint64_t job = 0;
  uint32_t server = 0;
  // Of each segment, a multiple of kPageBytes; at least one record of every size must fit.
  uint64_t segment_bytes = uint64_t{256} << 20;
  uint32_t segments = 4;  // >= 3
  bool flush = true;      // Sync reaches the device (level power); else only the kernel
  bool direct = true;     // past the page cache where possible
  int open_threads = 4;   // that Open reads with, several requests being under way at a time
  // The job's epoch, as in BeginEpoch: records of older ones for rounds from start_round on are
  // dead.
  uint32_t epoch = 0;
  uint64_t start_round = 0;
  // Drawn at random; no trainer may know it. A log keeps its own secret; a log without one gets
  // this with its next segment. 0: none, as programs before format 2 wrote logs.
  uint64_t secret = 0;
};

// The reduced gradient of one extent in the log.
struct LoggedExtent {
  uint32_t epoch = 0;
  uint64_t round = 0;
  uint32_t extent = 0;
  DType dtype = DType::kF32;
  double sumsq = 0;
  uint64_t nonfinite = 0;
  uint64_t bytes = 0;
  Nonfinite first_nonfinite;  // its `extent` is the one above
  uint32_t crc32c = 0;        // of the payload, bound to job, server, epoch, round and extent
  uint32_t segment = 0;       // index of the segment's file
  uint64_t offset = 0;        // of the payload in that file
};

// The reduced gradient of one extent, exactly as the step will consume it: the fp32 sum, or the
// wire dtype when one slot contributes.
struct ReducedExtent {
  LoggedExtent at;             // its first eight fields
  const void* data = nullptr;  // at.bytes
  // Crc32c of `data`, from the code that put those bytes there and had them in a cache then. Not
  // checked: bytes that have changed since are found by the next reader of the log. If empty, it is
  // computed with one more pass over them.
  std::optional<uint32_t> data_crc;
  std::shared_ptr<const void> owner;  // keeps `data` alive and unchanged
};

// The log's records of one round. Extents of an older epoch are replaced by those of a newer one,
// which also undo a PREPARED of the older epoch.
struct LoggedRound {
  std::map<uint32_t, LoggedExtent> extents;
  std::optional<PreparedRecord> prepared;
  std::optional<DecisionRecord> decision;
  std::optional<RatiosRecord> ratios;  // of a LAMB round, applied or about to be
};

class GradientLog {
 public:
  // Bytes Create will take on disk.
  static uint64_t DiskBytes(const LogOptions& options);
  // Bytes of the log that one appended payload takes.
  static uint64_t RecordBytes(uint64_t payload_bytes);

  // Makes the segments in the existing directory `directory` and writes each of them once. Errors:
  // RESOURCE_EXHAUSTED with the bytes needed and free, checked first and changing nothing.
  static absl::StatusOr<std::unique_ptr<GradientLog>> Create(FileSystem* fs,
                                                             const std::string& directory,
                                                             const LogOptions& options);

  // Opens an existing log. The unfinished tail (all that follows the last Sync that returned and is
  // not whole) is dropped, and rounds() ends before it. Errors: DATA_LOSS, naming file, offset,
  // round and extent, when a record in front of a later PREPARE is damaged, or segments are missing
  // in between; FAILED_PRECONDITION for files of another job, server or format version.
  static absl::StatusOr<std::unique_ptr<GradientLog>> Open(FileSystem* fs,
                                                           const std::string& directory,
                                                           const LogOptions& options);
  virtual ~GradientLog() = default;

  // The records that Open found and those appended since, by round; rounds below the last TrimTo
  // may be gone, also in part.
  virtual const std::map<uint64_t, LoggedRound>& rounds() const = 0;

  // Reads a payload into `to`, which has room for `extent.bytes` rounded up to kPageBytes and is
  // aligned to kPageBytes. DATA_LOSS when its bytes are not the written ones.
  virtual absl::Status ReadExtent(const LoggedExtent& extent, void* to) = 0;

  // As ReadExtent, of an untrimmed round whose PREPARED was flushed; on any thread, during any
  // other call.
  virtual absl::Status ReadFlushed(const LoggedExtent& extent, void* to) const = 0;

  // Appends. An extent's data are read until the next Sync returns at the latest, and its `owner`
  // is kept until then. Several writes are under way at a time, so an error of a write may be
  // returned by a later call, by Sync at the latest. An error of a write or flush is final: every
  // later call returns it again. Nothing has changed after
  //   RESOURCE_EXHAUSTED  no room; the call may be repeated after TrimTo
  //   INVALID_ARGUMENT    larger than a segment; no dtype
  //   INTERNAL            a record that may not follow: a second one of the same or an older epoch,
  //                       an extent or PREPARED of a decided round, a PREPARED that counts an
  //                       extent (sumsq not 0) that the log lacks, RATIOS of a round not prepared
  //                       in their epoch
  virtual absl::Status AppendExtent(const ReducedExtent& extent) = 0;
  virtual absl::Status AppendPrepared(const PreparedRecord& record) = 0;
  virtual absl::Status AppendDecision(const DecisionRecord& record) = 0;
  virtual absl::Status AppendRatios(const RatiosRecord& record) = 0;
  virtual absl::Status Sync() = 0;

  // Rounds below `round` will not be read any more; their segments are used again once they hold
  // nothing newer. Vote and decision of round - 1 stay: a peer may lack that vote, and they say how
  // `round` begins.
  virtual void TrimTo(uint64_t round) = 0;

  // A change of epoch, in two calls, because a round may be run again in any number of epochs and
  // must not fill the log. First, vote, ratios and decision of `round`, the last finished one, are
  // appended again, so that nothing older is needed for them; durable after Sync. INTERNAL when the
  // log does not have them; round 0 exists in a job made from a snapshot taken before the first
  // round; elsewhere nothing happens.
  virtual absl::Status Repeat(uint64_t round) = 0;
  // The second call comes once a restart would Open the log with `epoch` and `start_round` =
  // `round` + 1: all records of rounds from start_round on are dead.
  virtual void BeginEpoch(uint32_t epoch, uint64_t start_round) = 0;

  // Begins a fresh log where another one ended: with vote and decision of the last round, but not
  // its extents. Durable when it returns.
  virtual absl::Status Seed(const PreparedRecord& prepared, const DecisionRecord& decision) = 0;

  // Bytes that can be appended before TrimTo is needed, except for the unused ends of segments.
  virtual uint64_t FreeBytes() const = 0;
};

}  // namespace ballast::server
