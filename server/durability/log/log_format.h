// The two header pages of the gradient log, as structs and as bytes. docs/formats/log.md has the
// layout and a worked example.
//
//   log     := segment*                      ; file log-NNN, NNN = (sequence - 1) mod segments
//   segment := segment header (4 KiB) record* unused
//   record  := record header (4 KiB) payload padding to 4 KiB
//
// Payloads lie on pages too, and their bytes are a trainer's. So every header of version 2 carries
// the log's secret, a random number that no message contains: a page without it is not a header.
//
// Comes from: GradientLog, log_scan. Goes to: docs/formats/log.md.
// Thread safety: pure functions over plain values.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/file.h"
#include "common/job/nonfinite.h"
#include "common/tensor/dtype.h"

namespace ballast::server {

struct SegmentHeader {
  uint64_t job = 0;
  uint32_t server = 0;
  uint32_t segments = 0;       // files of the log
  uint64_t segment_bytes = 0;  // of each
  uint32_t generation = 0;     // of the Open or Create that wrote it
  uint64_t sequence = 0;       // from 1, grows for ever
  uint64_t first_lsn = 0;      // of its first record
  uint64_t flushed_lsn = 0;    // every record up to this one was flushed before
  uint32_t previous_crc = 0;   // of the last record header in front of this segment; 0 for none
  uint64_t secret = 0;         // of the log; 0: the segment is of version 1, and has none
};

enum class RecordType : uint8_t { kExtent = 1, kPrepared = 2, kDecision = 3, kRatios = 4 };

struct RecordHeader {
  RecordType type = RecordType::kExtent;
  DType dtype = kNoDType;  // of an EXTENT
  uint64_t job = 0;
  uint32_t server = 0;
  uint32_t epoch = 0;
  uint64_t round = 0;
  uint32_t extent = 0;       // of an EXTENT
  uint32_t generation = 0;   // of the Open or Create that wrote it
  uint64_t lsn = 0;          // from 1, one more than the record in front
  uint64_t sequence = 0;     // of its segment
  uint64_t offset = 0;       // of this header in the segment's file
  uint64_t flushed_lsn = 0;  // every record up to this one was flushed before
  uint64_t payload_bytes = 0;
  double sumsq = 0;           // of an EXTENT
  uint64_t nonfinite = 0;     // of an EXTENT
  Nonfinite first_nonfinite;  // of an EXTENT; its `extent` is the one above, or 0 for kNone
  uint32_t payload_crc = 0;   // PayloadSeed, then the payload
  uint32_t previous_crc = 0;  // of the record header in front; 0 for the first
  uint64_t secret = 0;        // as in its segment's header
};

// Writes a header page, of version 1 where the secret is 0, else of version 2; returns its
// checksum, which the next record or segment carries.
uint32_t EncodePage(const SegmentHeader& header, char* page);
uint32_t EncodePage(const RecordHeader& header, char* page);

// Read kPageBytes. DATA_LOSS for anything EncodePage cannot have produced, FAILED_PRECONDITION for
// a whole page of a newer format version.
absl::StatusOr<SegmentHeader> DecodeSegmentPage(const char* page);
absl::StatusOr<RecordHeader> DecodeRecordPage(const char* page);

// Whether the page begins like a record header; cheap, proves nothing.
bool LooksLikeRecord(const char* page);
// The place that a page with the look of a record header claims as its own. Versions above ours
// keep these fields at the same offsets. Checks nothing.
struct RecordPlace {
  uint64_t job = 0;
  uint32_t server = 0;
  uint64_t sequence = 0;
  uint64_t offset = 0;
  uint64_t secret = 0;  // 0 of version 1
  bool operator==(const RecordPlace&) const = default;
};
RecordPlace PlaceOf(const char* page);
// The checksum a whole header page carries.
uint32_t PageCrc(const char* page);

// Initial value of a payload's checksum: CRC32C over the identity of the record, which is the same
// in both versions.
uint32_t PayloadSeed(const RecordHeader& header);

// File of segment `index`, without the directory.
std::string SegmentName(uint32_t index);

}  // namespace ballast::server
