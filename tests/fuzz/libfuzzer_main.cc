// The targets under libFuzzer (preset fuzz): ballast_fuzz --target=NAME [libFuzzer's arguments].
// With --seeds=FOLDER the target's seeds are written there, and nothing is run; fuzz.sh does both.
// Comes from: libFuzzer. Goes to: the target. Thread safety: one thread.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/io/file.h"
#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t bytes, size_t bytes_max);

namespace ballast::fuzz {
namespace {

// Of the process: libFuzzer's functions have no argument for it.
const FuzzTarget* target = nullptr;

[[noreturn]] void Usage() {
  std::fprintf(stderr, "ballast_fuzz --target=NAME [--seeds=FOLDER] [ARGUMENTS]; targets:\n");
  for (const NamedTarget& named : FuzzTargets()) std::fprintf(stderr, "  %s\n", named.name);
  std::exit(2);
}

[[noreturn]] void WriteSeeds(const std::string& folder) {
  const std::vector<std::string> seeds = target->Seeds();
  for (size_t i = 0; i < seeds.size(); ++i) {
    const absl::Status written =
        ReplaceFile(PosixFileSystem(), absl::StrCat(folder, "/seed-", i), seeds[i]);
    if (!written.ok()) std::fprintf(stderr, "%s\n", written.ToString().c_str());
    if (!written.ok()) std::exit(1);
  }
  std::exit(0);
}

void Start(const std::vector<absl::string_view>& arguments) {
  static const google::protobuf::LogSilencer silence;  // Each bad string would be a line.
  std::string folder;
  for (absl::string_view argument : arguments) {
    if (absl::ConsumePrefix(&argument, "--target=")) {
      const NamedTarget* const named = FindTarget(argument);
      if (named == nullptr) Usage();
      target = named->make().release();
    } else if (absl::ConsumePrefix(&argument, "--seeds=")) {
      folder = std::string(argument);
    }
  }
  if (target == nullptr) Usage();
  if (!folder.empty()) WriteSeeds(folder);
}

}  // namespace
}  // namespace ballast::fuzz

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  ballast::fuzz::Start({*argv, *argv + *argc});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  ballast::fuzz::target->Run({reinterpret_cast<const char*>(data), bytes});
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t bytes, size_t bytes_max,
                                          unsigned int seed) {
  ballast::fuzz::FuzzRandom random(seed);
  if (random.OneIn(4)) return LLVMFuzzerMutate(data, bytes, bytes_max);
  const std::string input(reinterpret_cast<const char*>(data), bytes);
  const std::string changed = ballast::fuzz::target->Mutate(input, &random);
  const size_t length = std::min(changed.size(), bytes_max);
  std::memcpy(data, changed.data(), length);
  return length;
}
