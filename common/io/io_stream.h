// MeasureIo: how many bytes per second a device takes with a number of blocks under way.
// Comes from: bench/aio_bench, ballastctl tune. Goes to: IoEngine.
// Thread safety: a call owns its engine's queue; run one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/io/io_engine.h"

namespace ballast {

enum class IoMix : uint8_t { kRead, kWrite, kMixed };  // mixed: every second block is read

struct IoStream {
  int descriptor = -1;       // of a file of `file_bytes` bytes, all of them written before
  std::string path;          // for errors
  uint64_t file_bytes = 0;   // blocks go round and round in it
  uint64_t block_bytes = 0;  // at most the engine's
  int depth = 0;             // blocks under way
  IoMix mix = IoMix::kRead;
  char* memory = nullptr;  // depth x block_bytes, aligned as the descriptor wants
  double seconds = 0;      // no block begins later
};

// Bytes per second of `stream`; `now` gives seconds. Errors: those of IoEngine::Submit.
absl::StatusOr<double> MeasureIo(IoEngine* engine, const IoStream& stream,
                                 const std::function<double()>& now);

}  // namespace ballast
