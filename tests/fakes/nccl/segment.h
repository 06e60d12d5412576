// Memory that the ranks of one communicator of the fake NCCL share: a file in /dev/shm, named by
// the id, gone as soon as all have mapped it or one gives up.
// Comes from: fake_nccl.cc. Goes to: the other ranks' processes or threads. Each rank writes its
// own row alone. Thread safety: rows are atomics; a slot is its rank's until `given` rises.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fake_nccl {

inline constexpr int kRanksMax = 16;
inline constexpr size_t kSlotBytes = size_t{64} << 20;  // only written pages exist

struct alignas(64) Head {
  std::atomic<bool> complete;  // all ranks were there at one time
};

struct Row {
  std::atomic<int> process;     // 0: not yet come; -1: has given up
  std::atomic<uint64_t> given;  // calls whose input is in the slot
  std::atomic<uint64_t> done;   // calls with their result
  char call[96];                // the newest call, with its sizes
  size_t bytes;                 // of its input
};

class Segment {
 public:
  // Null with errno when the file cannot be made. `path` is the id's.
  static Segment* Map(const std::string& path, int world);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int world() const { return world_; }
  Row& row(int rank) { return rows_[rank]; }
  char* slot(int rank) { return slots_ + static_cast<size_t>(rank) * kSlotBytes; }

  // Whether all ranks have come, or have reached this count.
  bool AllHere();
  bool AllGiven(uint64_t count);
  bool AllDone(uint64_t count);
  // Whether a present rank has given up or its process has ended.
  bool OneIsGone();
  void Unlink();

 private:
  Segment(std::string path, int world, char* memory, size_t bytes);

  const std::string path_;
  const int world_;
  char* const memory_;
  const size_t bytes_;
  Head* const head_;
  Row* const rows_;
  char* const slots_;
};

}  // namespace fake_nccl
