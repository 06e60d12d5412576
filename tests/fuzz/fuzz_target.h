// FuzzTarget: one parser, or a few that belong together, with inputs to begin from and a way to
// change them. tests/fuzz/CMakeLists.txt says how targets are run.
// Comes from: libfuzzer_main.cc, fuzz_loop. Goes to: the rooms' parsers.
// Thread safety: immutable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/fuzz/fuzz_random.h"

namespace ballast::fuzz {

class FuzzTarget {
 public:
  virtual ~FuzzTarget() = default;

  // Good inputs, made by the encoder of the parsed format.
  virtual std::vector<std::string> Seeds() const = 0;
  // Gives the input to the parser. The parser answers any input; accepted inputs keep the promises
  // of its header. The process ends when not.
  virtual void Run(absl::string_view input) const = 0;
  // Another input, near to this one.
  virtual std::string Mutate(const std::string& input, FuzzRandom* random) const = 0;
};

struct NamedTarget {
  const char* name;
  std::unique_ptr<FuzzTarget> (*make)();
  // Of every build's tests; within as many the planted bug is found.
  int runs;
  // Whether the corpus is small, and each of its inputs is cut off at every byte, too.
  bool cuts_corpus = false;
};

// All targets.
const std::vector<NamedTarget>& FuzzTargets();
// Null when there is none of that name.
const NamedTarget* FindTarget(absl::string_view name);

std::unique_ptr<FuzzTarget> FrameTarget();
std::unique_ptr<FuzzTarget> AttachTarget();
std::unique_ptr<FuzzTarget> PeerTarget();
std::unique_ptr<FuzzTarget> AuthzTarget();
std::unique_ptr<FuzzTarget> RecordsTarget();
std::unique_ptr<FuzzTarget> ConfigTarget();
std::unique_ptr<FuzzTarget> LogTarget();
std::unique_ptr<FuzzTarget> SlotsTarget();
std::unique_ptr<FuzzTarget> FsmTarget();
std::unique_ptr<FuzzTarget> SafetensorsTarget();
std::unique_ptr<FuzzTarget> JobFileTarget();

}  // namespace ballast::fuzz
