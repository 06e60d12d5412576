// The inputs that fuzzing began with and those that it found, replayed in every build.
// Comes from: tests/fuzz/corpus. Goes to: safetensors_fuzz.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/io/file.h"
#include "common/safetensors/index.h"
#include "common/safetensors/reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

namespace ballast {
namespace {

const std::string kCorpus = std::string(BALLAST_FUZZ_CORPUS) + "/safetensors/";

std::string Input(const std::string& name) {
  const absl::StatusOr<std::string> bytes =
      ReadWholeFile(PosixFileSystem(), kCorpus + name, 1 << 20);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or("");
}

std::vector<std::string> Names() {
  const auto names = PosixFileSystem()->List(kCorpus);
  EXPECT_TRUE(names.ok()) << names.status();
  return names.value_or(std::vector<std::string>());
}

TEST(SafetensorsCorpus, EveryInputIsAnswered) {
  EXPECT_GE(Names().size(), 20u);
  for (const std::string& name : Names()) {
    SCOPED_TRACE(name);
    const std::string input = Input(name);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
}

TEST(SafetensorsCorpus, EveryPrefixOfAnInputIsAnswered) {
  for (const std::string& name : Names()) {
    SCOPED_TRACE(name);
    const std::string input = Input(name);
    for (size_t bytes = 0; bytes < input.size(); ++bytes) {
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), bytes);
    }
  }
}

// The names say what becomes of the inputs, so that the corpus keeps its good ones.
TEST(SafetensorsCorpus, GoodFilesAreReadAndBadOnesAreNot) {
  int good = 0, bad = 0;
  for (const std::string& name : Names()) {
    const bool file = SafetensorsReader::Open(PosixFileSystem(), kCorpus + name).ok();
    const bool index = ParseSafetensorsIndex(Input(name)).ok();
    EXPECT_EQ(file, name.rfind("file-good-", 0) == 0) << name;
    EXPECT_EQ(index, name.rfind("index-good-", 0) == 0) << name;
    ++(file || index ? good : bad);
  }
  EXPECT_GE(good, 8);
  EXPECT_GE(bad, 12);
}

}  // namespace
}  // namespace ballast
