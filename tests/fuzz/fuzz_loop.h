// A fixed number of runs of a target without libFuzzer, in every build: each input is one of a pool
// that begins with the seeds, changed once to three times. The same number of runs from the same
// seed meets the same inputs on every machine.
// Comes from: the tests in this folder. Goes to: the target. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast::fuzz {

class FuzzLoop {
 public:
  // `target` outlives the loop. `corpus`: inputs in addition to the target's own seeds.
  FuzzLoop(const FuzzTarget* target, const std::vector<std::string>& corpus, uint64_t seed);

  // Bytes of the longest prefixes.
  struct Cuts {
    size_t of_seeds = 0;
    // Most corpora have hundreds of inputs: their prefixes would take most of the time.
    size_t of_corpus = 0;
  };

  // Every input of the pool, and each prefix of it up to so many bytes.
  void Replay(const Cuts& longest);
  // `runs` changed inputs.
  void Run(int runs);

  // Of all runs begun so far; the last of them may have ended the process.
  uint64_t runs() const { return runs_; }
  const std::string& last_input() const { return input_; }

 private:
  void RunOnce(std::string input);

  const google::protobuf::LogSilencer silence_;  // Each bad string would be a line.
  const FuzzTarget* const target_;
  std::vector<std::string> pool_;  // at its beginning the target's own seeds
  const size_t seeds_;
  FuzzRandom random_;
  uint64_t runs_ = 0;
  std::string input_;
};

}  // namespace ballast::fuzz
