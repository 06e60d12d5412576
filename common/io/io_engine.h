// IoEngine: reads, writes and flushes of many parts of the server with one queue to the device. It
// cuts requests into blocks, keeps a bounded number of bytes under way, takes urgent requests first
// and as many bytes of reads as of writes otherwise, and looks at the result of every block.
// Comes from: server/tier, bench, tools. Goes to: an IoBackend (libaio_backend.cc; a
// fault-injecting one in tests), and through it to the kernel. Thread safety: IoEngine is
// thread-safe. Completions run on the engine's thread, one at a time, and must not wait for it. An
// IoBackend is used as its methods say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/sync.h"
#include "common/io/io_schedule.h"
#include "common/threads/thread_executor.h"

namespace ballast {

// One block as a backend gets it. `id` comes back with its event.
struct IoBlock {
  IoKind kind = IoKind::kRead;
  int descriptor = -1;
  uint64_t offset = 0;
  char* data = nullptr;
  size_t bytes = 0;
  uint32_t id = 0;
};

struct IoEvent {
  uint32_t id = 0;
  int64_t result = 0;  // bytes transferred, or a negative errno value
};

// Carries blocks to the device. Submit is called by one thread at a time, Reap by another.
class IoBackend {
 public:
  virtual ~IoBackend() = default;
  // Takes the first blocks of `blocks`, in order; returns how many: fewer than all when the device
  // takes no more now, or a negative errno value when it refuses the first one. No more blocks are
  // under way than the depth at its creation.
  virtual int Submit(absl::Span<const IoBlock> blocks) = 0;
  // Waits for at least one event of the blocks under way, of which there is at least one; returns
  // how many it has put into `events`.
  virtual int Reap(absl::Span<IoEvent> events) = 0;
};

// Linux native asynchronous I/O with one context for the process' lifetime. RESOURCE_EXHAUSTED when
// the system has no room for `depth` (fs.aio-max-nr), INTERNAL for other refusals.
absl::StatusOr<std::unique_ptr<IoBackend>> MakeLibaioBackend(int depth);

struct IoOptions {
  size_t block_bytes = size_t{1} << 20;  // of one block at most; ds_config "block_size"
  int queue_depth = 8;                   // blocks under way at most; ds_config "queue_depth"
};

class IoEngine {
 public:
  // Starts the engine's thread. INVALID_ARGUMENT for a block size other than a multiple of 4096
  // bytes or a depth outside 1 to 4096.
  static absl::StatusOr<std::unique_ptr<IoEngine>> Create(const IoOptions& options,
                                                          std::unique_ptr<IoBackend> backend);
  // Waits for all submitted requests.
  ~IoEngine();
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;

  // Begins `request` as soon as there is room. Its memory and file stay valid until `done` has run,
  // exactly once, with the first error of its blocks (file.h says which; also OUT_OF_RANGE when a
  // read passes the end of the file). A request of no bytes, other than a sync, completes, too.
  // Blocks of one request, and requests, are under way in any order: a caller that needs an order
  // waits.
  void Submit(IoRequest request);

  // Submit, and wait. Not from a completion.
  absl::Status Run(IoRequest request);

  // Blocks under way and waiting, for metrics and tests.
  size_t pending() const;

 private:
  IoEngine(const IoOptions& options, std::unique_ptr<IoBackend> backend);
  void Loop();
  // Hands blocks to the backend until it is full. A refused block ends at once.
  void Fill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnEvent(const IoEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const IoOptions options_;
  const std::unique_ptr<IoBackend> backend_;

  mutable Mutex mu_;
  CondVar changed_;
  IoSchedule schedule_ ABSL_GUARDED_BY(mu_);
  std::vector<IoPiece> under_way_ ABSL_GUARDED_BY(mu_);  // by id
  std::vector<uint32_t> free_ids_ ABSL_GUARDED_BY(mu_);
  std::vector<IoBlock> taken_ ABSL_GUARDED_BY(mu_);    // chosen, not handed over yet
  std::vector<IoDone> finished_ ABSL_GUARDED_BY(mu_);  // to be told
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  ThreadExecutor thread_;  // Last: it uses all of the above.
};

}  // namespace ballast
