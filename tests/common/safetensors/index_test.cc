// One test for each rule of the index.
#include "common/safetensors/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/common/safetensors/files.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string J(absl::string_view json) { return absl::StrReplaceAll(json, {{"'", "\""}}); }

void ExpectRefused(absl::string_view json, const std::vector<std::string>& words,
                   const SafetensorsLimits& limits = {}) {
  const absl::Status status = ParseSafetensorsIndex(J(json), limits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json << status;
  for (const std::string& word : words) EXPECT_THAT(Text(status), HasSubstr(word)) << json;
}

TEST(SafetensorsIndex, SaysWhichTensorIsInWhichFile) {
  const absl::StatusOr<SafetensorsIndex> index = ParseSafetensorsIndex(
      J("{'metadata': {'total_size': 12, 'made_by': 'x', 'total_parameters': 3, 'tied': true},\n"
        " 'weight_map': {'b': 'm-2.safetensors', 'a': 'm-1.safetensors'}}\n"));
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->total_bytes, 12u);
  EXPECT_THAT(index->metadata, ElementsAre(Pair("made_by", "x")));
  EXPECT_THAT(index->files,
              ElementsAre(Pair("a", "m-1.safetensors"), Pair("b", "m-2.safetensors")));
}

TEST(SafetensorsIndex, MayLackMetadataAndTotalSize) {
  for (const char* json : {"{'weight_map':{}}", "{'metadata':{},'weight_map':{}}"}) {
    const absl::StatusOr<SafetensorsIndex> index = ParseSafetensorsIndex(J(json));
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_FALSE(index->total_bytes.has_value());
  }
}

TEST(SafetensorsIndex, BytesStayAsTheyAreAndAreParsedBack) {
  const SafetensorsIndex index = {.total_bytes = 12,
                                  .metadata = {{"made_by", "a \"b\""}},
                                  .files = {{"x", "1.safetensors"}, {"y", "2.safetensors"}}};
  const absl::StatusOr<std::string> json = EncodeSafetensorsIndex(index);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(*json, J("{\n"
                     "  'metadata': {\n"
                     "    'total_size': 12,\n"
                     "    'made_by': 'a \\'b\\''\n"
                     "  },\n"
                     "  'weight_map': {\n"
                     "    'x': '1.safetensors',\n"
                     "    'y': '2.safetensors'\n"
                     "  }\n"
                     "}\n"));
  const absl::StatusOr<SafetensorsIndex> parsed = ParseSafetensorsIndex(*json);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->total_bytes, index.total_bytes);
  EXPECT_EQ(parsed->metadata, index.metadata);
  EXPECT_EQ(parsed->files, index.files);
}

TEST(SafetensorsIndex, FilesArePlainNamesOfSafetensorsFiles) {
  EXPECT_TRUE(CheckSafetensorsFileName("model-00001-of-00002.safetensors").ok());
  EXPECT_TRUE(CheckSafetensorsFileName(std::string(243, 'x') + ".safetensors").ok());
  for (const std::string& name :
       {std::string(), std::string("model.bin"), std::string("a/b.safetensors"),
        std::string("/b.safetensors"), std::string("../b.safetensors"),
        std::string("...safetensors"), std::string("a\\b.safetensors"),
        std::string("a\0.safetensors", 14), std::string("a\n.safetensors"),
        std::string("\xff.safetensors"), std::string("a.safetensors/"),
        std::string(244, 'x') + ".safetensors"}) {
    EXPECT_EQ(CheckSafetensorsFileName(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  ExpectRefused("{'weight_map':{'w':'../x.safetensors'}}", {"\"w\"", "../x.safetensors"});
  ExpectRefused("{'weight_map':{'w':'a\\u0000.safetensors'}}", {"\"w\""});
}

TEST(SafetensorsIndex, RefusesKeysTwice) {
  ExpectRefused("{'weight_map':{'w':'a.safetensors','w':'a.safetensors'}}", {"\"w\"", "twice"});
  ExpectRefused("{'weight_map':{},'weight_map':{}}", {"weight_map", "twice"});
  ExpectRefused("{'metadata':{},'metadata':{},'weight_map':{}}", {"metadata", "twice"});
  ExpectRefused("{'metadata':{'a':'','a':''},'weight_map':{}}", {"\"a\"", "twice"});
  ExpectRefused("{'metadata':{'a':'','a':1},'weight_map':{}}", {"\"a\"", "twice"});
  ExpectRefused("{'metadata':{'a':1,'a':true},'weight_map':{}}", {"\"a\"", "twice"});
  ExpectRefused("{'metadata':{'total_size':1,'total_size':1},'weight_map':{}}",
                {"total_size", "twice"});
}

TEST(SafetensorsIndex, RefusesWhatIsNotAnIndex) {
  for (const char* json : {"", "[]", "1", "'x'", "null", "{", "{} {}"}) ExpectRefused(json, {});
  ExpectRefused("{}", {"no weight_map"});
  ExpectRefused("{'metadata':{}}", {"no weight_map"});
  ExpectRefused("{'weights':{}}", {"\"weights\""});
  for (const char* value : {"[]", "1", "'x'", "null"}) {
    ExpectRefused(absl::StrCat("{'weight_map':", value, "}"), {"weight_map", "an object"});
    ExpectRefused(absl::StrCat("{'metadata':", value, "}"), {"metadata", "an object"});
  }
  for (const char* value : {"[]", "{}", "1", "null", "-1"}) {
    ExpectRefused(absl::StrCat("{'weight_map':{'w':", value, "}}"), {"\"w\"", "name of a file"});
  }
  for (const char* value : {"[]", "{}"}) {
    ExpectRefused(absl::StrCat("{'metadata':{'k':", value, "}}"), {"\"k\"", "plain value"});
  }
  for (const auto& [value, total] : {std::pair{"7.0", uint64_t{7}}, {"1.5e9", 1500000000}}) {
    const auto index = ParseSafetensorsIndex(
        J(absl::StrCat("{'metadata':{'total_size':", value, "},'weight_map':{}}")));
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ(index->total_bytes, total);
  }
  for (const char* value : {"-1", "1.5", "'1'", "null", "18446744073709551616", "[]", "-7.0",
                            "9007199254740993e1", "true"}) {
    ExpectRefused(absl::StrCat("{'metadata':{'total_size':", value, "}}"),
                  {"total_size", "whole number"});
  }
  ExpectRefused("{'weight_map':{'a\\u0000':'a.safetensors'}}", {"byte 0"});
}

TEST(SafetensorsIndex, KeepsItsLimits) {
  const std::string json =
      "{'metadata':{'k':'v'},'weight_map':{'aa':'a.safetensors','bb':'a.safetensors'}}";
  const SafetensorsLimits exact = {
      .header_bytes = json.size(), .tensors = 2, .name_bytes = 2, .metadata_entries = 1};
  EXPECT_TRUE(ParseSafetensorsIndex(J(json), exact).ok());
  const auto refused = [&](const std::string& word, auto change) {
    SafetensorsLimits limits = exact;
    change(limits);
    ExpectRefused(json, {word}, limits);
  };
  refused("limit", [](auto& limits) { --limits.header_bytes; });
  refused("limit of 1", [](auto& limits) { --limits.tensors; });
  refused("limit is 1 bytes", [](auto& limits) { --limits.name_bytes; });
  refused("limit of 0", [](auto& limits) { --limits.metadata_entries; });
}

TEST(SafetensorsIndex, EncodesOnlyWhatItReads) {
  const auto code = [](const SafetensorsIndex& index, const SafetensorsLimits& limits = {}) {
    return EncodeSafetensorsIndex(index, limits).status().code();
  };
  const absl::StatusCode invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({.files = {{"w", "../a.safetensors"}}}), invalid);
  EXPECT_EQ(code({.files = {{"\xff", "a.safetensors"}}}), invalid);
  EXPECT_EQ(code({.metadata = {{"k", "\xff"}}}), invalid);
  EXPECT_EQ(code({.metadata = {{"total_size", "1"}}}), invalid);
  EXPECT_EQ(code({.files = {{"w", "a.safetensors"}}}, {.tensors = 0}), invalid);
  EXPECT_EQ(code({.files = {{"w", "a.safetensors"}}}, {.header_bytes = 10}), invalid);
  EXPECT_EQ(code({.total_bytes = 1, .metadata = {{"k", "v"}}}, {.metadata_entries = 1}), invalid);
  EXPECT_EQ(code({.files = {{"w", "a.safetensors"}}}), absl::StatusCode::kOk);
}

TEST(SafetensorsIndex, EveryPrefixIsRefused) {
  const std::string json = J("{'metadata':{'total_size':1},'weight_map':{'w':'a.safetensors'}}");
  ASSERT_TRUE(ParseSafetensorsIndex(json).ok());
  for (size_t bytes = 0; bytes < json.size(); ++bytes) {
    EXPECT_FALSE(ParseSafetensorsIndex(json.substr(0, bytes)).ok()) << bytes;
  }
}

}  // namespace
}  // namespace ballast
