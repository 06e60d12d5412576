// See transfer.h.
#include "client/aio/transfer.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/file_error.h"

namespace ballast {
namespace {

constexpr size_t kCompareBytes = size_t{1} << 20;

bool OnPage(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kPageBytes == 0; }

// Bytes that this user may still write on the file system; no limit where it reports none.
uint64_t FreeBytes(int descriptor) {
  struct statvfs about {};
  if (fstatvfs(descriptor, &about) != 0 || about.f_blocks == 0) {
    return std::numeric_limits<uint64_t>::max();
  }
  return uint64_t{geteuid() == 0 ? about.f_bfree : about.f_bavail} * about.f_frsize;
}

absl::Status EndsBefore(const TransferRange& range, uint64_t file_bytes) {
  return absl::OutOfRangeError(absl::StrCat(
      "cannot read ", range.bytes, " bytes at offset ", range.offset, " of ", range.path,
      ": the file has ", file_bytes, " bytes; use a smaller tensor or file_offset"));
}

}  // namespace

absl::Status CheckReadSize(File* file, const TransferRange& range) {
  BALLAST_ASSIGN_OR_RETURN(const uint64_t bytes, file->Size());
  if (range.offset + range.bytes > bytes) return EndsBefore(range, bytes);
  return absl::OkStatus();
}

Transfer::Transfer(IoKind kind, TransferRange range, std::unique_ptr<File> file, int parts,
                   Ended ended)
    : kind_(kind),
      range_(std::move(range)),
      file_(std::move(file)),
      parts_(parts),
      ended_(std::move(ended)),
      open_(static_cast<uint64_t>(parts)) {
  middle_ = {range_.offset, range_.offset + range_.bytes};
  if (file_->direct_descriptor() < 0) return;
  const Piece pages{(middle_.begin + kPageBytes - 1) / kPageBytes * kPageBytes,
                    middle_.end / kPageBytes * kPageBytes};
  // A range within one page has no whole one: all of it is an edge.
  middle_ = pages.begin < pages.end ? pages : Piece{middle_.end, middle_.end};
}

Transfer::~Transfer() = default;

absl::Status Transfer::Reserve() const {
  const int descriptor = file_->direct_descriptor();
  if (kind_ != IoKind::kWrite || descriptor < 0 || range_.bytes == 0) return absl::OkStatus();
  BALLAST_ASSIGN_OR_RETURN(const uint64_t bytes, file_->Size());
  if (range_.offset + range_.bytes <= bytes) return absl::OkStatus();
  const std::string what =
      absl::StrCat("reserve ", range_.bytes, " bytes at offset ", range_.offset, " of");
  // A reservation that fails half-way keeps its blocks. So a hopeless one is not tried.
  const uint64_t fresh = range_.offset + range_.bytes - std::max(range_.offset, bytes);
  if (fresh > FreeBytes(descriptor)) return FileError(ENOSPC, what, range_.path);
  int result = 0;
  do {
    result = fallocate(descriptor, 0, static_cast<off_t>(range_.offset),
                       static_cast<off_t>(range_.bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return absl::OkStatus();
  return FileError(errno, what, range_.path);
}

Transfer::Piece Transfer::PartOf(int index) const {
  const auto number = static_cast<uint64_t>(index);
  const auto parts = static_cast<uint64_t>(parts_);
  const uint64_t pages = (middle_.bytes() + kPageBytes - 1) / kPageBytes;
  const auto edge = [&](uint64_t part) {
    // Without overflow for any count of pages: whole shares, then one page more for the first ones.
    const uint64_t before = pages / parts * part + std::min(part, pages % parts);
    return std::min(middle_.begin + before * kPageBytes, middle_.end);
  };
  return {edge(number), edge(number + 1)};
}

void Transfer::RunPart(int index, IoEngine* engine, Staging* staging) {
  const uint64_t end = range_.offset + range_.bytes;
  if (index == 0) RunPlain({range_.offset, middle_.begin});
  if (index == parts_ - 1) RunPlain({middle_.end, end});
  const Piece piece = PartOf(index);
  if (piece.bytes() == 0) {
    // Nothing left.
  } else if (file_->direct_descriptor() < 0) {
    RunPlain(piece);
  } else if (OnPage(MemoryAt(piece.begin))) {
    RunDirect(piece, engine);
  } else {
    RunStaged(piece, engine, staging);
  }
  Release();
}

void Transfer::RunPlain(const Piece& piece) {
  if (piece.bytes() == 0) return;
  char* const memory = MemoryAt(piece.begin);
  if (kind_ == IoKind::kWrite) {
    return Note(file_->WriteAt(piece.begin, {ConstBytes{memory, piece.bytes()}}));
  }
  const absl::StatusOr<size_t> count = file_->ReadAt(piece.begin, piece.bytes(), memory);
  if (!count.ok()) return Note(count.status());
  if (*count < piece.bytes()) Note(EndsBefore(range_, piece.begin + *count));
}

IoRequest Transfer::RequestOf(const Piece& piece, char* memory) const {
  return {.kind = kind_,
          .descriptor = file_->direct_descriptor(),
          .path = range_.path,
          .offset = piece.begin,
          .data = memory,
          .bytes = piece.bytes()};
}

void Transfer::RunDirect(const Piece& piece, IoEngine* engine) {
  open_.fetch_add(1);
  IoRequest request = RequestOf(piece, MemoryAt(piece.begin));
  request.done = [self = shared_from_this()](const absl::Status& status) {
    self->Note(status);
    self->Release();
  };
  engine->Submit(std::move(request));
}

void Transfer::RunStaged(const Piece& piece, IoEngine* engine, Staging* staging) {
  for (uint64_t begin = piece.begin; begin < piece.end;) {
    const uint64_t bytes = std::min<uint64_t>(staging->chunk_bytes(), piece.end - begin);
    const absl::StatusOr<char*> chunk = staging->Take();
    if (!chunk.ok()) return Note(chunk.status());
    SubmitStaged({begin, begin + bytes}, engine, staging, *chunk);
    begin += bytes;
  }
}

void Transfer::SubmitStaged(const Piece& piece, IoEngine* engine, Staging* staging, char* chunk) {
  char* const memory = MemoryAt(piece.begin);
  if (kind_ == IoKind::kWrite) std::memcpy(chunk, memory, piece.bytes());
  open_.fetch_add(1);
  IoRequest request = RequestOf(piece, chunk);
  const uint64_t bytes = piece.bytes();
  request.done = [=, self = shared_from_this()](const absl::Status& status) {
    if (status.ok() && self->kind_ == IoKind::kRead) std::memcpy(memory, chunk, bytes);
    staging->Give(chunk);
    self->Note(status);
    self->Release();
  };
  engine->Submit(std::move(request));
}

void Transfer::Fail(const absl::Status& status) {
  Note(status);
  open_.store(1);
  Release();
}

absl::Status Transfer::Validate() const {
  std::vector<char> read(std::min<uint64_t>(kCompareBytes, range_.bytes));
  for (uint64_t at = 0; at < range_.bytes; at += read.size()) {
    const size_t bytes = std::min<uint64_t>(read.size(), range_.bytes - at);
    BALLAST_ASSIGN_OR_RETURN(const size_t count,
                             file_->ReadAt(range_.offset + at, bytes, read.data()));
    if (count < bytes) return EndsBefore(range_, range_.offset + at + count);
    const char* const memory = range_.memory + at;
    if (std::memcmp(memory, read.data(), bytes) == 0) continue;
    const auto differs = std::mismatch(memory, memory + bytes, read.data()).first - memory;
    return absl::DataLossError(absl::StrCat(
        "validate: byte ", range_.offset + at + static_cast<uint64_t>(differs), " of ", range_.path,
        " differs from the tensor; was the tensor or the file changed before wait()?"));
  }
  return absl::OkStatus();
}

void Transfer::Note(const absl::Status& status) {
  MutexLock lock(&mu_);
  status_.Update(status);
}

void Transfer::Release() {
  if (open_.fetch_sub(1) != 1) return;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    status = status_;
  }
  ended_(shared_from_this(), status);
}

}  // namespace ballast
