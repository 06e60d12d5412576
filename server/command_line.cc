#include "server/command_line.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"
#include "common/text/units.h"
#include "server/config/fields.h"

namespace ballast::server {

const char kUsage[] =
    R"(ballastd keeps the fp32 master weights and optimizer state of training jobs, and steps them.

usage: ballastd [--config FILE] [options]
       ballastd --dev

  --config FILE         YAML or JSON configuration; see docs/config.md
  --dev                 one server on loopback with a free port and temporary data
  --listen HOST:PORT    port for trainers and servers          (listen.address)
  --admin HOST:PORT     port for metrics, probes and status    (admin.address)
  --id N                this server's number in the cluster    (cluster.id)
  --peers-file FILE     JSON list of all servers, waited for   (cluster.peers_file)
  --data-dir DIR        everything on disk                     (storage.data_dir)
  --dram-budget SIZE    memory for state, such as 64GiB        (storage.dram_budget)
  --set FIELD=VALUE     any field of the configuration, such as timing.job_ttl=1m; may be repeated
  --ready-file FILE     written once the ports are bound: id, addresses and pid as JSON
  --check-config        check the configuration and exit
  --print-config        print the effective configuration with the origin of each value, and exit
  --pause TIME          only wait, such as 5s, and exit; for a preStop hook in a pod
  --list-failpoints     print the names that BALLAST_FAILPOINTS may set, for tests, and exit
  --version, --help

Every field can also be set by a variable: BALLAST_TIMING_LEASE=20s. Flags win over variables, and
variables over the file. BALLAST_TIME_SCALE=4 stretches every time of failure detection.
)";

namespace {

// For abbreviated flags: "--" and one letter are too ambiguous for a suggestion.
constexpr size_t kMinPrefixBytes = 4;
constexpr std::chrono::milliseconds kPauseMin(1);
constexpr std::chrono::minutes kPauseMax(5);

// Flags that stand for a field of the configuration.
const std::map<std::string, std::string>& FieldFlags() {
  static const auto* flags = new std::map<std::string, std::string>{
      {"--listen", "listen.address"},
      {"--admin", "admin.address"},
      {"--id", "cluster.id"},
      {"--peers-file", "cluster.peers_file"},
      {"--data-dir", "storage.data_dir"},
      {"--dram-budget", "storage.dram_budget"},
  };
  return *flags;
}

// The likely intended spelling of `flag`: a known flag with a similar spelling, else one with
// `flag` as its prefix, else the configuration field of that name, which has no flag of its own. ""
// if nothing matches.
std::string Meant(const std::string& flag, const std::vector<std::string>& known) {
  if (const std::string near = DidYouMean(flag, known); !near.empty()) return near;
  for (const std::string& name : known) {
    if (flag.size() >= kMinPrefixBytes && absl::StartsWith(name, flag)) return name;
  }
  const std::string field = absl::StrReplaceAll(absl::StripPrefix(flag, "--"), {{"-", "_"}});
  for (const config::Leaf& leaf : config::Leaves()) {
    if (leaf.path == field || leaf.field->name() == field) {
      return absl::StrCat("--set ", leaf.path, "=VALUE");
    }
  }
  return "";
}

absl::Status UnknownFlag(const std::string& flag) {
  std::vector<std::string> known = {
      "--config", "--dev",     "--set",          "--ready-file",   "--help",
      "--pause",  "--version", "--check-config", "--print-config", "--list-failpoints",
  };
  for (const auto& [name, field] : FieldFlags()) known.push_back(name);
  const std::string meant = Meant(flag, known);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown flag ", flag, meant.empty() ? "" : absl::StrCat(" (did you mean ", meant, "?)"),
      "; ballastd --help lists them"));
}

// Sets a flag without a value; false for any other flag.
bool SetSwitch(const std::string& flag, CommandLine* line) {
  const std::map<std::string, bool*> switches = {
      {"--help", &line->help},
      {"-h", &line->help},
      {"--version", &line->version},
      {"--check-config", &line->check_config},
      {"--dev", &line->dev},
      {"--print-config", &line->print_config},
      {"--list-failpoints", &line->list_failpoints},
  };
  const auto found = switches.find(flag);
  if (found != switches.end()) *found->second = true;
  return found != switches.end();
}

void SetField(const std::string& path, const std::string& value, const std::string& typed,
              config::LoadOptions* load) {
  load->flags[path] = value;
  load->flags_typed[path] = typed;
}

absl::Status SetPause(const std::string& value, CommandLine* line) {
  const auto time = ParseDuration(value);
  if (!time.ok() || *time < kPauseMin || *time > kPauseMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--pause takes 1ms to 5m, such as 5s, not \"", value, "\""));
  }
  line->pause_ms = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(*time).count());
  return absl::OkStatus();
}

absl::Status SetValue(const std::string& flag, const std::string& value, CommandLine* line) {
  if (flag == "--config" || flag == "--ready-file") {
    if (value.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " is empty; give the name of a file, or leave it out"));
    }
    (flag == "--config" ? line->load.file : line->ready_file) = value;
  } else if (flag == "--pause") {
    return SetPause(value, line);
  } else if (flag == "--set") {
    const size_t equals = value.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--set takes FIELD=VALUE, such as timing.job_ttl=1m, not \"", value, "\""));
    }
    const std::string path = value.substr(0, equals);
    SetField(path, value.substr(equals + 1), absl::StrCat("--set ", path), &line->load);
  } else {
    SetField(FieldFlags().at(flag), value, flag, &line->load);
  }
  return absl::OkStatus();
}

bool TakesValue(const std::string& flag) {
  return flag == "--config" || flag == "--ready-file" || flag == "--set" || flag == "--pause" ||
         FieldFlags().count(flag) != 0;
}

absl::Status ParseTimeScale(const std::map<std::string, std::string>& environment, double* scale) {
  const auto found = environment.find("BALLAST_TIME_SCALE");
  if (found == environment.end() || found->second.empty()) return absl::OkStatus();
  if (!absl::SimpleAtod(found->second, scale) || !std::isfinite(*scale) || *scale <= 0 ||
      *scale > 1000) {
    return absl::InvalidArgumentError(absl::StrCat("BALLAST_TIME_SCALE is \"", found->second,
                                                   "\"; it must be a number in (0, 1000]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(
    const std::vector<std::string>& arguments,
    const std::map<std::string, std::string>& environment) {
  CommandLine line;
  line.load.env = environment;
  BALLAST_RETURN_IF_ERROR(ParseTimeScale(environment, &line.time_scale));
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (SetSwitch(argument, &line)) continue;
    const size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    if (SetSwitch(flag, &line)) {
      return absl::InvalidArgumentError(absl::StrCat("flag ", flag, " takes no value"));
    }
    if (!TakesValue(flag)) return UnknownFlag(flag);
    if (equals != std::string::npos) {
      BALLAST_RETURN_IF_ERROR(SetValue(flag, argument.substr(equals + 1), &line));
    } else if (i + 1 < arguments.size()) {
      BALLAST_RETURN_IF_ERROR(SetValue(flag, arguments[++i], &line));
    } else {
      return absl::InvalidArgumentError(absl::StrCat("flag ", flag, " needs a value"));
    }
  }
  if (line.dev && line.load.flags.count("cluster.peers_file") != 0) {
    return absl::InvalidArgumentError("--dev runs one server; leave out --peers-file");
  }
  // With --dev, main names a temporary directory unless one was given.
  if (line.dev) line.load.flags_typed.emplace("storage.data_dir", "--dev");
  return line;
}

}  // namespace ballast::server
