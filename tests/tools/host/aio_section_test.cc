// The "aio" section as people have it, right and wrong.
#include "tools/host/aio_section.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::tools {
namespace {

using testing::HasSubstr;

TEST(AioSection, ReadsConfigSectionAndWhatIsPrinted) {
  const std::string section =
      R"({"block_size": 8388608, "queue_depth": 32, "intra_op_parallelism": 2,
          "single_submit": false, "overlap_events": true, "use_gds": false})";
  for (const std::string& text :
       {section, "{\"aio\": " + section + ", \"train_batch_size\": 8}", "\"aio\": " + section}) {
    const auto settings = ParseAioSettings(text);
    ASSERT_TRUE(settings.ok()) << settings.status() << text;
    EXPECT_EQ(settings->block_bytes, 8u << 20);
    EXPECT_EQ(settings->queue_depth, 32);
    EXPECT_TRUE(settings->warnings.empty());
  }
}

TEST(AioSection, OutputOfDeepSpeedsTunerIsReadWithWarnings) {
  const auto settings = ParseAioSettings(
      R"({"aio": {"block_size": "1048576", "num_threads": 4, "thread_count": 2,
                  "single_submit": "false", "overlap_events": "true"}})");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->block_bytes, 1u << 20);
  EXPECT_EQ(settings->queue_depth, 8);
  ASSERT_EQ(settings->warnings.size(), 4u);
  const std::string all = testing::PrintToString(settings->warnings);
  EXPECT_THAT(all, HasSubstr("aio.num_threads means aio.intra_op_parallelism"));
  EXPECT_THAT(all, HasSubstr("aio.thread_count means aio.intra_op_parallelism"));
  EXPECT_THAT(all, HasSubstr("aio.single_submit is the text"));
}

TEST(AioSection, MistakesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "no JSON"},
      {"", "no \"aio\" section"},
      {"{\"fp16\": {}}", "no \"aio\" section"},
      {"{\"aio\": 3}", "no section in braces"},
      {"{\"aio\": {\"blocksize\": 1}}", "aio.blocksize is unknown"},
      {"{\"aio\": {\"block_size\": 1000}}", "aio.block_size is 1000"},
      {"{\"aio\": {\"block_size\": 134217728}}", "a multiple of 4096"},
      {"{\"aio\": {\"block_size\": -4096}}", "aio.block_size is no whole number"},
      {"{\"aio\": {\"block_size\": 1e300}}", "aio.block_size is no whole number"},
      {"{\"aio\": {\"block_size\": [4096]}}", "aio.block_size is no whole number"},
      {"{\"aio\": {\"queue_depth\": 0}}", "aio.queue_depth is 0"},
      {"{\"aio\": {\"queue_depth\": 2.5}}", "aio.queue_depth is no whole number"},
      {"{\"aio\": {\"num_threads\": 5000}}", "aio.num_threads is 5000"},
      {"{\"aio\": {\"overlap_events\": 1}}", "aio.overlap_events is neither"},
      {"{\"aio\": {\"single_submit\": \"yes\"}}", "aio.single_submit is neither"},
  };
  for (const auto& [text, why] : cases) {
    const auto settings = ParseAioSettings(text);
    ASSERT_FALSE(settings.ok()) << text;
    EXPECT_THAT(std::string(settings.status().message()), HasSubstr(why)) << text;
  }
}

}  // namespace
}  // namespace ballast::tools
