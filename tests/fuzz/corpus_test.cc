// The inputs that fuzzing began with and those that it found, replayed in every build.
// Comes from: tests/fuzz/corpus. Goes to: targets/safetensors.cc.
#include <gtest/gtest.h>

#include <string>

#include "common/io/file.h"
#include "common/safetensors/index.h"
#include "common/safetensors/reader.h"
#include "tests/fuzz/corpus.h"

namespace ballast {
namespace {

const testing::Corpus kCorpus("safetensors");

TEST(SafetensorsCorpus, EveryPrefixOfAnInputIsAnswered) {
  EXPECT_GE(kCorpus.Names().size(), 20u);
  kCorpus.ReplayPrefixes();
}

// The names say what becomes of the inputs, so that the corpus keeps its good ones.
TEST(SafetensorsCorpus, GoodFilesAreReadAndBadOnesAreNot) {
  int good = 0, bad = 0;
  for (const std::string& name : kCorpus.Names()) {
    const bool file = SafetensorsReader::Open(PosixFileSystem(), kCorpus.Path(name)).ok();
    const bool index = ParseSafetensorsIndex(kCorpus.Input(name)).ok();
    EXPECT_EQ(file, name.rfind("file-good-", 0) == 0) << name;
    EXPECT_EQ(index, name.rfind("index-good-", 0) == 0) << name;
    ++(file || index ? good : bad);
  }
  EXPECT_GE(good, 8);
  EXPECT_GE(bad, 12);
}

}  // namespace
}  // namespace ballast
