#include "bench/parts/engine_loop.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "common/base/status_macros.h"

namespace ballast::bench {
void AddLoopFlags(Flags* flags, LoopOptions* options) {
  flags->Multiple("--block", uint64_t{4096}, uint64_t{64} << 20, &options->block_bytes);
  flags->Number("--depth", 2, 256, &options->depth);
  flags->Number("--seconds", 0.1, 3600.0, &options->seconds);
  flags->Multiple("--file", uint64_t{128} << 20, uint64_t{1} << 40, &options->file_bytes);
}

absl::StatusOr<std::unique_ptr<EngineLoop>> EngineLoop::Create(const std::string& directory,
                                                               const LoopOptions& options) {
  BALLAST_ASSIGN_OR_RETURN(auto file, RawFile::Create(directory + "/file", options.file_bytes));
  BALLAST_ASSIGN_OR_RETURN(
      Arena memory, Arena::Create(options.block_bytes * static_cast<uint64_t>(options.depth)));
  FillRandomBytes(memory.data(), memory.bytes(), 1);
  std::unique_ptr<EngineLoop> loop(new EngineLoop(options, std::move(file), std::move(memory)));
  loop->descriptor_ = open(loop->file_->path().c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (loop->descriptor_ < 0) return SystemError("cannot open " + loop->file_->path());
  BALLAST_ASSIGN_OR_RETURN(auto backend, MakeLibaioBackend(options.depth));
  BALLAST_ASSIGN_OR_RETURN(loop->engine_, IoEngine::Create({.block_bytes = options.block_bytes,
                                                            .queue_depth = options.depth},
                                                           std::move(backend)));
  return loop;
}

EngineLoop::~EngineLoop() {
  engine_.reset();
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<double> EngineLoop::Run(IoMix mix) {
  return MeasureIo(engine_.get(),
                   {.descriptor = descriptor_,
                    .path = file_->path(),
                    .file_bytes = file_->bytes(),
                    .block_bytes = options_.block_bytes,
                    .depth = options_.depth,
                    .mix = mix,
                    .memory = memory_.data(),
                    .seconds = options_.seconds},
                   Now);
}

absl::StatusOr<double> EngineLoop::RunFio(const Fio& fio, FioMode mode) const {
  return fio.Run(mode, file_->path(), file_->bytes(), options_.block_bytes, options_.depth,
                 options_.seconds);
}

}  // namespace ballast::bench
