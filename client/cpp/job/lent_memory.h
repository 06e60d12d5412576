// The caller's tensors as bytes of extents: which memory a frame is sent from or lands in, and how
// long a transport still reads it. Nothing here copies outgoing bytes.
// Comes from: FrameIo. Goes to: the frame codec (out), the caller's weights (in).
// Thread safety: BufferLease is thread-safe, the functions are pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/bytes/payload.h"
#include "common/tensor/layout.h"

namespace ballast::client {

// Counts the frames whose caller memory a transport may still read.
class BufferLease {
 public:
  BufferLease() = default;
  // Waits until all memory is back: a transport's threads call into this object.
  ~BufferLease();
  BufferLease(const BufferLease&) = delete;
  BufferLease& operator=(const BufferLease&) = delete;

  // The owner of a body of lent memory. That memory stays as it is until the last copy of the
  // result is gone, on whatever thread.
  std::shared_ptr<const void> Lend();

  // True as soon as no owner is left; false when `timeout` passed first.
  bool WaitReleased(std::chrono::nanoseconds timeout);

 private:
  void GiveBack();

  Mutex mu_;
  CondVar released_;
  uint64_t lent_ ABSL_GUARDED_BY(mu_) = 0;
};

// A part of one tensor that a byte range of an extent covers.
struct TensorPiece {
  uint32_t tensor = 0;
  uint64_t tensor_offset = 0;  // bytes
  uint32_t bytes = 0;
};

// The pieces of bytes [offset, offset + length) of `extent`, ascending and gapless, for elements of
// `element_bytes` bytes (those of the wire, or 4 for fp32 state). Empty when the range does not lie
// inside the extent or cuts an element.
std::vector<TensorPiece> PiecesOf(const Layout& layout, uint32_t extent, size_t element_bytes,
                                  uint32_t offset, uint32_t length);

// Writes `payload` to memory: piece i goes to outs[i], or nowhere if null. Returns the bytes
// copied. The pieces' bytes must add up to those of the payload. Continues `*crc` over the whole
// payload during the copy, at no extra cost: the caller can verify the bytes only after they have
// been written.
uint64_t Scatter(const Payload& payload, const std::vector<TensorPiece>& pieces,
                 const std::vector<void*>& outs, uint32_t* crc);

}  // namespace ballast::client
