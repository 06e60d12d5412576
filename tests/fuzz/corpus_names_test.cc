// The inputs of safetensors and job_file say by their names what becomes of them, so that these
// corpora keep their good ones. That every target answers its corpus: targets_test.cc.
// Comes from: tests/fuzz/corpus. Goes to: the readers.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/io/file.h"
#include "common/safetensors/index.h"
#include "common/safetensors/reader.h"
#include "server/durability/sealed_bytes.h"
#include "server/snapshot/manifest.h"

namespace ballast::fuzz {
namespace {

std::string PathOf(const std::string& target, const std::string& name) {
  return std::string(BALLAST_FUZZ_CORPUS) + "/" + target + "/" + name;
}

// Names and bytes of the target's inputs.
std::vector<std::pair<std::string, std::string>> InputsOf(const std::string& target) {
  std::vector<std::pair<std::string, std::string>> inputs;
  const auto names = PosixFileSystem()->List(PathOf(target, ""));
  EXPECT_TRUE(names.ok()) << names.status();
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    const auto bytes = ReadWholeFile(PosixFileSystem(), PathOf(target, name), 1 << 20);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    inputs.emplace_back(name, bytes.value_or(""));
  }
  return inputs;
}

TEST(CorpusNames, GoodSafetensorsFilesAreReadAndBadOnesAreNot) {
  int good = 0, bad = 0;
  for (const auto& [name, input] : InputsOf("safetensors")) {
    const bool file = SafetensorsReader::Open(PosixFileSystem(), PathOf("safetensors", name)).ok();
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
