// IoBackend over Linux native asynchronous I/O. The context lives as long as the backend: setting
// one up again for every transfer costs a tenth of the bandwidth.
// Comes from: IoEngine. Goes to: the kernel. Thread safety: see io_engine.h.
#include <libaio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/io_engine.h"

namespace ballast {
namespace {

constexpr size_t kBlocksAtATime = 64;

class LibaioBackend : public IoBackend {
 public:
  LibaioBackend(io_context_t context, int depth) : context_(context), blocks_(depth) {}
  ~LibaioBackend() override { io_destroy(context_); }

  int Submit(absl::Span<const IoBlock> blocks) override {
    std::array<iocb*, kBlocksAtATime> batch;
    const size_t count = std::min(blocks.size(), batch.size());
    for (size_t i = 0; i < count; ++i) {
      const IoBlock& block = blocks[i];
      iocb* const cb = &blocks_[block.id];
      switch (block.kind) {
        case IoKind::kRead:
          io_prep_pread(cb, block.descriptor, block.data, block.bytes, Offset(block));
          break;
        case IoKind::kWrite:
          io_prep_pwrite(cb, block.descriptor, block.data, block.bytes, Offset(block));
          break;
        case IoKind::kSync:
          io_prep_fdsync(cb, block.descriptor);
          break;
      }
      cb->data = reinterpret_cast<void*>(static_cast<uintptr_t>(block.id));
      batch[i] = cb;
    }
    return io_submit(context_, static_cast<long>(count), batch.data());
  }

  int Reap(absl::Span<IoEvent> events) override {
    std::array<io_event, kBlocksAtATime> batch;
    const auto most = static_cast<long>(std::min(events.size(), batch.size()));
    int count = io_getevents(context_, 1, most, batch.data(), nullptr);
    if (count < 0) return 0;  // Interrupted; the caller comes again.
    for (int i = 0; i < count; ++i) {
      events[i] = {static_cast<uint32_t>(reinterpret_cast<uintptr_t>(batch[i].data)),
                   static_cast<int64_t>(batch[i].res)};
    }
    return count;
  }

 private:
  static long long Offset(const IoBlock& block) { return static_cast<long long>(block.offset); }

  const io_context_t context_;
  std::vector<iocb> blocks_;  // by id
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoBackend>> MakeLibaioBackend(int depth) {
  io_context_t context = nullptr;
  const int result = io_setup(depth, &context);
  if (result == 0) return std::make_unique<LibaioBackend>(context, depth);
  const std::string why = std::strerror(-result);
  if (result == -EAGAIN) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system has no room for ", depth, " asynchronous requests (", why,
                     "); raise the sysctl fs.aio-max-nr or lower the queue depth"));
  }
  return absl::InternalError(
      absl::StrCat("asynchronous I/O with ", depth, " requests is refused: ", why));
}

}  // namespace ballast
