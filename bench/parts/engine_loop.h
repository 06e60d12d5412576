// The I/O engine on one large file, with nothing between: the raw loop that aio_bench holds against
// fio, and tier_bench its sweeps against.
// Comes from: aio_bench, tier_bench. Goes to: common/io.
// Thread safety: one thread; the engine has its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "bench/parts/harness.h"
#include "bench/parts/raw_disk.h"
#include "common/io/arena.h"
#include "common/io/io_engine.h"
#include "common/io/io_stream.h"

namespace ballast::bench {

// The reads and writes of a turn of the loop.
struct LoopOptions {
  uint64_t block_bytes = uint64_t{1} << 20;
  int depth = 16;        // blocks under way
  double seconds = 0.5;  // of one turn
  uint64_t file_bytes = uint64_t{1} << 30;
};

// --block, --depth, --seconds and --file.
void AddLoopFlags(Flags* flags, LoopOptions* options);

class EngineLoop {
 public:
  // Makes a file of random bytes in `directory`, O_DIRECT, and an engine with memory for
  // the blocks under way. Errors: INTERNAL, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<EngineLoop>> Create(const std::string& directory,
                                                            const LoopOptions& options);
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Bytes per second of one turn.
  absl::StatusOr<double> Run(IoMix mix);
  // Bytes per second of fio on the same file, with the same blocks, for as long.
  absl::StatusOr<double> RunFio(const Fio& fio, FioMode mode) const;

  RawFile& file() { return *file_; }
  int descriptor() const { return descriptor_; }
  IoEngine& engine() { return *engine_; }
  // Block memory, random at first.
  Arena& memory() { return memory_; }

 private:
  EngineLoop(const LoopOptions& options, std::unique_ptr<RawFile> file, Arena memory)
      : options_(options), file_(std::move(file)), memory_(std::move(memory)) {}

  const LoopOptions options_;
  const std::unique_ptr<RawFile> file_;
  Arena memory_;
  int descriptor_ = -1;
  std::unique_ptr<IoEngine> engine_;
};

}  // namespace ballast::bench
