// ballastctl tune nvme: the choice, the section it prints, a short run on a real directory, and
// wrong words.
#include "tools/host/nvme_tune.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::tools {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(NvmeTuneTest, FewestBytesUnderWayWithinThreePercentOfTheBest) {
  const std::vector<TuneSample> samples = {
      {.block_bytes = kMiB, .queue_depth = 1, .mixed = 96.9},
      {.block_bytes = kMiB, .queue_depth = 4, .mixed = 97.1},
      {.block_bytes = 4 * kMiB, .queue_depth = 8, .mixed = 100},
  };
  EXPECT_EQ(ChooseSample(samples).queue_depth, 4);
}

TEST(NvmeTuneTest, MixedCountsAndNotTheSumOfReadAndWrite) {
  const std::vector<TuneSample> samples = {
      {.block_bytes = kMiB, .queue_depth = 1, .read = 500, .write = 500, .mixed = 10},
      {.block_bytes = kMiB, .queue_depth = 8, .read = 5, .write = 5, .mixed = 100},
  };
  EXPECT_EQ(ChooseSample(samples).queue_depth, 8);
}

TEST(NvmeTuneTest, TheBetterOneOfEquallyManyBytes) {
  const std::vector<TuneSample> samples = {
      {.block_bytes = 4 * kMiB, .queue_depth = 1, .read = 98},
      {.block_bytes = kMiB, .queue_depth = 4, .read = 100},
  };
  EXPECT_EQ(ChooseSample(samples).queue_depth, 4);
}

TEST(NvmeTuneTest, TheSectionHasNumbersAndBooleansAndNoText) {
  EXPECT_EQ(AioSection({.block_bytes = kMiB, .queue_depth = 8}),
            "{\"block_size\": 1048576, \"queue_depth\": 8, \"intra_op_parallelism\": 1, "
            "\"single_submit\": false, \"overlap_events\": true}");
}

TEST(NvmeTuneTest, ADirectoryIsMeasuredAndLeftAsItWas) {
  const std::string directory = testing::TempDir() + "nvme_tune-" + std::to_string(getpid());
  std::filesystem::create_directory(directory);
  const auto result =
      TuneDevice({.io_bytes = 64 * kMiB, .write = false, .seconds = 0.01}, directory);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->samples.size(), 15u);
  for (const TuneSample& sample : result->samples) {
    EXPECT_GT(sample.read, 0);
    EXPECT_EQ(sample.write, 0);
    EXPECT_EQ(sample.mixed, 0);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::filesystem::remove(directory);
}

TEST(NvmeTuneTest, TheListsSayWhatIsMeasured) {
  testing::internal::CaptureStdout();
  const int code =
      TuneMain({"--path", testing::TempDir(), "--io-size", "64MiB", "--block-size", "64KiB,128KiB",
                "--queue-depth", "3,5", "--seconds", "0.01", "--no-write", "-o", "json"});
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  const std::string samples = text.substr(text.find("\"samples\""));
  for (const char* pair : {"65536, \"queue_depth\": 3", "65536, \"queue_depth\": 5",
                           "131072, \"queue_depth\": 3", "131072, \"queue_depth\": 5"}) {
    EXPECT_THAT(samples, testing::HasSubstr(pair));
  }
  EXPECT_EQ(std::count(samples.begin(), samples.end(), '{'), 4);
}

TEST(NvmeTuneTest, PairsWithMoreUnderWayThanTheFileHasAreLeftOut) {
  // DeepSpeed's own sweep, on its default file.
  const TuneOptions options{
      .io_bytes = 400 * kMiB, .block_bytes = {kMiB, 8 * kMiB}, .queue_depths = {32, 128}};
  EXPECT_THAT(TunePairs(options),
              testing::ElementsAre(testing::Pair(kMiB, 32), testing::Pair(kMiB, 128),
                                   testing::Pair(8 * kMiB, 32)));
}

TEST(NvmeTuneTest, ADirectoryThatIsMissingIsNamed) {
  const auto result = TuneDevice({}, "/missing/directory");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(result.status().message()), testing::HasSubstr("/missing/directory"));
}

TEST(NvmeTuneTest, WrongWordsAreUsageErrors) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {},
           {"--path"},
           {"--path", ".", "--io-size", "1MiB"},
           {"--path", ".", "--io-size", "65MiB"},
           {"--path", ".", "--io-size", "many"},
           {"--path", ".", "-o", "yml"},
           {"--path", ".", "--no-read", "--no-write"},
           {"--path", ".", "--block-size", "1000"},
           {"--path", ".", "--block-size", "128MiB"},
           {"--path", ".", "--block-size", "1MiB,"},
           {"--path", ".", "--queue-depth", "0"},
           {"--path", ".", "--queue-depth", "4097"},
           {"--path", ".", "--queue-depth", "1.5"},
           {"--path", ".", "--seconds", "0"},
           {"--path", ".", "--seconds", "nan"},
           {"--path", ".", "--block-size", "64MiB", "--queue-depth", "64"},
           {"--path", ".", "--io-size", "64MiB", "--block-size", "64MiB", "--queue-depth", "2"},
           {"--path", ".", "--depth", "3"}}) {
    EXPECT_EQ(TuneMain(words), 2) << testing::PrintToString(words);
  }
  EXPECT_EQ(TuneMain({"--help"}), 0);
}

}  // namespace
}  // namespace ballast::tools
