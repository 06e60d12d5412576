#include "client/cpp/job/lent_memory.h"

#include <algorithm>

#include "common/bytes/crc32c.h"

namespace ballast::client {

BufferLease::~BufferLease() {
  MutexLock lock(&mu_);
  while (lent_ > 0) released_.Wait(&mu_);
}

std::shared_ptr<const void> BufferLease::Lend() {
  {
    MutexLock lock(&mu_);
    ++lent_;
  }
  return {static_cast<const void*>(this), [this](const void*) { GiveBack(); }};
}

bool BufferLease::WaitReleased(std::chrono::nanoseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(&mu_);
  while (lent_ > 0) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds::zero()) return false;
    released_.WaitFor(&mu_, left);
  }
  return true;
}

void BufferLease::GiveBack() {
  MutexLock lock(&mu_);
  // Under the lock: the destructor may run as soon as it is given up.
  if (--lent_ == 0) released_.NotifyAll();
}

std::vector<TensorPiece> PiecesOf(const Layout& layout, uint32_t extent, size_t element_bytes,
                                  uint32_t offset, uint32_t length) {
  std::vector<TensorPiece> pieces;
  const Extent& info = layout.extents()[extent];
  const uint64_t end = static_cast<uint64_t>(offset) + length;
  if (end > info.elements * static_cast<uint64_t>(element_bytes) || offset % element_bytes != 0 ||
      length % element_bytes != 0) {
    return pieces;
  }
  const auto first = layout.runs().begin() + info.first_run;
  const auto last = first + info.run_count;
  const uint64_t first_element = offset / element_bytes;
  auto run = std::upper_bound(first, last, first_element, [](uint64_t element, const Run& r) {
    return element < r.extent_offset;
  });
  if (run != first) --run;
  const uint64_t end_element = end / element_bytes;
  for (uint64_t at = first_element; at < end_element && run != last; ++run) {
    const uint64_t skip = at - run->extent_offset;
    const uint64_t elements = std::min<uint64_t>(run->elements - skip, end_element - at);
    pieces.push_back({run->tensor, (run->tensor_offset + skip) * element_bytes,
                      static_cast<uint32_t>(elements * element_bytes)});
    at += elements;
  }
  return pieces;
}

uint64_t Scatter(const Payload& payload, const std::vector<TensorPiece>& pieces,
                 const std::vector<void*>& outs, uint32_t* crc) {
  uint64_t copied = 0;
  auto source = payload.pieces().begin();
  size_t source_offset = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    char* out = static_cast<char*>(outs[i]);
    for (size_t left = pieces[i].bytes; left > 0 && source != payload.pieces().end();) {
      const size_t step = std::min(left, source->bytes - source_offset);
      const char* const from = source->data + source_offset;
      if (out != nullptr) {
        *crc = Crc32cCopy(out, from, step, *crc);
        out += step;
        copied += step;
      } else {
        *crc = Crc32c(from, step, *crc);
      }
      left -= step;
      source_offset += step;
      if (source_offset == source->bytes) {
        ++source;
        source_offset = 0;
      }
    }
  }
  return copied;
}

}  // namespace ballast::client
