#include "common/io/io_schedule.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/file.h"
#include "common/io/file_error.h"

namespace ballast {
namespace {

absl::Status PieceError(const IoPiece& piece, int error) {
  const IoRequest& request = piece.of->request;
  if (request.kind == IoKind::kSync) return FileError(error, "sync", request.path);
  const std::string where =
      absl::StrCat(piece.bytes, " bytes at offset ", request.offset + piece.at, " of");
  return request.kind == IoKind::kRead
             ? FileReadError(error, absl::StrCat("read ", where), request.path)
             : FileError(error, absl::StrCat("write ", where), request.path);
}

}  // namespace

std::deque<IoPiece>* IoSchedule::QueueOf(const IoRequest& request) {
  return request.urgent ? &urgent_ : &queues_[static_cast<size_t>(request.kind)];
}

void IoSchedule::Add(IoRequest request) {
  const size_t bytes = request.kind == IoKind::kSync ? 0 : request.bytes;
  auto progress = std::make_shared<IoProgress>();
  progress->request = std::move(request);
  std::deque<IoPiece>* const queue = QueueOf(progress->request);
  size_t at = 0;
  do {
    const size_t take = std::min(block_bytes_, bytes - at);
    queue->push_back({progress, at, take});
    ++progress->open_pieces;
    at += take;
  } while (at < bytes);
}

std::optional<IoPiece> IoSchedule::Next() {
  auto& reads = queues_[static_cast<size_t>(IoKind::kRead)];
  auto& writes = queues_[static_cast<size_t>(IoKind::kWrite)];
  auto& syncs = queues_[static_cast<size_t>(IoKind::kSync)];
  std::deque<IoPiece>* from = nullptr;
  if (!urgent_.empty()) {
    from = &urgent_;
  } else if (!syncs.empty()) {
    from = &syncs;
  } else if (reads.empty() || writes.empty()) {
    from = reads.empty() ? &writes : &reads;
  } else {
    from = bytes_under_way(IoKind::kRead) <= bytes_under_way(IoKind::kWrite) ? &reads : &writes;
  }
  if (from->empty()) return std::nullopt;
  IoPiece piece = std::move(from->front());
  from->pop_front();
  under_way_[static_cast<size_t>(piece.of->request.kind)] += piece.bytes;
  return piece;
}

void IoSchedule::Return(IoPiece piece) {
  under_way_[static_cast<size_t>(piece.of->request.kind)] -= piece.bytes;
  QueueOf(piece.of->request)->push_front(std::move(piece));
}

std::optional<IoDone> IoSchedule::EndIfWhole(const IoPiece& piece) {
  if (--piece.of->open_pieces != 0) return std::nullopt;
  return IoDone{std::move(piece.of->request.done), std::move(piece.of->status)};
}

std::optional<IoDone> IoSchedule::Finish(IoPiece piece, int64_t result) {
  IoProgress& progress = *piece.of;
  if (result == -EINTR || result == -EAGAIN) {
    Return(std::move(piece));
    return std::nullopt;
  }
  under_way_[static_cast<size_t>(progress.request.kind)] -= piece.bytes;
  // A finished block, also one of no bytes; a flush returns 0.
  if (result >= 0 && static_cast<uint64_t>(result) >= piece.bytes) return EndIfWhole(piece);
  absl::Status error;
  // Direct I/O continues at a page's start only: bytes after that start are transferred once more.
  const size_t whole = result > 0 ? static_cast<size_t>(result) / kPageBytes * kPageBytes : 0;
  if (result < 0) {
    error = PieceError(piece, static_cast<int>(-result));
  } else if (whole == 0 && progress.request.kind == IoKind::kRead) {
    error = absl::OutOfRangeError(absl::StrCat(
        "cannot read ", piece.bytes, " bytes at offset ", progress.request.offset + piece.at,
        " of ", progress.request.path, ": the file ends after ", result, " of them"));
  } else if (whole == 0) {
    error =
        PieceError(piece, ENOSPC);  // A write of no bytes has no errno; the cause is a full device.
  }
  if (error.ok()) {
    piece.at += whole;
    piece.bytes -= whole;
    QueueOf(progress.request)->push_front(std::move(piece));
    return std::nullopt;
  }
  if (progress.status.ok()) progress.status = std::move(error);
  return EndIfWhole(piece);
}

size_t IoSchedule::waiting() const {
  size_t count = urgent_.size();
  for (const auto& queue : queues_) count += queue.size();
  return count;
}

}  // namespace ballast
