// Huge-page memory: Arena is one big mapping, BufferPool hands out fixed-size pieces of such
// mappings. 4 KiB pages cost copies and direct I/O a factor of two to three; these do not.
// Comes from: server/state, server/extents, server/service (outgoing weights). Goes to:
// kernels, transports, disk I/O.
// Thread safety: Arena is a plain value; BufferPool and BufferRef's counts are thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

namespace ballast {

// An anonymous private mapping, aligned to 2 MiB, zero at first. Its whole pieces of 2 MiB are
// advised to use huge pages; the rest has small ones, so that an arena of few bytes takes no 2 MiB
// of memory. Move-only; unmapped by the destructor.
class Arena {
 public:
  static constexpr size_t kAlignmentBytes = size_t{2} << 20;

  // An arena of no bytes.
  Arena() = default;
  // Maps `bytes` rounded up to 2 MiB; pages get memory at their first touch. INVALID_ARGUMENT when
  // `bytes` is 0; RESOURCE_EXHAUSTED, with the sizes, when the system refuses the mapping.
  static absl::StatusOr<Arena> Create(size_t bytes);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  // Keeps every page in memory from its first touch on, so that none is swapped out or moved while
  // a disk fills it. False when the process may not lock so much (RLIMIT_MEMLOCK); then everything
  // works, without locked pages.
  bool LockTouchedPages();
  // Gives all pages memory now, on this thread, where the system can (Linux 5.14); else they get it
  // at their first touch as ever.
  void TouchAll() const { Touch(bytes_); }
  // The same for the pages of the first `bytes` of the arena, at most bytes().
  void Touch(size_t bytes) const;

  char* data() const { return data_; }
  // The size asked for, rounded up to 2 MiB.
  size_t bytes() const { return bytes_; }

 private:
  Arena(char* data, size_t bytes) : data_(data), bytes_(bytes) {}

  char* data_ = nullptr;
  size_t bytes_ = 0;
};

class BufferPool;

namespace internal {

struct BufferPoolState;

// Book-keeping of one buffer; lives in the pool's state, outside the buffer's memory.
struct BufferControl {
  char* data = nullptr;
  std::atomic<int> refs{0};
  std::shared_ptr<BufferPoolState> state;  // Set while the buffer is out: keeps the pool alive.
  BufferControl* next_free = nullptr;
};

}  // namespace internal

// A counted reference to one buffer of a pool; copying shares the buffer. The last reference gives
// it back, from any thread, also after the BufferPool object is gone.
class BufferRef {
 public:
  BufferRef() = default;
  ~BufferRef() { Reset(); }
  BufferRef(const BufferRef& other) : control_(other.control_), bytes_(other.bytes_) { AddRef(); }
  BufferRef(BufferRef&& other) noexcept
      : control_(std::exchange(other.control_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(control_, other.control_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  explicit operator bool() const { return control_ != nullptr; }
  // Start of the buffer, aligned to 64 bytes; null for an empty reference.
  char* data() const { return control_ != nullptr ? control_->data : nullptr; }
  // The pool's buffer_bytes; 0 for an empty reference.
  size_t bytes() const { return bytes_; }

  // Drops this reference; it is empty afterwards.
  void Reset();

  // The same reference as a shared_ptr to the buffer's first byte, for owners that want one.
  // Allocates a control block.
  std::shared_ptr<char> ToShared() const;

 private:
  friend class BufferPool;
  BufferRef(internal::BufferControl* control, size_t bytes) : control_(control), bytes_(bytes) {}
  void AddRef() {
    if (control_ != nullptr) control_->refs.fetch_add(1, std::memory_order_relaxed);
  }

  internal::BufferControl* control_ = nullptr;
  size_t bytes_ = 0;
};

// Buffers of one size, carved from arenas, which are mapped as needed and kept until the pool and
// all its buffers are gone.
class BufferPool {
 public:
  struct Options {
    size_t buffer_bytes = 0;               // Size of each buffer, >= 1.
    size_t max_buffers = 0;                // Limit of the pool, >= 1.
    size_t grow_bytes = size_t{32} << 20;  // About how much to map at a time.
  };

  // INVALID_ARGUMENT when a size is 0 or the limit does not fit the address space. Maps nothing
  // yet.
  static absl::StatusOr<BufferPool> Create(const Options& options);
  ~BufferPool();
  BufferPool(BufferPool&&) noexcept;
  BufferPool& operator=(BufferPool&&) noexcept;

  // A buffer for the caller alone; its bytes are those of the last user (zero at first use).
  // RESOURCE_EXHAUSTED, with the numbers, when max_buffers are out or memory is refused.
  absl::StatusOr<BufferRef> Acquire();
  // Maps room for at least `buffers` (at most max_buffers) and gives these memory, see
  // Arena::Touch. Best effort: Acquire asks again for memory that the system refuses now.
  void Prepare(size_t buffers);

  size_t buffer_bytes() const;
  // Buffers in use now.
  size_t in_use() const;
  // Bytes mapped so far.
  size_t mapped_bytes() const;

 private:
  explicit BufferPool(std::shared_ptr<internal::BufferPoolState> state);

  std::shared_ptr<internal::BufferPoolState> state_;
};

}  // namespace ballast
