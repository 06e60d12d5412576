// The inputs of safetensors and job_file have their outcome in their names, so that these
// corpora keep their good ones. That every target answers its corpus: targets_test.cc.
// Comes from: tests/fuzz/corpus. Goes to: the readers.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/io/file.h"
#include "common/io/memory_disk.h"
#include "common/safetensors/index.h"
#include "common/safetensors/reader.h"
#include "server/durability/records/sealed_bytes.h"
#include "server/snapshot/manifest.h"
#include "tests/fuzz/corpus.h"

namespace ballast::fuzz {
namespace {

// Names and bytes of the target's inputs.
std::vector<std::pair<std::string, std::string>> InputsOf(const std::string& target) {
  const auto inputs = CorpusOf(target);
  EXPECT_TRUE(inputs.ok()) << inputs.status();
  return inputs.value_or(std::vector<std::pair<std::string, std::string>>());
}

TEST(CorpusNames, GoodSafetensorsFilesAreReadAndBadOnesAreNot) {
  int good = 0, bad = 0;
  for (const auto& [name, input] : InputsOf("safetensors")) {
    MemoryDisk disk;
    ASSERT_TRUE(ReplaceFile(&disk, "/input", input).ok());
    const bool file = SafetensorsReader::Open(&disk, "/input").ok();
    const bool index = ParseSafetensorsIndex(input).ok();
    EXPECT_EQ(file, absl::StartsWith(name, "file-good-")) << name;
    EXPECT_EQ(index, absl::StartsWith(name, "index-good-")) << name;
    ++(file || index ? good : bad);
  }
  EXPECT_GE(good, 8);
  EXPECT_GE(bad, 12);
}

TEST(CorpusNames, GoodJobFilesAreReadAndBadOnesAreNot) {
  const auto inputs = InputsOf("job_file");
  EXPECT_GE(inputs.size(), 8u);
  for (const auto& [name, input] : inputs) {
    EXPECT_EQ(server::DecodeManifest(input).ok(), absl::StartsWith(name, "file-good-")) << name;
    EXPECT_EQ(server::DecodeManifest(server::SealBytes("BALLSNP\n", 1, input)).ok(),
              absl::StartsWith(name, "body-good-"))
        << name;
    EXPECT_EQ(server::DecodePrepared(input).ok(), absl::StartsWith(name, "prepared-good-")) << name;
    EXPECT_EQ(server::DecodeDecision(input).ok(), absl::StartsWith(name, "decision-good-")) << name;
  }
}

}  // namespace
}  // namespace ballast::fuzz
