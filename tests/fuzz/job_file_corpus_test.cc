// The job.ballast files that fuzzing begins with and those that it found, replayed in every build.
// Comes from: tests/fuzz/corpus. Goes to: targets/job_file.cc.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "server/durability/sealed_bytes.h"
#include "server/snapshot/manifest.h"
#include "tests/fuzz/corpus.h"

namespace ballast::server {
namespace {

const testing::Corpus kCorpus("job_file");

TEST(JobFileCorpus, EveryPrefixOfAnInputIsAnswered) {
  EXPECT_GE(kCorpus.Names().size(), 8u);
  kCorpus.ReplayPrefixes();
}

// The names say what becomes of the inputs, so that the corpus keeps its good ones.
TEST(JobFileCorpus, GoodFilesAreReadAndBadOnesAreNot) {
  for (const std::string& name : kCorpus.Names()) {
    const std::string input = kCorpus.Input(name);
    EXPECT_EQ(DecodeManifest(input).ok(), absl::StartsWith(name, "file-good-")) << name;
    EXPECT_EQ(DecodeManifest(SealBytes("BALLSNP\n", 1, input)).ok(),
              absl::StartsWith(name, "body-good-"))
        << name;
    EXPECT_EQ(DecodePrepared(input).ok(), absl::StartsWith(name, "prepared-good-")) << name;
    EXPECT_EQ(DecodeDecision(input).ok(), absl::StartsWith(name, "decision-good-")) << name;
  }
}

}  // namespace
}  // namespace ballast::server
