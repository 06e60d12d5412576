// Files called .json hold JSON and nothing more: accepted inputs, and the fault and its place for
// all others.
#include "server/config/json_syntax.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/config/load.h"

namespace ballast::config {
namespace {

std::string FaultOf(const std::string& text) {
  ErrorList errors;
  const bool good = CheckJson(text, "f.json", &errors);
  EXPECT_EQ(good, errors.empty()) << text;
  return std::string(errors.ToStatus().message());
}

TEST(JsonSyntax, EverythingThatIsJsonPasses) {
  for (const char* text :
       {"", " \n", "{}", "[]", "null", " true ", "false", "0", "-0.5e+3", "12E-1", "\"\"",
        "{\"a\": {\"b\": [1, 2.5, -3, \"x\"]}, \"c\": null}", "[[], {}, [{}]]\n",
        "\"\\\" \\\\ \\/ \\b\\f\\n\\r\\t \\u00e4 \xc3\xa4\"", "\r\n{\t\"a\" : 1 }\r\n"}) {
    EXPECT_EQ(FaultOf(text), "") << text;
  }
}

TEST(JsonSyntax, FaultsHaveAPlace) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"{\"a\": 1,}", "1:8: not valid JSON: a comma with nothing behind it; remove it"},
      {"{\n  \"a\": [1,\n  2,\n]}",
       "3:4: not valid JSON: a comma with nothing behind it; remove it"},
      {"{,}", "1:2: not valid JSON: expected a field name in double quotes"},
      {"[,1]", "1:2: not valid JSON: expected a value"},
      {"{a: 1}", "1:2: not valid JSON: expected a field name in double quotes"},
      {"{'a': 1}", "1:2: not valid JSON: expected a field name in double quotes"},
      {"{\"a\" 1}", "1:6: not valid JSON: expected a colon"},
      {"{\"a\": info}", "1:7: not valid JSON: expected a value"},
      {"{\"a\": 1 \"b\": 2}", "1:9: not valid JSON: expected a comma or }"},
      {"[1 2]", "1:4: not valid JSON: expected a comma or ]"},
      {"{\"a\": 1", "1:8: not valid JSON: expected a comma or }, but the text ends here"},
      {"{\"a\":", "1:6: not valid JSON: expected a value, but the text ends here"},
      {"{\"a", "1:2: not valid JSON: a text without its closing quote"},
      {"# no\n{}", "1:1: not valid JSON: expected a value"},
      {"{} // no", "1:4: not valid JSON: text behind the end of the value"},
      {"{}\n{}", "2:1: not valid JSON: text behind the end of the value"},
      {"listen: {}", "1:1: not valid JSON: expected a value"},
      {"[01]", "1:2: not valid JSON: a number that begins with 0"},
      {"[1.]", "1:4: not valid JSON: expected a digit"},
      {"[-]", "1:3: not valid JSON: expected a digit"},
      {"[1e]", "1:4: not valid JSON: expected a digit"},
      {"[+1]", "1:2: not valid JSON: expected a value"},
      {"[\"\\x\"]", "1:3: not valid JSON: an unknown escape; a backslash itself is written \\\\"},
      {"[\"\\u12g4\"]", "1:7: not valid JSON: expected four hexadecimal digits"},
      {"[\"a\nb\"]", "1:4: not valid JSON: a control character in a text"},
      {std::string(9, '['), "1:9: not valid JSON: nested deeper than 8 levels"},
      {std::string(8, '[') + std::string(8, ']') + "]",
       "1:17: not valid JSON: text behind the end of the value"},
  };
  for (const auto& [text, message] : table) EXPECT_EQ(FaultOf(text), "f.json:" + message) << text;
}

TEST(JsonSyntax, EveryCutIsAFaultAndNotACrash) {
  const std::string whole = "{\"a\": {\"b\": [1, -2.5e-3, \"x\\u00e4\"]}, \"c\": null}";
  ASSERT_EQ(FaultOf(whole), "");
  for (size_t bytes = 1; bytes < whole.size(); ++bytes) {
    EXPECT_NE(FaultOf(whole.substr(0, bytes)), "") << bytes;
  }
}

TEST(JsonSyntax, HoldsForConfigurationAndPeersCalledSoAndForNoOther) {
  LoadOptions options;
  options.text = "{\"log\": {\"level\": \"warn\",}}";
  options.file = "dir/server.JSON";
  EXPECT_EQ(std::string(Load(options).status().message()),
            "dir/server.JSON:1:25: not valid JSON: a comma with nothing behind it; remove it");
  options.file = "server.yaml";
  EXPECT_TRUE(Load(options).ok());
  const std::string peers = "{\"peers\": [{\"id\": 0, \"address\": \"127.0.0.1:1\"},]}";
  EXPECT_TRUE(ParsePeersFile(peers, "peers").ok());
  EXPECT_EQ(std::string(ParsePeersFile(peers, "peers.json").status().message()),
            "peers.json:1:47: not valid JSON: a comma with nothing behind it; remove it");
  // Sizes and names are still told by the schema.
  options.text = "{\"log\": {\"levle\": \"warn\"}}";
  options.file = "server.json";
  EXPECT_EQ(std::string(Load(options).status().message()),
            "server.json:1:10: unknown field \"levle\" (did you mean \"level\"?)");
}

}  // namespace
}  // namespace ballast::config
