#include "server/durability/log/log_disk.h"
#include "server/durability/records/bytes.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "common/faults/failpoint.h"

namespace ballast::server {
namespace {

// Shorter payloads are written before the next record is made: starting a write and waiting for its
// completion takes longer than it saves.
constexpr uint64_t kBeginBytesMin = uint64_t{512} << 10;

}  // namespace

// Opening.

absl::Status LogDisk::ClearPage(uint64_t sequence, uint64_t offset) {
  BALLAST_RETURN_IF_ERROR(files_.Read(files_.IndexOf(sequence), offset, kPageBytes, header_page()));
  const bool written =
      std::any_of(header_page(), header_page() + kPageBytes, [](char c) { return c != 0; });
  if (!written) return absl::OkStatus();
  std::memset(header_page(), 0, kPageBytes);
  const ConstBytes zeros{header_page(), kPageBytes};
  return files_.FileOf(sequence)->WriteAt(offset, {zeros});
}

absl::Status LogDisk::WriteAgain(const std::vector<PageRange>& ranges, ReadLanes* lanes) {
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

// Records.

absl::StatusOr<uint32_t> LogDisk::WriteRecord(const RecordHeader& header, const void* data,
                                              std::shared_ptr<const void> owner) {
  const LogWrites::Pages pages = writes_->Take();
  const uint32_t crc = EncodePage(header, pages.header());
  unflushed_.insert(header.sequence);
  BALLAST_RETURN_IF_ERROR(Write(header, pages, data, std::move(owner)));
  return crc;
}

absl::Status LogDisk::Write(const RecordHeader& header, const LogWrites::Pages& pages,
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

absl::Status LogDisk::WriteOnPages(const RecordHeader& header, const LogWrites::Pages& pages,
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

absl::Status LogDisk::WriteThroughBounce(const RecordHeader& header, const LogWrites::Pages& pages,
                                         const char* data) {
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

absl::Status LogDisk::Flush() {
  BALLAST_RETURN_IF_ERROR(writes_->Wait());
  BALLAST_FAILPOINT_RETURN("log.before_sync");
  for (const uint64_t sequence : unflushed_) {
    if (options_.flush) BALLAST_RETURN_IF_ERROR(files_.FileOf(sequence)->Sync());
  }
  BALLAST_FAILPOINT_RETURN("log.after_sync");
  unflushed_.clear();
  return absl::OkStatus();
}

absl::Status LogDisk::WriteSegmentHeader(const SegmentHeader& header) {
  EncodePage(header, header_page());
  BALLAST_FAILPOINT_RETURN("log.before_segment");
  const ConstBytes page{header_page(), kPageBytes};
  BALLAST_RETURN_IF_ERROR(files_.FileOf(header.sequence)->WriteAt(0, {page}));
  if (options_.flush) BALLAST_RETURN_IF_ERROR(files_.FileOf(header.sequence)->Sync());
  BALLAST_FAILPOINT_RETURN("log.after_segment");
  return absl::OkStatus();
}

// Reading.

absl::Status LogDisk::Read(const LoggedExtent& extent, void* to) const {
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

}  // namespace ballast::server
