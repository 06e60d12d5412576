// One target as libFuzzer calls it. CMake says which: BALLAST_FUZZ_TARGET is the function that
// makes it. Small programs that Clang builds in seconds have this file.
// Comes from: libFuzzer (preset fuzz). Goes to: the target. Thread safety: one thread.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const std::unique_ptr<ballast::fuzz::FuzzTarget> target =
      ballast::fuzz::BALLAST_FUZZ_TARGET();
  target->Run({reinterpret_cast<const char*>(data), bytes});
  return 0;
}
