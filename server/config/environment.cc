// The environment, and variables that set no field. See environment.h.
#include "server/config/environment.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "ballast/config/v1/server.pb.h"
#include "common/text/names.h"
#include "server/config/fields.h"

namespace ballast::config {
namespace {

using Kind = VariableVerdict::Kind;

constexpr absl::string_view kPrefix = "BALLAST_";
constexpr absl::string_view kTestPrefix = "BALLAST_TEST_";
// Longer words are no misspelling, and the distance costs their length.
constexpr size_t kMaxVariableBytes = 64;

// The one variable that ballastd reads in addition to its fields.
constexpr absl::string_view kTimeScale = "BALLAST_TIME_SCALE";
// Variables that trainers, ballast-run, ballastctl, benchmarks and fault tests read or set;
// tests/server/main/main_test.py holds it against the sources of the clients.
std::vector<std::string> ClientVariables() {
  return {"BALLAST_ADMIN",
          "BALLAST_ATTACH_TIMEOUT",
          "BALLAST_BALLASTCTL",
          "BALLAST_BALLASTD",
          "BALLAST_COLLECTIVE_TIMEOUT",
          "BALLAST_DEVICE",
          "BALLAST_DS_CONFIG",
          "BALLAST_DURABILITY",
          "BALLAST_ENDPOINTS",
          "BALLAST_FAILPOINTS",
          "BALLAST_JOB",
          "BALLAST_JOB_MADE_UP",
          "BALLAST_KERNEL_BENCH",
          "BALLAST_LAST_WORDS",
          "BALLAST_MIN_WORLD_SIZE",
          "BALLAST_MIXED_PRECISION",
          "BALLAST_NCCL_ON_HOST",
          "BALLAST_PYTHON",
          "BALLAST_RANK",
          "BALLAST_RECONNECT_TIMEOUT",
          "BALLAST_RESUME",
          "BALLAST_SLOT",
          "BALLAST_TLS_CA",
          "BALLAST_TLS_CERT",
          "BALLAST_TLS_KEY",
          "BALLAST_TOKEN_FILE",
          "BALLAST_WORLD_SIZE"};
}

bool IsKnown(absl::string_view name) {
  const std::vector<std::string> clients = ClientVariables();
  return name == kTimeScale || std::find(clients.begin(), clients.end(), name) != clients.end();
}

// "7000_TCP", "7000_TCP_ADDR": the part after "_PORT_" in a service link.
bool IsPortDetail(absl::string_view text) {
  const size_t digits =
      std::find_if_not(text.begin(), text.end(), absl::ascii_isdigit) - text.begin();
  if (digits == 0) return false;
  text.remove_prefix(digits);
  for (const absl::string_view suffix : {"_ADDR", "_PORT", "_PROTO"}) {
    if (absl::ConsumeSuffix(&text, suffix)) break;
  }
  return text == "_TCP" || text == "_UDP" || text == "_SCTP";
}

// Variables that Kubernetes and Docker's links set in containers for each service whose name begins
// with "ballast": BALLAST_SERVICE_HOST, BALLAST_LOG_PORT=tcp://..., BALLAST_PORT_7000_TCP_ADDR.
bool IsServiceLink(absl::string_view name, absl::string_view value) {
  if (absl::EndsWith(name, "_SERVICE_HOST") || absl::EndsWith(name, "_SERVICE_PORT") ||
      absl::StrContains(name, "_SERVICE_PORT_")) {
    return true;
  }
  if (name == "BALLAST_NAME" || absl::StartsWith(name, "BALLAST_ENV_")) return true;
  constexpr absl::string_view kPort = "_PORT_";
  for (size_t at = name.find(kPort); at != name.npos; at = name.find(kPort, at + 1)) {
    if (IsPortDetail(name.substr(at + kPort.size()))) return true;
  }
  return absl::EndsWith(name, "_PORT") && absl::StrContains(value, "://");
}

std::string Hint(absl::string_view name) {
  return name.empty() ? "" : absl::StrCat(" (did you mean \"", name, "\"?)");
}

// The nearest of `names`, all of which begin with `prefix` as `name` does; "" when none is near.
// The prefix does not count: with it BALLAST_HOME would be near BALLAST_ISA.
std::string Nearest(absl::string_view name, absl::string_view prefix,
                    const std::vector<std::string>& names) {
  if (name.size() > kMaxVariableBytes) return "";
  std::vector<std::string> rests;
  for (const std::string& candidate : names) rests.push_back(candidate.substr(prefix.size()));
  const std::string near = DidYouMean(absl::StripPrefix(name, prefix), rests);
  return near.empty() ? "" : absl::StrCat(prefix, near);
}

// The section whose prefix the name has, or null.
const FieldDescriptor* SectionOf(absl::string_view name) {
  const Descriptor* root = v1::ServerConfig::descriptor();
  for (int i = 0; i < root->field_count(); ++i) {
    const FieldDescriptor* section = root->field(i);
    if (section->message_type() != nullptr && absl::StartsWith(name, SectionEnvPrefix(section))) {
      return section;
    }
  }
  return nullptr;
}

// The variable of the first field of that name in any section, or "".
std::string WithSection(absl::string_view name) {
  const std::string field = absl::AsciiStrToLower(absl::StripPrefix(name, kPrefix));
  for (const Leaf& leaf : Leaves()) {
    if (leaf.section != nullptr && leaf.field->name() == field) return leaf.env;
  }
  return "";
}

}  // namespace

std::map<std::string, std::string> ProcessEnvironment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

VariableVerdict JudgeVariable(absl::string_view name, absl::string_view value) {
  if (!absl::StartsWith(name, kPrefix) || absl::StartsWith(name, kTestPrefix) || IsKnown(name) ||
      IsServiceLink(name, value)) {
    return {};
  }
  const FieldDescriptor* section = SectionOf(name);
  std::vector<std::string> fields;
  for (const Leaf& leaf : Leaves()) {
    if (section == nullptr || leaf.section == section) fields.push_back(leaf.env);
  }
  if (section != nullptr) {
    return {Kind::kMisspelt,
            absl::StrCat("unknown variable: section \"", section->name(), "\" has no such field",
                         Hint(Nearest(name, SectionEnvPrefix(section), fields)))};
  }
  fields.emplace_back(kTimeScale);
  if (const std::string near = Nearest(name, kPrefix, fields); !near.empty()) {
    return {Kind::kMisspelt, absl::StrCat("unknown variable", Hint(near),
                                          "; if it is not meant for ballastd, unset or rename it")};
  }
  const std::string complete = WithSection(name);
  if (absl::StrContains(absl::StripPrefix(name, kPrefix), "_") && !complete.empty()) {
    return {Kind::kMisspelt,
            absl::StrCat("unknown variable: the name of its section is missing", Hint(complete))};
  }
  return {
      Kind::kUnknown,
      absl::StrCat("unknown variable, ignored",
                   Hint(complete.empty() ? Nearest(name, kPrefix, ClientVariables()) : complete))};
}

}  // namespace ballast::config
