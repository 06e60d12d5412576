// Target config: ballastd's configuration as YAML and as JSON, the peers file, and variables. An
// accepted configuration keeps every rule, and loads again from its printed form; a refusal names a
// place in the text. JSON accepted by the JSON reader is JSON by another parser, too.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "nlohmann/json.hpp"
#include "server/config/error_list.h"
#include "server/config/json_syntax.h"
#include "server/config/load.h"
#include "server/config/print.h"
#include "server/config/yaml_tree.h"
#include "tests/fuzz/byte_mutator.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/kinds.h"

namespace ballast::fuzz {
namespace {

enum Kind : size_t { kYaml, kJson, kYamlPeers, kJsonPeers, kVariable, kKinds };

constexpr char kYamlName[] = "f.yaml";
constexpr char kJsonName[] = "f.json";

constexpr char kYamlSeed[] = R"(# a server
listen:
  address: "127.0.0.1:0"
cluster:
  id: 1
  peers:
    - {id: 0, address: '127.0.0.1:7000'}
    - id: 1
      address: 127.0.0.1:7001
storage: {memory_budget: 1.5GiB, data_dir: "", checkpoint_rounds: 4}
rounds:
  chunk_bytes: 1MiB
timing:
  lease: 2500ms
log:
  level: warn
)";
constexpr char kJsonSeed[] =
    R"({"cluster": {"id": 0, "peers": [{"id": 0, "address": "127.0.0.1:7000"}]},
 "listen": {"insecure_network": false}, "storage": {"dram_budget": "192GiB"},
 "limits": {"max_jobs": 10}, "log": {"format": "json", "level": "warn"}})";
constexpr char kPeersSeed[] =
    R"({"peers": [{"id": 0, "address": "127.0.0.1:7000"}, {"id": 10, "address": "b:1"}]})";

// "<name>:<line>:<column>: ..." is a place in the text, or right after a line or the text.
void CheckPlace(absl::string_view line, absl::string_view name, absl::string_view text) {
  if (!absl::ConsumePrefix(&line, absl::StrCat(name, ":"))) return;
  const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
  uint64_t row = 0;
  uint64_t column = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &row)) return;  // Of the whole file.
  BALLAST_CHECK(absl::SimpleAtoi(parts[1], &column) && row >= 1 && column >= 1);
  const auto rows = static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  BALLAST_CHECK(row <= rows + 1);
  BALLAST_CHECK(column <= text.size() + 1);
}

void CheckRefusal(const absl::Status& status, absl::string_view name, absl::string_view text) {
  BALLAST_CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  BALLAST_CHECK(!status.message().empty());
  for (const absl::string_view line : absl::StrSplit(status.message(), '\n')) {
    CheckPlace(line, name, text);
  }
}

void CheckLoaded(const absl::StatusOr<config::LoadedConfig>& loaded, absl::string_view name,
                 absl::string_view text) {
  if (!loaded.ok()) return CheckRefusal(loaded.status(), name, text);
  BALLAST_CHECK(config::FindViolations(loaded->config).empty());
  config::LoadOptions again;
  again.file = kYamlName;
  again.text = config::Print(*loaded);
  const absl::StatusOr<config::LoadedConfig> second = config::Load(again);
  BALLAST_CHECK(second.ok());
  BALLAST_CHECK(second->config.SerializeAsString() == loaded->config.SerializeAsString());
}

// Two things that the other parser refuses are left out: halves of a surrogate pair, and numbers
// beyond a double.
bool MayDiffer(absl::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i - 1] == '\\' && text[i] == 'u') return true;
    if (absl::ascii_tolower(text[i]) == 'e' && absl::ascii_isdigit(text[i - 1])) return true;
  }
  return text.size() > 300;  // Digits enough to be beyond.
}

void CheckSyntax(absl::string_view text) {
  config::ErrorList errors;
  if (!config::IsPlainText(text) || !config::CheckJson(text, kJsonName, &errors)) return;
  if (absl::StripAsciiWhitespace(text).empty() || MayDiffer(text)) return;
  BALLAST_CHECK(nlohmann::json::accept(text.begin(), text.end()));
}

void RunFile(absl::string_view text, const char* name) {
  config::LoadOptions options;
  options.file = name;
  options.text = std::string(text);
  CheckLoaded(config::Load(options), name, text);
}

void RunPeers(absl::string_view text, const char* name) {
  const auto peers = config::ParsePeersFile(text, name);
  if (!peers.ok()) return CheckRefusal(peers.status(), name, text);
  BALLAST_CHECK(!peers->empty());
  (void)config::ValidatePeers(config::DefaultConfig(), *peers);
}

// NAME=value, as a variable and as a flag.
void RunVariable(absl::string_view text) {
  const std::pair<std::string, std::string> pair = absl::StrSplit(text, absl::MaxSplits('=', 1));
  config::LoadOptions options;
  options.env = {pair};
  CheckLoaded(config::Load(options), "", "");
  options.env.clear();
  options.flags = {pair};
  CheckLoaded(config::Load(options), "", "");
}

class Config : public FuzzTarget {
 public:
  std::vector<std::string> Seeds() const override {
    return {JoinKind(kYaml, kYamlSeed),
            JoinKind(kJson, kJsonSeed),
            JoinKind(kYamlPeers, kPeersSeed),
            JoinKind(kJsonPeers, kPeersSeed),
            JoinKind(kVariable, "BALLAST_STORAGE_MEMORY_BUDGET=1.5GiB"),
            JoinKind(kVariable, "cluster.peers=[{id: 0, address: 'a:1'}]")};
  }

  void Run(absl::string_view input) const override {
    const KindInput parts = SplitKind(input, kKinds);
    switch (parts.kind) {
      case kYaml:
        return RunFile(parts.rest, kYamlName);
      case kJson:
        CheckSyntax(parts.rest);
        return RunFile(parts.rest, kJsonName);
      case kYamlPeers:
        return RunPeers(parts.rest, kYamlName);
      case kJsonPeers:
        CheckSyntax(parts.rest);
        return RunPeers(parts.rest, kJsonName);
      default:
        return RunVariable(parts.rest);
    }
  }

  std::string Mutate(const std::string& input, FuzzRandom* random) const override {
    const KindInput parts = SplitKind(input, kKinds);
    const std::string text(parts.rest);
    return JoinKind(parts.kind, random->OneIn(3)
                                    ? MutateBytes(text, words_, random)
                                    : MutatePiece(text, " \n,:{}[]\"=", words_, random));
  }

 private:
  const std::vector<std::string> words_ = {"{",
                                           "}",
                                           "[",
                                           "]",
                                           ":",
                                           ": ",
                                           ",",
                                           "\"",
                                           "'",
                                           "\n",
                                           "\n  ",
                                           "- ",
                                           "#",
                                           "&a ",
                                           "*a",
                                           "!!str",
                                           "|\n",
                                           ">\n",
                                           "---\n",
                                           "%YAML 1.2\n",
                                           "? ",
                                           "null",
                                           "true",
                                           "~",
                                           "0",
                                           "-1",
                                           "9223372036854775807",
                                           "9223372036854775808",
                                           "1e9",
                                           ".inf",
                                           "0x10",
                                           "1_0",
                                           "64MiB",
                                           "1h",
                                           "0.5ns",
                                           "GiB",
                                           "cluster",
                                           "peers",
                                           "id",
                                           "\\u0041",
                                           "\\",
                                           "\xc3\xa9",
                                           "\t",
                                           "storage",
                                           "admin",
                                           "security",
                                           "\"mode\": \"tls\""};
};

}  // namespace

std::unique_ptr<FuzzTarget> ConfigTarget() { return std::make_unique<Config>(); }

}  // namespace ballast::fuzz
