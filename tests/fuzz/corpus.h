// Corpus: the inputs of a fuzz target that the repository keeps, to be replayed.
// Comes from: tests/fuzz/corpus. Goes to: LLVMFuzzerTestOneInput, and the tests beside it.
// Thread safety: none needed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/io/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

namespace ballast::testing {

class Corpus {
 public:
  // `target`: its folder.
  explicit Corpus(const std::string& target)
      : folder_(std::string(BALLAST_FUZZ_CORPUS) + "/" + target + "/") {}

  std::string Path(const std::string& name) const { return folder_ + name; }
  std::vector<std::string> Names() const {
    auto names = PosixFileSystem()->List(folder_);
    EXPECT_TRUE(names.ok()) << names.status();
    return std::move(names).value_or(std::vector<std::string>());
  }
  std::string Input(const std::string& name) const {
    const absl::StatusOr<std::string> bytes = ReadWholeFile(PosixFileSystem(), Path(name), 1 << 20);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or("");
  }
  // Every input, and every one that was cut off.
  void ReplayPrefixes() const {
    for (const std::string& name : Names()) {
      SCOPED_TRACE(name);
      const std::string input = Input(name);
      for (size_t bytes = 0; bytes <= input.size(); ++bytes) {
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), bytes);
      }
    }
  }

 private:
  const std::string folder_;
};

}  // namespace ballast::testing
