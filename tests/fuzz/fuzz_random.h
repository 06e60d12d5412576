// Numbers for mutators: the same seed gives the same inputs on every machine.
// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (SplitMix64).
// Comes from: the loop of runs, libFuzzer's seeds. Goes to: mutators. Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast::fuzz {

class FuzzRandom {
 public:
  explicit FuzzRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // From 0 to `bound` - 1; 0 for a bound of 0.
  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : Next() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

  // Another number where `old` stood: a neighbour, one with a bit turned around, a power of two or
  // a neighbour of one, a small one, all ones. Limits and overflows lie there.
  uint64_t Boundary(uint64_t old) {
    const uint64_t power = uint64_t{1} << Below(64);
    const uint64_t choices[] = {old + 1,   old - 1,  old ^ power, power,      power - 1,
                                power + 1, Below(8), 0 - power,   UINT64_MAX, 2 * old};
    return choices[Below(sizeof(choices) / sizeof(choices[0]))];
  }

 private:
  uint64_t state_;
};

}  // namespace ballast::fuzz
