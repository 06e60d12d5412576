// One test for each rule of the format, docs/formats/safetensors.md.
#include "common/safetensors/header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tests/common/safetensors/files.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// 'a': json with ' for ".
std::string J(absl::string_view json) { return absl::StrReplaceAll(json, {{"'", "\""}}); }

// Refused with this code, and with each of `words` in the text.
void ExpectRefused(absl::string_view json, uint64_t data_bytes,
                   const std::vector<std::string>& words,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument,
                   const SafetensorsLimits& limits = {}) {
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, data_bytes, limits);
  EXPECT_EQ(header.status().code(), code) << json << header.status();
  for (const std::string& word : words) {
    EXPECT_THAT(Text(header.status()), HasSubstr(word)) << json;
  }
}

SafetensorsHeader Parse(absl::string_view json, uint64_t data_bytes,
                        const SafetensorsLimits& limits = {}) {
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, data_bytes, limits);
  EXPECT_TRUE(header.ok()) << json << header.status();
  return header.ok() ? *std::move(header) : SafetensorsHeader();
}

std::string Shown(const TensorEntry& tensor) {
  return absl::StrCat(tensor.name, " ", SafeDTypeName(tensor.dtype), " [",
                      absl::StrJoin(tensor.shape, ","), "] ", tensor.begin, "-", tensor.end);
}

// A header of one tensor "w" whose fields are `fields`.
std::string One(absl::string_view fields) { return J(absl::StrCat("{'w':{", fields, "}}")); }

TEST(SafetensorsHeader, HoldsTensorsMetadataAndThePlaceOfTheData) {
  const std::string json =
      J("{'__metadata__':{'format':'pt'},"
        "'a':{'dtype':'F32','shape':[2,3],'data_offsets':[0,24]},"
        "'b':{'data_offsets':[24,28],'shape':[2],'dtype':'BF16'}}");
  const SafetensorsHeader header = Parse(json, 28);
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(Shown(header.tensors[0]), "a F32 [2,3] 0-24");
  EXPECT_EQ(Shown(header.tensors[1]), "b BF16 [2] 24-28");
  EXPECT_THAT(header.metadata, ElementsAre(Pair("format", "pt")));
  EXPECT_EQ(header.data_offset, 8 + json.size());
  EXPECT_EQ(header.file_bytes(), 8 + json.size() + 28);
}

TEST(SafetensorsHeader, TensorsComeInTheOrderOfTheirData) {
  const SafetensorsHeader header = Parse(J("{'b':{'dtype':'U8','shape':[1],'data_offsets':[2,3]},"
                                           "'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]},"
                                           "'z':{'dtype':'U8','shape':[0],'data_offsets':[2,2]},"
                                           "'y':{'dtype':'U8','shape':[0],'data_offsets':[2,2]}}"),
                                         3);
  std::vector<std::string> names;
  for (const TensorEntry& tensor : header.tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("a", "z", "y", "b"));
}

TEST(SafetensorsHeader, TensorsWithoutBytesKeepTheOrderOfTheHeader) {
  std::string json = "{'w':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}";
  for (int i = 100; i > 0; --i) {
    absl::StrAppend(&json, ",'", i, "':{'dtype':'U8','shape':[0],'data_offsets':[0,0]}");
  }
  const SafetensorsHeader header = Parse(J(json + "}"), 1);
  ASSERT_EQ(header.tensors.size(), 101u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(header.tensors[i].name, absl::StrCat(100 - i));
  EXPECT_EQ(header.tensors[100].name, "w");
}

TEST(SafetensorsHeader, MayHoldNothing) {
  EXPECT_THAT(Parse("{}", 0).tensors, IsEmpty());
  EXPECT_THAT(Parse(J("{'__metadata__':{}}"), 0).tensors, IsEmpty());
}

TEST(SafetensorsHeader, TensorsWithoutBytesAndOfRankZeroAreAllowed) {
  const SafetensorsHeader header =
      Parse(J("{'scalar':{'dtype':'F64','shape':[],'data_offsets':[0,8]},"
              "'empty':{'dtype':'F64','shape':[3,0],'data_offsets':[8,8]}}"),
            8);
  EXPECT_EQ(Shown(header.tensors[0]), "scalar F64 [] 0-8");
  EXPECT_EQ(Shown(header.tensors[1]), "empty F64 [3,0] 8-8");
}

TEST(SafetensorsHeader, MayEndWithBlanksOnly) {
  Parse("{}   ", 0);
  for (const char* json : {"{}\n", "{}\t", "{} \n ", "{}x", "{}  x", "{},", "{}{}"}) {
    ExpectRefused(json, 0, {});
  }
  ExpectRefused(absl::string_view("{}\0", 3), 0, {});
  ExpectRefused(absl::string_view("{}\0{}", 5), 0, {"byte 0"});
}

TEST(SafetensorsHeader, BeginsWithABrace) {
  for (const char* json : {"", "   ", " {}", "\n{}", "\xef\xbb\xbf{}", "[]", "\"{}\"", "}"}) {
    ExpectRefused(json, 0, {"{...}"});
  }
}

TEST(SafetensorsHeader, IsJson) {
  ExpectRefused(J("{'a':}"), 0, {"no JSON at byte "});
  ExpectRefused(J("{'a'}"), 0, {"no JSON at byte "});
  ExpectRefused("{a:1}", 0, {"no JSON at byte "});
}

TEST(SafetensorsHeader, IsUtf8) {
  ExpectRefused("{\"\xff\":{}}", 0, {"no JSON at byte "});
  ExpectRefused("{\"__metadata__\":{\"a\":\"\xc0\x80\"}}", 0, {"no JSON at byte "});
}

TEST(SafetensorsHeader, RefusesANameTwiceHoweverItIsWritten) {
  const std::string entry = "{'dtype':'U8','shape':[0],'data_offsets':[0,0]}";
  ExpectRefused(J(absl::StrCat("{'a':", entry, ",'b':", entry, ",'a':", entry, "}")), 0,
                {"\"a\"", "twice"});
  ExpectRefused(J(absl::StrCat("{'a':", entry, ",'\\u0061':", entry, "}")), 0, {"\"a\"", "twice"});
}

TEST(SafetensorsHeader, RefusesMetadataTwice) {
  ExpectRefused(J("{'__metadata__':{},'__metadata__':{}}"), 0, {"__metadata__", "twice"});
  ExpectRefused(J("{'__metadata__':{'k':'1','k':'1'}}"), 0, {"\"k\"", "twice"});
}

TEST(SafetensorsHeader, RefusesAFieldTwice) {
  ExpectRefused(One("'dtype':'U8','dtype':'U8','shape':[0],'data_offsets':[0,0]"), 0,
                {"\"w\"", "dtype", "twice"});
  ExpectRefused(One("'dtype':'U8','shape':[0],'shape':[0],'data_offsets':[0,0]"), 0,
                {"\"w\"", "shape", "twice"});
  ExpectRefused(One("'dtype':'U8','shape':[0],'data_offsets':[0,0],'data_offsets':[0,0]"), 0,
                {"\"w\"", "data_offsets", "twice"});
}

TEST(SafetensorsHeader, RefusesATensorThatLacksAField) {
  ExpectRefused(One("'shape':[0],'data_offsets':[0,0]"), 0, {"\"w\"", "no dtype"});
  ExpectRefused(One("'dtype':'U8','data_offsets':[0,0]"), 0, {"\"w\"", "no shape"});
  ExpectRefused(One("'dtype':'U8','shape':[0]"), 0, {"\"w\"", "no data_offsets"});
  ExpectRefused(One(""), 0, {"\"w\"", "no dtype"});
}

TEST(SafetensorsHeader, RefusesAFieldThatItDoesNotKnow) {
  ExpectRefused(One("'dtype':'U8','shape':[0],'data_offsets':[0,0],'stride':[1]"), 0,
                {"\"w\"", "\"stride\""});
}

TEST(SafetensorsHeader, RefusesAnythingButAnObjectAsATensor) {
  for (const char* value : {"1", "'x'", "null", "true", "[]", "-1", "1.5"}) {
    ExpectRefused(J(absl::StrCat("{'w':", value, "}")), 0, {"\"w\"", "stands where an object"});
  }
}

TEST(SafetensorsHeader, RefusesAnythingButStringsInTheMetadata) {
  for (const char* value : {"1", "null", "true", "[]", "{}", "-1", "1.5"}) {
    ExpectRefused(J(absl::StrCat("{'__metadata__':{'k':", value, "}}")), 0,
                  {"__metadata__", "\"k\"", "a string"});
  }
  // As somebody writes it who gives a tensor that name.
  ExpectRefused(J("{'__metadata__':{'dtype':'F32','shape':[1],'data_offsets':[0,4]}}"), 4,
                {"__metadata__", "no tensor can be called so"});
  for (const char* value : {"1", "null", "[]", "'x'"}) {
    ExpectRefused(J(absl::StrCat("{'__metadata__':", value, "}")), 0,
                  {"__metadata__", "an object of strings"});
  }
}

TEST(SafetensorsHeader, RefusesADtypeThatIsNoString) {
  for (const char* value : {"1", "null", "[]", "{}"}) {
    ExpectRefused(One(absl::StrCat("'dtype':", value)), 0, {"\"w\"", "a string, the dtype"});
  }
}

TEST(SafetensorsHeader, ADtypeOfTheFormatThatIsNotReadIsUnimplemented) {
  ExpectRefused(One("'dtype':'F4','shape':[2],'data_offsets':[0,1]"), 1, {"\"w\"", "F4"},
                absl::StatusCode::kUnimplemented);
}

TEST(SafetensorsHeader, AnUnknownDtypeIsInvalid) {
  ExpectRefused(One("'dtype':'Q9','shape':[2],'data_offsets':[0,1]"), 1, {"\"w\"", "\"Q9\""});
}

TEST(SafetensorsHeader, RefusesAShapeThatIsNoArrayOfWholeNumbers) {
  for (const char* value : {"1", "null", "'x'", "{}"}) {
    ExpectRefused(One(absl::StrCat("'shape':", value)), 0, {"\"w\"", "an array, the shape"});
  }
  for (const char* value :
       {"-1", "-0", "1.0", "1e2", "null", "'1'", "[1]", "{}", "true", "18446744073709551616"}) {
    ExpectRefused(One(absl::StrCat("'shape':[", value, "]")), 0, {"\"w\"", "a dimension"});
  }
}

TEST(SafetensorsHeader, RefusesOffsetsThatAreNotTwoWholeNumbers) {
  for (const char* value : {"1", "null", "'x'", "{}"}) {
    ExpectRefused(One(absl::StrCat("'data_offsets':", value)), 0,
                  {"\"w\"", "an array, the data_offsets"});
  }
  for (const char* value : {"-1", "1.0", "null", "'1'", "[1]"}) {
    ExpectRefused(One(absl::StrCat("'data_offsets':[0,", value, "]")), 0, {"\"w\"", "an offset"});
  }
  for (const char* value : {"", "0", "0,0,0"}) {
    ExpectRefused(One(absl::StrCat("'data_offsets':[", value, "]")), 0, {"\"w\"", "2"});
  }
}

TEST(SafetensorsHeader, RefusesOffsetsThatEndBeforeTheyBegin) {
  ExpectRefused(One("'dtype':'U8','shape':[0],'data_offsets':[4,0]"), 4, {"\"w\"", "[4, 0]"});
}

TEST(SafetensorsHeader, RefusesOffsetsThatDoNotFitShapeAndDtype) {
  ExpectRefused(One("'dtype':'F32','shape':[2,3],'data_offsets':[0,23]"), 23,
                {"\"w\"", "23", "[2, 3]", "F32", "24"});
  ExpectRefused(One("'dtype':'F32','shape':[2,3],'data_offsets':[0,25]"), 25,
                {"\"w\"", "25", "[2, 3]", "F32", "24"});
  ExpectRefused(One("'dtype':'F32','shape':[],'data_offsets':[0,0]"), 0, {"\"w\"", "takes 4"});
}

TEST(SafetensorsHeader, RefusesShapesWhoseBytesOverflow) {
  for (const char* shape : {"4294967296,4294967296", "18446744073709551615,2",
                            "2305843009213693952", "4294967296,4294967296,0"}) {
    ExpectRefused(One(absl::StrCat("'dtype':'F64','shape':[", shape, "],'data_offsets':[0,0]")), 0,
                  {"\"w\"", "2^64"});
  }
}

TEST(SafetensorsHeader, RefusesAHole) {
  ExpectRefused(One("'dtype':'U8','shape':[2],'data_offsets':[1,3]"), 3, {"\"w\"", "hole"});
  ExpectRefused(J("{'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]},"
                  "'b':{'dtype':'U8','shape':[2],'data_offsets':[3,5]}}"),
                5, {"\"b\"", "hole", "ends at 2"});
}

TEST(SafetensorsHeader, RefusesAnOverlap) {
  ExpectRefused(J("{'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]},"
                  "'b':{'dtype':'U8','shape':[2],'data_offsets':[1,3]}}"),
                3, {"\"b\"", "overlap"});
  ExpectRefused(J("{'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]},"
                  "'b':{'dtype':'U8','shape':[2],'data_offsets':[0,2]}}"),
                2, {"\"b\"", "overlap"});
  // Nothing lies in the middle of a tensor, not even nothing.
  ExpectRefused(J("{'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]},"
                  "'b':{'dtype':'U8','shape':[0],'data_offsets':[1,1]}}"),
                2, {"\"b\"", "overlap"});
}

TEST(SafetensorsHeader, RefusesDataThatIsShorterOrLongerThanTheTensors) {
  const std::string json = One("'dtype':'U8','shape':[4],'data_offsets':[0,4]");
  Parse(json, 4);
  ExpectRefused(json, 3, {"cut off", "have 4 bytes", "has 3"});
  ExpectRefused(json, 5, {"longer", "have 4 bytes", "has 5"});
  ExpectRefused("{}", 1, {"longer"});
}

TEST(SafetensorsHeader, RefusesAByteZeroInANameButNotInAValue) {
  ExpectRefused(J("{'a\\u0000b':{'dtype':'U8','shape':[0],'data_offsets':[0,0]}}"), 0,
                {"\"a\\000b\"", "byte 0"});
  ExpectRefused(J("{'__metadata__':{'a\\u0000b':''}}"), 0, {"byte 0"});
  EXPECT_EQ(Parse(J("{'__metadata__':{'a':'\\u0000'}}"), 0).metadata["a"], std::string(1, '\0'));
}

TEST(SafetensorsHeader, LimitsAreInclusive) {
  const std::string json =
      J("{'__metadata__':{'k':'v'},'ab':{'dtype':'U8','shape':[1,1],'data_offsets':[0,1]},"
        "'cd':{'dtype':'U8','shape':[1,1],'data_offsets':[1,2]}}");
  const SafetensorsLimits exact = {.header_bytes = json.size(),
                                   .tensors = 2,
                                   .name_bytes = 12,  // of __metadata__
                                   .rank = 2,
                                   .metadata_entries = 1};
  Parse(json, 2, exact);
  const auto refused = [&](const std::vector<std::string>& words, auto change) {
    SafetensorsLimits limits = exact;
    change(limits);
    ExpectRefused(json, 2, words, absl::StatusCode::kInvalidArgument, limits);
  };
  refused({absl::StrCat(json.size()), absl::StrCat("limit of ", json.size() - 1)},
          [](auto& limits) { --limits.header_bytes; });
  refused({"\"cd\"", "more than 1 tensors"}, [](auto& limits) { --limits.tensors; });
  refused({"limit is 1 bytes"}, [](auto& limits) { limits.name_bytes = 1; });
  refused({"\"ab\"", "more than 1 dimensions"}, [](auto& limits) { --limits.rank; });
  refused({"more than 0 keys"}, [](auto& limits) { --limits.metadata_entries; });
}

TEST(SafetensorsHeader, RefusesNestingWithoutRecursion) {
  std::string json = "{\"w\":{\"shape\":";
  json.append(1'000'000, '[');
  json += "}";
  ExpectRefused(json, 0, {"\"w\"", "an array stands where a dimension"});
}

TEST(SafetensorsHeader, EveryPrefixIsRefused) {
  const std::string json =
      J("{'__metadata__':{'k':'v'},'w':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}");
  Parse(json, 1);
  for (size_t bytes = 0; bytes < json.size(); ++bytes) {
    ExpectRefused(absl::string_view(json).substr(0, bytes), 1, {});
  }
}

}  // namespace
}  // namespace ballast
