// AioHandle: reads files into a trainer's memory and writes it to files, past the page cache, many
// at a time. It is what DeepNVMe's aio_handle is (deepspeed/ops/csrc/aio, 0.19.8), over IoEngine.
// Comes from: client/python, bench. Goes to: common/io. Thread safety: thread-safe; a process
// forked from the owner must not use it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/aio/staging.h"
#include "client/aio/transfer.h"
#include "common/base/sync.h"
#include "common/io/engine_files.h"
#include "common/io/file.h"
#include "common/io/io_engine.h"
#include "common/threads/thread_executor.h"

namespace ballast {

// DeepNVMe's names and defaults. single_submit and overlap_events have no counterpart: the engine
// hands over as many blocks at once as there are, and keeps its queue full.
struct AioHandleOptions {
  uint64_t block_bytes = uint64_t{1} << 20;  // block_size: a multiple of kPageBytes
  int queue_depth = 128;                     // blocks under way of each of the parts
  int parallelism = 1;                       // intra_op_parallelism: parts of one operation
};

// Finished operations.
struct AioEnded {
  std::vector<uint64_t> numbers;
  std::vector<std::shared_ptr<void>> owners;  // of their memory
  absl::Status status;                        // the first error of them
};

class AioHandle {
 public:
  // Starts threads and queues, which live as long as the handle. INVALID_ARGUMENT, with the limit,
  // for options out of range; RESOURCE_EXHAUSTED when the system has no room for the queues.
  // `files` outlives the handle.
  static absl::StatusOr<std::unique_ptr<AioHandle>> Create(
      const AioHandleOptions& options, FileSystem* files = PosixFileSystem(),
      const IoBackendMaker& make_backend = MakeLibaioBackend);
  // Waits for all operations begun.
  ~AioHandle();
  AioHandle(const AioHandle&) = delete;
  AioHandle& operator=(const AioHandle&) = delete;

  // Begins an operation; returns its number, 1 for the first one. Any offset, length and alignment
  // works. The memory stays valid, and for a write unchanged, until Wait has returned true for the
  // number. `owner` of the memory: the handle keeps it until Take has returned the number, or to
  // its own end. A write keeps all other bytes of the file; a missing file is created, for this
  // user alone. Nothing is flushed. validate: reads the range again and compares. Errors, after
  // which nothing has begun: those of FileSystem::Open; OUT_OF_RANGE when a read passes the end of
  // the file.
  absl::StatusOr<uint64_t> StartRead(const TransferRange& range, bool validate,
                                     std::shared_ptr<void> owner = nullptr);
  absl::StatusOr<uint64_t> StartWrite(const TransferRange& range, bool validate,
                                      std::shared_ptr<void> owner = nullptr);

  // The number of the operation begun last; 0 for none.
  uint64_t last() const;

  // Waits until all operations up to number `last` have ended; false when `timeout` passes first.
  // It takes nothing, so a caller interrupted between Wait and Take loses nothing.
  bool Wait(uint64_t last, std::chrono::nanoseconds timeout);
  // Returns all operations ended since the earlier Take. Their status is one of file.h's, or
  // OUT_OF_RANGE when a file became shorter.
  AioEnded Take();

  // Whether an operation that Take has not returned reads or writes one of the `bytes` at `memory`.
  bool Uses(const char* memory, uint64_t bytes) const;

 private:
  struct Lane {
    std::unique_ptr<IoEngine> engine;
    std::unique_ptr<Staging> staging;
  };
  struct Operation {
    const char* memory = nullptr;
    uint64_t bytes = 0;
    std::shared_ptr<void> owner;
  };

  AioHandle(const AioHandleOptions& options, FileSystem* files, std::vector<Lane> lanes);
  uint64_t Start(IoKind kind, const TransferRange& range, bool validate, std::unique_ptr<File> file,
                 std::shared_ptr<void> owner);
  void Begin(const std::shared_ptr<Transfer>& transfer, int parts);
  int PartsOf(uint64_t bytes) const;
  void End(uint64_t number, const absl::Status& status);

  const AioHandleOptions options_;
  FileSystem* const files_;
  const std::vector<Lane> lanes_;

  mutable Mutex mu_;
  CondVar ended_changed_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Operation> operations_ ABSL_GUARDED_BY(mu_);  // not taken yet, by number
  std::set<uint64_t> open_ ABSL_GUARDED_BY(mu_);                   // not ended yet
  AioEnded ended_ ABSL_GUARDED_BY(mu_);                            // not taken yet; without owners
  ThreadExecutor threads_;  // Last: it uses all of the above.
};

}  // namespace ballast
