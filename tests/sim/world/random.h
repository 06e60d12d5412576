// Chance for the simulator: the same numbers for the same seed on every machine, so that a seed is
// a repeatable schedule. Source: xoshiro256** and splitmix64 (Blackman, Vigna, public domain).
// Comes from: a seed. Goes to: every choice the simulator makes. Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast::sim {

// One step of splitmix64: a good hash of a 64-bit value.
inline uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) word = seed = Mix(seed);
  }

  uint64_t Next() {
    const uint64_t result = Rotate(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = Rotate(state_[3], 45);
    return result;
  }

  // Below `limit`, which is at least 1. The bias of the remainder does not matter here.
  uint64_t Below(uint64_t limit) { return Next() % limit; }
  // From `low` to `high`, both included.
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  // True once in `n` times; never for 0.
  bool OneIn(uint64_t n) { return n != 0 && Below(n) == 0; }
  // From `low` to `high`, every order of magnitude as likely as the others; `low` is at least 1.
  uint64_t Spread(uint64_t low, uint64_t high) {
    uint64_t top = low;
    for (uint64_t doublings = Below(Doublings(low, high) + 1); doublings > 0; --doublings) {
      top *= 2;
    }
    return Between(low > top / 2 ? low : top / 2, top < high ? top : high);
  }
  template <typename List>
  const auto& Pick(const List& list) {
    return list[Below(list.size())];
  }

 private:
  static uint64_t Rotate(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }
  static uint64_t Doublings(uint64_t low, uint64_t high) {
    uint64_t count = 0;
    for (; low < high; low *= 2) ++count;
    return count;
  }

  uint64_t state_[4];
};

}  // namespace ballast::sim
