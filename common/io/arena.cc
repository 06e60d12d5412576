// Huge-page arenas and buffer pools; see arena.h.
// Thread safety: a pool's state is under one mutex; reference counts are atomics.
#include "common/io/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "common/bytes/round_up.h"
#include "common/text/units.h"

namespace ballast {
namespace {

constexpr size_t kBufferAlignmentBytes = 64;

absl::Status Refused(size_t bytes, const char* why) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot map an arena of ", FormatBytes(bytes), " (", bytes, " bytes): ", why,
                   "; free memory, raise the memory limit, or lower the configured budget"));
}

// Null, with errno, when there is no room.
char* Map(size_t bytes) {
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
}

// The aligned `bytes` of a mapping longer by one alignment; unmaps the rest around them.
char* CutAligned(char* begin, size_t bytes) {
  constexpr size_t kAlignment = Arena::kAlignmentBytes;
  const size_t head = (kAlignment - reinterpret_cast<uintptr_t>(begin) % kAlignment) % kAlignment;
  if (head > 0) munmap(begin, head);
  munmap(begin + head + bytes, kAlignment - head);
  return begin + head;
}

}  // namespace

absl::StatusOr<Arena> Arena::Create(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("an arena needs at least 1 byte, got 0");
  if (bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max()) / 2) {
    return Refused(bytes, "more than the address space");
  }
  const size_t rounded = RoundUp(bytes, kAlignmentBytes);
  char* begin = Map(rounded);
  if (begin != nullptr && reinterpret_cast<uintptr_t>(begin) % kAlignmentBytes != 0) {
    // Kernels before 6.7 do not align: map one alignment more than needed, so that an aligned range
    // lies inside, and unmap the rest.
    munmap(begin, rounded);
    begin = Map(rounded + kAlignmentBytes);
    if (begin != nullptr) begin = CutAligned(begin, rounded);
  }
  if (begin == nullptr) return Refused(bytes, std::strerror(errno));
  // Advice only: without huge pages everything still works, slower.
  const size_t whole = bytes / kAlignmentBytes * kAlignmentBytes;
  if (whole > 0) madvise(begin, whole, MADV_HUGEPAGE);
  // The first byte of the rest would take 2 MiB of memory: thousands of times a small job's plan.
  if (whole < rounded) madvise(begin + whole, rounded - whole, MADV_NOHUGEPAGE);
  return Arena(begin, rounded);
}

bool Arena::LockTouchedPages() { return mlock2(data_, bytes_, MLOCK_ONFAULT) == 0; }

void Arena::Touch([[maybe_unused]] size_t bytes) const {
#ifdef MADV_POPULATE_WRITE
  madvise(data_, bytes, MADV_POPULATE_WRITE);
#endif
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  Arena old(std::move(other));
  std::swap(data_, old.data_);
  std::swap(bytes_, old.bytes_);
  return *this;
}

namespace internal {

// Shared by the pool object and every buffer in use; the last of them frees the arenas.
struct BufferPoolState {
  explicit BufferPoolState(const BufferPool::Options& o)
      : options(o), stride(RoundUp(o.buffer_bytes, kBufferAlignmentBytes)) {}

  // Maps one more arena and puts its buffers on the free list.
  absl::Status Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const size_t left = options.max_buffers - controls.size();
    const size_t wanted = std::clamp<size_t>(options.grow_bytes / stride, 1, left);
    BALLAST_ASSIGN_OR_RETURN(Arena arena, Arena::Create(wanted * stride));
    const size_t count = std::min(left, arena.bytes() / stride);
    for (size_t i = count; i-- > 0;) {
      BufferControl& control = controls.emplace_back();
      control.data = arena.data() + i * stride;
      control.next_free = free_list;
      free_list = &control;
    }
    mapped_bytes += arena.bytes();
    arenas.push_back(std::move(arena));
    return absl::OkStatus();
  }

  const BufferPool::Options options;
  const size_t stride;
  Mutex mu;
  // Deques: addresses must not change.
  std::deque<Arena> arenas ABSL_GUARDED_BY(mu);
  std::deque<BufferControl> controls ABSL_GUARDED_BY(mu);
  BufferControl* free_list ABSL_GUARDED_BY(mu) = nullptr;
  size_t in_use ABSL_GUARDED_BY(mu) = 0;
  size_t mapped_bytes ABSL_GUARDED_BY(mu) = 0;
};

}  // namespace internal

void BufferRef::Reset() {
  internal::BufferControl* const control = std::exchange(control_, nullptr);
  bytes_ = 0;
  if (control == nullptr) return;
  if (control->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // Keeps the state until after its mutex is released; this may be its last holder.
  const std::shared_ptr<internal::BufferPoolState> state = std::move(control->state);
  MutexLock lock(&state->mu);
  control->next_free = state->free_list;
  state->free_list = control;
  --state->in_use;
}

std::shared_ptr<char> BufferRef::ToShared() const {
  return std::shared_ptr<char>(data(), [ref = *this](char*) mutable { ref.Reset(); });
}

absl::StatusOr<BufferPool> BufferPool::Create(const Options& options) {
  if (options.buffer_bytes == 0 || options.max_buffers == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a buffer pool needs buffer_bytes >= 1 and max_buffers >= 1, got ",
                     options.buffer_bytes, " and ", options.max_buffers));
  }
  const size_t most = static_cast<size_t>(std::numeric_limits<int64_t>::max()) / 2;
  if (options.buffer_bytes > most - kBufferAlignmentBytes ||
      options.max_buffers > most / RoundUp(options.buffer_bytes, kBufferAlignmentBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a buffer pool of ", options.max_buffers, " x ", options.buffer_bytes,
                     " bytes does not fit the address space; lower max_buffers"));
  }
  return BufferPool(std::make_shared<internal::BufferPoolState>(options));
}

BufferPool::BufferPool(std::shared_ptr<internal::BufferPoolState> state)
    : state_(std::move(state)) {}
BufferPool::~BufferPool() = default;
BufferPool::BufferPool(BufferPool&&) noexcept = default;
BufferPool& BufferPool::operator=(BufferPool&&) noexcept = default;

absl::StatusOr<BufferRef> BufferPool::Acquire() {
  MutexLock lock(&state_->mu);
  if (state_->free_list == nullptr) {
    if (state_->in_use == state_->options.max_buffers) {
      return absl::ResourceExhaustedError(
          absl::StrCat("all ", state_->options.max_buffers, " buffers of ",
                       FormatBytes(state_->options.buffer_bytes),
                       " are in use; wait until one is released, or raise the pool's limit"));
    }
    BALLAST_RETURN_IF_ERROR(state_->Grow());
  }
  internal::BufferControl* const control = state_->free_list;
  state_->free_list = control->next_free;
  ++state_->in_use;
  control->state = state_;
  control->refs.store(1, std::memory_order_relaxed);
  return BufferRef(control, state_->options.buffer_bytes);
}

void BufferPool::Prepare(size_t buffers) {
  for (;;) {
    const Arena* made = nullptr;
    size_t missing = 0;
    {
      MutexLock lock(&state_->mu);
      const size_t wanted = std::min(buffers, state_->options.max_buffers);
      if (state_->controls.size() >= wanted) return;
      missing = wanted - state_->controls.size();
      if (!state_->Grow().ok()) return;
      made = &state_->arenas.back();
    }
    // Buffers are taken from the front of an arena.
    made->Touch(std::min(missing * state_->stride, made->bytes()));
  }
}

size_t BufferPool::buffer_bytes() const { return state_->options.buffer_bytes; }

size_t BufferPool::in_use() const {
  MutexLock lock(&state_->mu);
  return state_->in_use;
}

size_t BufferPool::mapped_bytes() const {
  MutexLock lock(&state_->mu);
  return state_->mapped_bytes;
}

}  // namespace ballast
