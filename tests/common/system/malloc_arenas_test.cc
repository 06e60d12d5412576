// MallocArenas: memory at the end of a thread's arena, which malloc_trim does not return.
#include "common/system/malloc_arenas.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

namespace ballast {
namespace {

constexpr size_t kMiB = 1 << 20;

size_t ResidentBytes() {
  size_t all = 0;
  size_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Small pieces, all of them written: 48 MiB.
std::vector<std::unique_ptr<char[]>> Pieces() {
  std::vector<std::unique_ptr<char[]>> pieces(48 * kMiB / 1024);
  for (auto& piece : pieces) {
    piece.reset(new char[1000]);
    std::memset(piece.get(), 1, 1000);
  }
  return pieces;
}

TEST(MallocArenas, GivesTheEndOfAThreadsArenaBack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer has a malloc of its own";
#endif
  TuneMalloc();
  MallocArenas arenas;
  // The main thread's arena has an end that malloc_trim gives back.
  std::thread([&arenas] {
    const size_t before = ResidentBytes();
    {
      arenas.Note();
      const auto pieces = Pieces();  // after the note: nothing keeps them from the arena's end
      EXPECT_GT(ResidentBytes(), before + 40 * kMiB);
    }
    EXPECT_GT(ResidentBytes(), before + 40 * kMiB);
    arenas.GiveBack();
    EXPECT_LT(ResidentBytes(), before + 8 * kMiB);
  }).join();
}

}  // namespace
}  // namespace ballast
