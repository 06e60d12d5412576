// IoSchedule: which block goes to the device next, and the meaning of a block's result for its
// request. Pure: no thread, clock or I/O.
// Comes from: IoEngine. Goes to: IoEngine. Thread safety: thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ballast {

enum class IoKind : uint8_t { kRead, kWrite, kSync };

// One transfer of whole pages, or a flush of everything that completed before.
struct IoRequest {
  IoKind kind = IoKind::kRead;
  int descriptor = -1;  // of a file opened with O_DIRECT, or of any other
  std::string path;     // for errors
  uint64_t offset = 0;  // bytes; this and `data` and `bytes` as the descriptor wants them
  void* data = nullptr;
  size_t bytes = 0;
  bool urgent = false;  // before all others: a vote waits for it
  std::function<void(const absl::Status&)> done;
};

// A request under way, shared by its pieces.
struct IoProgress {
  IoRequest request;
  size_t open_pieces = 0;
  absl::Status status;  // the first error
};

// A part of a request, at most one block long. The rest of a short transfer is a piece again.
struct IoPiece {
  std::shared_ptr<IoProgress> of;
  uint64_t at = 0;  // bytes from the request's start
  size_t bytes = 0;
};

// A finished request and how it ended.
struct IoDone {
  std::function<void(const absl::Status&)> done;
  absl::Status status;
};

class IoSchedule {
 public:
  explicit IoSchedule(size_t block_bytes) : block_bytes_(block_bytes) {}

  void Add(IoRequest request);
  // The next piece for the device: urgent ones first, in order; then of the kind of which fewer
  // bytes are under way. None when nothing waits.
  std::optional<IoPiece> Next();
  // Takes back a piece that Next gave and the device did not take; it is the next of its kind.
  void Return(IoPiece piece);
  // The result of a piece that Next gave: bytes transferred or a negative errno value. Returns the
  // request's end once nothing of it is left. Interrupted and short transfers wait again.
  std::optional<IoDone> Finish(IoPiece piece, int64_t result);

  size_t waiting() const;
  uint64_t bytes_under_way(IoKind kind) const { return under_way_[static_cast<size_t>(kind)]; }

 private:
  std::deque<IoPiece>* QueueOf(const IoRequest& request);
  static std::optional<IoDone> EndIfWhole(const IoPiece& piece);

  const size_t block_bytes_;
  std::deque<IoPiece> urgent_;
  std::array<std::deque<IoPiece>, 3> queues_;  // by kind
  std::array<uint64_t, 3> under_way_ = {};     // bytes by kind
};

}  // namespace ballast
