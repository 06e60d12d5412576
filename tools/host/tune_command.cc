// `ballastctl tune nvme`: its arguments, and its result as text and JSON.
// Comes from: ballastctl. Goes to: nvme_tune.h, stdout and stderr. Thread safety: the main thread.
#include <algorithm>
#include <array>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/io/file.h"
#include "common/text/names.h"
#include "common/text/units.h"
#include "server/status/status_text.h"
#include "tools/ctl/command.h"
#include "tools/ctl/output.h"
#include "tools/host/nvme_tune.h"

namespace ballast::tools {
namespace {

constexpr uint64_t kIoBytesMin = uint64_t{64} << 20;
constexpr uint64_t kIoBytesMax = uint64_t{16} << 30;
constexpr uint64_t kIoBytesUnit = uint64_t{4} << 20;
constexpr uint64_t kTuneBlockBytesMax = uint64_t{64} << 20;
constexpr int kDepthMax = 4096;
constexpr size_t kValuesMax = 32;
constexpr double kSecondsMax = 60;
constexpr uint64_t kUnderWayMax = uint64_t{1} << 30;

constexpr char kUsage[] =
    R"(usage: ballastctl tune nvme --path DIR [--path DIR]... [--io-size SIZE] [--no-read]
                            [--no-write] [--block-size LIST] [--queue-depth LIST]
                            [--seconds S] [--aio FILE] [-o table|json|yaml]

Measures reading, writing and both at once in each directory, with every block size and queue depth
of the two lists, and prints the "aio" section for a ds_config.json and the one for
ballastd: the best mixed bandwidth, and within 3 % of it the fewest bytes under way. About 20 s per
directory.

  --path DIR      a directory on the device; may be repeated
  --io-size SIZE  of the temporary file, 64MiB to 16GiB (default: 512MiB); larger than the device's
                  cache is better
  --no-read, --no-write
                  leave that out; then only the other counts
  --block-size LIST
                  with commas (default: 256KiB,1MiB,4MiB); each a multiple of 4096, at most 64MiB
  --queue-depth LIST
                  with commas (default: 1,2,4,8,16); each at most 4096; a pair with more under
                  way than the temporary file has, or than 1GiB, is left out
  --seconds S     of one measurement (default: 0.3)
  --aio FILE      a ds_config.json, or its "aio" section: these settings are measured, too, and
                  compared; keys and texts that DeepSpeed's own tuner prints are understood
  -o table|json|yaml
                  form of the output (default: table)
)";

std::string Table(const TuneResult& result) {
  std::string text = absl::StrCat(result.path, "\n");
  absl::StrAppendFormat(&text, "  %8s %6s %10s %10s %10s  MB/s\n", "block", "depth", "read",
                        "write", "mixed");
  for (const TuneSample& sample : result.samples) {
    const bool chosen = sample.block_bytes == result.chosen.block_bytes &&
                        sample.queue_depth == result.chosen.queue_depth;
    absl::StrAppendFormat(&text, "%s %8s %6d %10.0f %10.0f %10.0f\n", chosen ? "*" : " ",
                          FormatBytes(sample.block_bytes), sample.queue_depth, sample.read / 1e6,
                          sample.write / 1e6, sample.mixed / 1e6);
  }
  if (result.present.has_value()) {
    absl::StrAppendFormat(&text, "  yours, %s x %d: %.2f of the chosen one\n",
                          FormatBytes(result.present->block_bytes), result.present->queue_depth,
                          result.present->score() / result.chosen.score());
  }
  return absl::StrCat(text, "\nds_config.json:\n\"aio\": ", AioSection(result.chosen),
                      "\n\nballastd:\n", ServerSection(result.chosen));
}

std::string SampleJson(const TuneSample& sample) {
  return absl::StrFormat(
      "{\"block_size\": %d, \"queue_depth\": %d, \"read_mb_s\": %.1f, \"write_mb_s\": %.1f, "
      "\"mixed_mb_s\": %.1f}",
      sample.block_bytes, sample.queue_depth, sample.read / 1e6, sample.write / 1e6,
      sample.mixed / 1e6);
}

std::string Json(const TuneResult& result) {
  std::vector<std::string> warnings;
  for (const std::string& warning : result.warnings) warnings.push_back(server::JsonText(warning));
  std::vector<std::string> samples;
  for (const TuneSample& sample : result.samples) {
    samples.push_back(SampleJson(sample));
  }
  return absl::StrCat(
      "{\"path\": ", server::JsonText(result.path), ", \"aio\": ", AioSection(result.chosen),
      ", \"ballast\": ",
      absl::StrFormat("{\"aio\": {\"block_size\": %d, \"queue_depth\": %d}}",
                      result.chosen.block_bytes, result.chosen.queue_depth),
      result.present ? absl::StrCat(", \"present\": ", SampleJson(*result.present)) : "",
      ", \"warnings\": [", absl::StrJoin(warnings, ", "), "], \"samples\": [",
      absl::StrJoin(samples, ", "), "]}");
}

// All results in one text; they are tables or JSON already.
std::string Text(Form form, const std::vector<std::string>& results) {
  if (form == Form::kTable) return absl::StrJoin(results, "\n");
  const std::string json = absl::StrCat("[", absl::StrJoin(results, ",\n"), "]\n");
  return form == Form::kJson ? json : YamlOfJson(json);
}

struct Parsed {
  TuneOptions options;
  Form form = Form::kTable;
};

absl::StatusOr<AioSettings> ReadAioFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::InvalidArgumentError(absl::StrCat("--aio ", path, ": cannot read it"));
  absl::StatusOr<AioSettings> settings = ParseAioSettings(text.str());
  if (!settings.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--aio ", path, ": ", settings.status().message()));
  }
  const uint64_t under_way = settings->block_bytes * static_cast<uint64_t>(settings->queue_depth);
  if (under_way > kUnderWayMax) {
    return absl::InvalidArgumentError(absl::StrCat("--aio ", path, ": block_size x queue_depth is ",
                                                   FormatBytes(under_way), ", at most ",
                                                   FormatBytes(kUnderWayMax), " is measured"));
  }
  return settings;
}

absl::Status TakeIoSize(const std::string& value, TuneOptions* options) {
  BALLAST_ASSIGN_OR_RETURN(options->io_bytes, ParseBytes(value));
  if (options->io_bytes < kIoBytesMin || options->io_bytes > kIoBytesMax ||
      options->io_bytes % kIoBytesUnit != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--io-size ", value, "; it takes 64MiB to 16GiB, a multiple of 4MiB"));
  }
  return absl::OkStatus();
}

// The values of a list with commas, `take` of each.
template <typename T, typename Take>
absl::StatusOr<std::vector<T>> TakeList(const std::string& value, const Take& take) {
  std::vector<T> values;
  for (const absl::string_view word : absl::StrSplit(value, ',')) {
    BALLAST_ASSIGN_OR_RETURN(const T one, take(std::string(word)));
    values.push_back(one);
  }
  if (values.size() > kValuesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a list of ", values.size(), " values; at most ",
                                                   kValuesMax, " are measured"));
  }
  return values;
}

absl::StatusOr<uint64_t> TakeBlock(const std::string& word) {
  BALLAST_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(word));
  if (bytes == 0 || bytes % kPageBytes != 0 || bytes > kTuneBlockBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--block-size ", word, "; it takes multiples of 4096 up to 64MiB"));
  }
  return bytes;
}

absl::StatusOr<int> TakeDepth(const std::string& word) {
  int depth = 0;
  if (!absl::SimpleAtoi(word, &depth) || depth < 1 || depth > kDepthMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--queue-depth ", word, "; it takes 1 to ", kDepthMax));
  }
  return depth;
}

// "text" is what earlier versions called the table.
absl::StatusOr<Form> TakeForm(const std::string& value) {
  if (value == "json") return Form::kJson;
  if (value == "yaml") return Form::kYaml;
  if (value == "table" || value == "text") return Form::kTable;
  return absl::InvalidArgumentError(
      absl::StrCat("-o takes table, json or yaml, not ", Quoted(value)));
}

absl::Status TakeValue(const std::string& flag, const std::string& value, Parsed* parsed) {
  TuneOptions& options = parsed->options;
  if (flag == "--path") {
    options.paths.push_back(value);
  } else if (flag == "--aio") {
    BALLAST_ASSIGN_OR_RETURN(options.present, ReadAioFile(value));
  } else if (flag == "--block-size") {
    BALLAST_ASSIGN_OR_RETURN(options.block_bytes, TakeList<uint64_t>(value, TakeBlock));
  } else if (flag == "--queue-depth") {
    BALLAST_ASSIGN_OR_RETURN(options.queue_depths, TakeList<int>(value, TakeDepth));
  } else if (flag == "--io-size") {
    return TakeIoSize(value, &options);
  } else if (flag == "--seconds") {
    if (!absl::SimpleAtod(value, &options.seconds) || !(options.seconds > 0) ||
        options.seconds > kSecondsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("--seconds ", value, "; it takes more than 0 and up to ", kSecondsMax));
    }
  } else {
    BALLAST_ASSIGN_OR_RETURN(parsed->form, TakeForm(value));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const TuneOptions& options) {
  if (options.paths.empty()) return absl::InvalidArgumentError("--path DIR is missing");
  if (!options.read && !options.write) {
    return absl::InvalidArgumentError("--no-read with --no-write leaves nothing to measure");
  }
  if (TunePairs(options).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("every --block-size x --queue-depth is more than the ",
                     FormatBytes(options.io_bytes), " of --io-size, or more than 1GiB"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Parsed> Parse(const std::vector<std::string>& arguments) {
  constexpr std::array<const char*, 8> kWithValue = {"--path",       "--io-size",     "--aio",
                                                     "--block-size", "--queue-depth", "--seconds",
                                                     "-o",           "--output"};
  Parsed parsed;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& flag = arguments[i];
    if (flag == "--no-read" || flag == "--no-write") {
      (flag == "--no-read" ? parsed.options.read : parsed.options.write) = false;
      continue;
    }
    if (std::find(kWithValue.begin(), kWithValue.end(), flag) == kWithValue.end()) {
      return absl::InvalidArgumentError("unknown argument " + flag);
    }
    if (++i == arguments.size()) return absl::InvalidArgumentError(flag + " needs a value");
    BALLAST_RETURN_IF_ERROR(TakeValue(flag, arguments[i], &parsed));
  }
  BALLAST_RETURN_IF_ERROR(CheckOptions(parsed.options));
  return parsed;
}

}  // namespace

int TuneMain(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h")) {
    std::cout << kUsage;
    return 0;
  }
  const absl::StatusOr<Parsed> parsed = Parse(arguments);
  if (!parsed.ok()) {
    std::cerr << "ballastctl: " << parsed.status().message() << "\n" << kUsage;
    return kUsageError;
  }
  if (parsed->options.present.has_value()) {
    for (const std::string& warning : parsed->options.present->warnings) {
      std::cerr << "ballastctl: warning: " << warning << "\n";
    }
  }
  std::vector<std::string> results;
  for (const std::string& path : parsed->options.paths) {
    const absl::StatusOr<TuneResult> result = TuneDevice(parsed->options, path);
    if (!result.ok()) {
      std::cerr << "ballastctl: " << result.status().message() << "\n";
      return kFailure;
    }
    for (const std::string& warning : result->warnings) {
      std::cerr << "ballastctl: warning: " << warning << "\n";
    }
    results.push_back(parsed->form == Form::kTable ? Table(*result) : Json(*result));
  }
  std::cout << Text(parsed->form, results);
  return std::cout.flush() ? 0 : kFailure;
}

std::vector<Command> TuneCommands() {
  return {
      {.name = "tune nvme",
       .words = "--path DIR...",
       .help = "measure a disk, and print the aio settings that suit it",
       .asks_servers = false,
       .run_unparsed = TuneMain,
       .own_flags =
           "--path --io-size --no-read --no-write --block-size --queue-depth --seconds --aio"},
  };
}

}  // namespace ballast::tools
