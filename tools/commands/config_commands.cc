// `ballastctl config`: the configuration of ballastd, checked and shown where no server runs.
// Comes from: ballastctl. Goes to: server/config. Thread safety: the main thread.
#include <unistd.h>

#include <iostream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/text/inert.h"
#include "google/protobuf/util/json_util.h"
#include "server/config/environment.h"
#include "server/config/load.h"
#include "server/config/print.h"
#include "server/status/status_text.h"
#include "tools/commands/config_schema.h"
#include "tools/ctl/admin_call.h"
#include "tools/ctl/command.h"
#include "tools/ctl/output.h"

namespace ballast::tools {
namespace {

absl::StatusOr<config::LoadedConfig> LoadNamed(const Options& options) {
  config::LoadOptions load;
  if (!options.words.empty()) load.file = options.words[0];
  load.env = config::ProcessEnvironment();
  return config::Load(load);
}

int Refused(const absl::Status& status) {
  std::cerr << "ballastctl: " << Inert(status.message()) << "\n";
  return ExitCode(status);
}

int Check(const Options& options) {
  const auto loaded = LoadNamed(options);
  if (!loaded.ok()) return Refused(loaded.status());
  for (const std::string& warning : loaded->warnings) {
    std::cerr << "ballastctl: warning: " << Inert(warning) << "\n";
  }
  const std::string what = options.words.empty() ? "the environment" : options.words[0];
  return Print(options, absl::StrCat(what, " is a configuration of ballastd\n"),
               absl::StrCat("{\"valid\": true, \"file\": ",
                            options.words.empty() ? "null" : server::JsonText(options.words[0]),
                            ", \"warnings\": ", loaded->warnings.size(), "}\n"));
}

int ShowConfig(const Options& options) {
  const auto loaded = LoadNamed(options);
  if (!loaded.ok()) return Refused(loaded.status());
  if (options.form != Form::kJson) {
    // YAML already, and what ballastd reads.
    std::cout << config::Print(*loaded);
    return std::cout.flush() ? 0 : kFailure;
  }
  std::string text;
  google::protobuf::util::JsonPrintOptions json;
  json.preserve_proto_field_names = true;
  const auto written = google::protobuf::util::MessageToJsonString(loaded->config, &text, json);
  if (!written.ok()) return kFailure;
  std::cout << text << "\n";
  return std::cout.flush() ? 0 : kFailure;
}

int Schema(const Options& options) {
  const std::string schema = ConfigSchema();
  return Print(options, schema, schema);
}

}  // namespace

std::vector<Command> ConfigCommands() {
  return {
      {.name = "config check",
       .words = "[FILE]",
       .help = "whether ballastd accepts a file and the BALLAST_* variables",
       .run = Check,
       .asks_servers = false},
      {.name = "config show",
       .words = "[FILE]",
       .help = "what they make: every field, and where its value comes from",
       .run = ShowConfig,
       .asks_servers = false},
      {.name = "config schema",
       .help = "JSON Schema of the file, for editors",
       .run = Schema,
       .asks_servers = false},
  };
}

}  // namespace ballast::tools
