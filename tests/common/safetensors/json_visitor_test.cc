// Events of JSON text, and the texts refused as no JSON.
#include "common/safetensors/json_visitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

// Writes the events down.
class Recorder : public JsonVisitor {
 public:
  absl::Status BeginObject() override { return Add("{"); }
  absl::Status EndObject() override { return Add("}"); }
  absl::Status BeginArray() override { return Add("["); }
  absl::Status EndArray() override { return Add("]"); }
  absl::Status Key(absl::string_view key) override { return Add(absl::StrCat("k:", key)); }
  absl::Status String(absl::string_view value) override { return Add(absl::StrCat("s:", value)); }
  absl::Status Number(uint64_t value) override { return Add(absl::StrCat("n:", value)); }
  absl::Status Other(absl::string_view shown) override { return Add(absl::StrCat("o:", shown)); }

  std::string events;
  std::string refuse;  // the event that is an error

 private:
  absl::Status Add(const std::string& event) {
    absl::StrAppend(&events, events.empty() ? "" : " ", event);
    return event == refuse ? absl::AbortedError(event) : absl::OkStatus();
  }
};

std::string Events(absl::string_view text) {
  Recorder recorder;
  const absl::Status status = VisitJson(text, &recorder);
  return status.ok() ? recorder.events : status.ToString();
}

TEST(JsonVisitor, SeesEveryValueInOrder) {
  EXPECT_EQ(Events(R"({"a": [1, "x\u0041\n"], "b": {}})"), "{ k:a [ n:1 s:xA\n ] k:b { } }");
}

TEST(JsonVisitor, OnlyPlainWholeNumbersBelowTwoToThe64AreNumbers) {
  EXPECT_EQ(Events("[0, 18446744073709551615, 18446744073709551616, -1, -0, 1.0, 1e3, null, true]"),
            "[ n:0 n:18446744073709551615 o:18446744073709551616 o:-1 o:-0 o:1.0 o:1e3 o:null "
            "o:true ]");
}

TEST(JsonVisitor, AnErrorOfTheVisitorEndsTheVisit) {
  Recorder recorder;
  recorder.refuse = "n:2";
  EXPECT_EQ(VisitJson("[1, 2, 3]", &recorder), absl::AbortedError("n:2"));
  EXPECT_EQ(recorder.events, "[ n:1 n:2");
}

TEST(JsonVisitor, RefusesWhatIsNoJsonAndNamesTheByte) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":}", "{} {}", "{}x", "[01]", "['a']", "nul",
                           "[1 /* a */]", "[\"\x01\"]", "[\"\\x\"]", "[1e999]"}) {
    Recorder recorder;
    const absl::Status status = VisitJson(text, &recorder);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(" at byte ")) << text;
  }
}

TEST(JsonVisitor, RefusesInvalidUtf8AndHalvesOfSurrogates) {
  for (const char* text : {"[\"\xff\"]", "[\"\xc0\xaf\"]", "[\"\xed\xa0\x80\"]", "[\"\xe2\x82\"]",
                           "[\"\\ud800\"]", "[\"\\udc00\"]", "[\"\\ud800\\u0041\"]"}) {
    Recorder recorder;
    EXPECT_EQ(VisitJson(text, &recorder).code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

// The parser below would end there, and whatever follows would be in the file and seen by nobody.
TEST(JsonVisitor, RefusesAZeroByteAlsoAfterTheValue) {
  const std::string text("{}\0{\"hidden\": 1}", 16);
  EXPECT_THAT(Events(text), HasSubstr("byte 3: a byte 0"));
}

TEST(JsonVisitor, DeepNestingTakesNoStack) {
  const std::string text(10'000'000, '[');
  Recorder recorder;
  recorder.refuse = "k:never";
  EXPECT_EQ(VisitJson(text, &recorder).code(), absl::StatusCode::kInvalidArgument);
}

TEST(JsonVisitor, TextInAnErrorIsShort) {
  const std::string text = "[\"" + std::string(100'000, 'x');
  EXPECT_LT(Events(text).size(), 300u);
}

TEST(AppendJsonString, IsReadBackToTheSameText) {
  std::string text;
  for (int c = 1; c < 128; ++c) text.push_back(static_cast<char>(c));
  text += "\xc3\xa9\xf0\x9f\x98\x80";
  std::string json;
  AppendJsonString(text, &json);
  EXPECT_EQ(Events(json), "s:" + text);
  json.clear();
  AppendJsonString(absl::string_view("\0", 1), &json);
  EXPECT_EQ(json, "\"\\u0000\"");
}

}  // namespace
}  // namespace ballast
