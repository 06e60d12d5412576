// Chooses the next frame for one server: push order, window, credits and resending, without any
// I/O. Comes from: ServerShare (a step, an upload, acks, refusals). Goes to: ServerLink, whose
// FrameIo forms the frame.
// Thread safety: none; lives under the session's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/reason.h"
#include "common/tensor/layout.h"

namespace ballast::client {

// One frame to send: `length` bytes of `extent` from byte `offset` on.
struct FrameRange {
  uint32_t extent = 0;
  uint32_t position = 0;  // of the extent in the list given to Start
  uint32_t offset = 0;
  uint32_t length = 0;
};

struct SendLimits {
  uint32_t chunk_bytes = 1 << 20;
  uint64_t credit_bytes = 16 << 20;  // most bytes sent and not yet acknowledged
  uint32_t window_extents = 64;      // extents from the window's base on that may be sent
};

// One server's share of a round's gradients or of the initial weights.
class SendPlan {
 public:
  // `layout` outlives the plan and may grow between two Starts.
  SendPlan(const Layout* layout, const SendLimits& limits) : layout_(layout), limits_(limits) {}

  // Plans the frames of `extents`, in this order, for `round`. `present`: which tensors take part;
  // empty for all. `windowed`: whether the window holds (gradients) or not (initial weights).
  // `left_out`: of `extents`, those of which no frame is sent; they count in positions all the
  // same. Whatever was left of the plan before is dropped; credits carry on.
  void Start(uint64_t round, std::vector<uint32_t> extents, std::vector<bool> present,
             bool windowed, const std::vector<uint32_t>& left_out = {});

  // As Start with a window, for a round that went over another stream before: `complete` is left
  // out. The server may have got more of the old stream than it knew when it named
  // `complete`, so a frame that comes after the round's collecting (ROUND_CLOSED) is no error.
  void Resume(uint64_t round, std::vector<uint32_t> extents, std::vector<bool> present,
              const std::vector<uint32_t>& complete);

  // The job has grown, and the window with it. 0: an older server, which keeps the one it had.
  void SetWindow(uint32_t extents) {
    if (extents != 0) limits_.window_extents = extents;
  }

  // The stream ended; another one follows. Nothing is left to send until the next Start or Resume.
  void OnNewStream();

  // Grows whenever a plan begins or ends: frames taken of an older one are no longer wanted.
  uint64_t number() const { return number_; }

  // Takes the next frame that window and credits allow, and charges its bytes; nullopt when there
  // is none now. A frame bigger than all credit is let through once nothing is outstanding.
  std::optional<FrameRange> Next();

  // Progress at the server: all payload bytes taken off the stream since it opened, and the window
  // of `round`. Acks may be merged, and may speak of a round before.
  void OnAck(uint64_t received_bytes, uint64_t round, uint32_t window_base);

  // A frame did not enter its register. OUT_OF_WINDOW: it is sent again when the window has moved
  // since it was sent (or by RetryRefused); the ack of that may overtake the refusal. BAD_CHECKSUM:
  // it is sent again once. DUPLICATE, and answers to rounds before: nothing; after Resume
  // ROUND_CLOSED, too. Error otherwise, with `reason`: the step cannot succeed.
  absl::Status OnRefused(Reason reason, uint64_t round, uint32_t extent, uint32_t offset,
                         const std::string& message);

  // Lets refused frames go out again although the window has not moved. Called now and then, so
  // that a lost movement of the window cannot stop a round for ever.
  void RetryRefused();

  // Every frame has been handed out, and none waits to be sent again.
  bool all_sent() const { return position_ == extents_.size() && resend_.empty(); }
  // As all_sent, and the server has taken every byte off the stream.
  bool all_received() const { return all_sent() && received_bytes_ >= sent_bytes_; }
  uint64_t sent_bytes() const { return sent_bytes_; }  // since the stream opened

 private:
  struct Resend {
    FrameRange frame;
    uint32_t after_base;  // waits until the window's base has passed this one, of when it was sent
    bool waits;
  };
  using FrameKey = std::pair<uint32_t, uint32_t>;  // extent, offset

  bool InWindow(uint32_t position) const;
  bool HasCredit(uint32_t bytes) const;
  // Plans the chunks of the extent at position_.
  void OpenExtent();
  // Moves on to the next extent with frames.
  void SkipFinishedExtents();
  void NoteSent(const FrameRange& frame);
  std::optional<FrameRange> FindSent(uint32_t extent, uint32_t offset) const;

  const Layout* const layout_;
  SendLimits limits_;
  uint64_t number_ = 0;
  uint64_t round_ = 0;
  bool windowed_ = false;
  bool resumed_ = false;
  uint32_t window_base_ = 0;
  uint64_t acked_round_ = 0;  // of the newest ack, which may come before the Start of its round
  uint32_t acked_base_ = 0;
  uint64_t sent_bytes_ = 0;
  uint64_t received_bytes_ = 0;

  std::vector<uint32_t> extents_;
  std::vector<bool> present_;
  std::set<uint32_t> left_out_;     // of extents_
  size_t position_ = 0;             // next extent to send from
  std::vector<ChunkRange> chunks_;  // of that extent
  size_t chunk_ = 0;
  std::deque<Resend> resend_;
  std::map<FrameKey, int> checksum_failures_;
  std::map<FrameKey, uint32_t> base_when_sent_;  // window_base_ then, of every frame sent
};

}  // namespace ballast::client
