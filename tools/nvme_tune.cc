#include "tools/nvme_tune.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "common/io/arena.h"
#include "common/io/file.h"
#include "common/io/file_error.h"
#include "common/io/huge_pages.h"
#include "common/io/io_engine.h"
#include "common/io/io_stream.h"

namespace ballast::tools {
namespace {

constexpr std::array<uint64_t, 3> kBlocks = {uint64_t{256} << 10, uint64_t{1} << 20,
                                             uint64_t{4} << 20};
constexpr std::array<int, 5> kDepths = {1, 2, 4, 8, 16};
constexpr uint64_t kIoBytesMin = uint64_t{64} << 20;
constexpr uint64_t kIoBytesMax = uint64_t{16} << 30;
constexpr double kNearlyBest = 0.97;
constexpr uint64_t kUnderWayMax = uint64_t{1} << 30;

constexpr char kUsage[] =
    R"(usage: ballastctl tune nvme --path DIR [--path DIR]... [--io-size SIZE] [--no-read]
                            [--no-write] [--aio FILE] [-o text|json]

Measures reading, writing and both at once in each directory, with blocks of 256 KiB to 4 MiB and
1 to 16 of them under way, and prints the "aio" section for a ds_config.json and the one for
ballastd: the best mixed bandwidth, and within 3 % of it the fewest bytes under way. About 20 s per
directory.

  --path DIR      a directory on the device; may be repeated
  --io-size SIZE  of the temporary file, 64MiB to 16GiB (default: 512MiB); larger than the device's
                  cache is better
  --no-read, --no-write
                  leave that out; then only the other counts
  --aio FILE      a ds_config.json, or its "aio" section: these settings are measured, too, and
                  compared; keys and texts that DeepSpeed's own tuner prints are understood
  -o text|json    form of the output (default: text)
)";

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A file without a name: gone with the process, however that ends.
class NamelessFile {
 public:
  static absl::StatusOr<std::unique_ptr<NamelessFile>> Create(const std::string& directory,
                                                              uint64_t bytes) {
    auto file = std::unique_ptr<NamelessFile>(new NamelessFile);
    file->descriptor_ =
        open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file->descriptor_ < 0 && errno == EINVAL) {
      file->direct_ = false;
      file->descriptor_ =
          open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    }
    if (file->descriptor_ < 0) return FileError(errno, "make a temporary file in", directory);
    const int error = posix_fallocate(file->descriptor_, 0, static_cast<off_t>(bytes));
    if (error != 0) {
      return FileError(error, absl::StrCat("allocate ", bytes, " bytes in"), directory);
    }
    return file;
  }
  ~NamelessFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int descriptor() const { return descriptor_; }
  bool direct() const { return direct_; }

 private:
  NamelessFile() = default;
  int descriptor_ = -1;
  bool direct_ = true;
};

std::vector<std::string> Warnings(const std::string& path, bool direct) {
  std::vector<std::string> warnings;
  struct statfs info {};
  if (statfs(path.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC) {
    warnings.push_back(path + " is tmpfs: this measures memory, not a disk");
  } else if (!direct) {
    warnings.push_back(path + " has no O_DIRECT: the page cache was measured with the device");
  }
  if (HugePageMode() == "never") {
    warnings.push_back(absl::StrCat("transparent huge pages are off (", kHugePagesFile,
                                    "): buffers have small pages, which can cost half of the "
                                    "bandwidth"));
  }
  return warnings;
}

class Tuner {
 public:
  Tuner(const TuneOptions& options, std::string path) : options_(options), path_(std::move(path)) {}

  absl::StatusOr<TuneResult> Run() {
    BALLAST_ASSIGN_OR_RETURN(file_, NamelessFile::Create(path_, options_.io_bytes));
    BALLAST_ASSIGN_OR_RETURN(memory_, Arena::Create(MemoryBytes()));
    std::mt19937_64 random(1);
    auto* const words = reinterpret_cast<uint64_t*>(memory_.data());
    for (size_t i = 0; i < memory_.bytes() / sizeof(uint64_t); ++i) words[i] = random();
    BALLAST_RETURN_IF_ERROR(Fill());
    TuneResult result{.path = path_, .warnings = Warnings(path_, file_->direct())};
    for (const uint64_t block : kBlocks) {
      for (const int depth : kDepths) {
        BALLAST_ASSIGN_OR_RETURN(const TuneSample sample, Measure(block, depth));
        result.samples.push_back(sample);
      }
    }
    if (options_.present.has_value()) {
      BALLAST_ASSIGN_OR_RETURN(
          result.present, Measure(options_.present->block_bytes, options_.present->queue_depth));
    }
    std::cerr << "\n";
    result.chosen = ChooseSample(result.samples);
    return result;
  }

 private:
  int Pairs() const {
    return static_cast<int>(kBlocks.size() * kDepths.size()) + (options_.present ? 1 : 0);
  }

  uint64_t MemoryBytes() const {
    uint64_t bytes = kBlocks.back() * kDepths.back();
    if (options_.present.has_value()) {
      bytes = std::max(bytes, options_.present->block_bytes *
                                  static_cast<uint64_t>(options_.present->queue_depth));
    }
    return bytes;
  }

  absl::StatusOr<std::unique_ptr<IoEngine>> Engine(uint64_t block, int depth) const {
    BALLAST_ASSIGN_OR_RETURN(auto backend, MakeLibaioBackend(depth));
    return IoEngine::Create({.block_bytes = block, .queue_depth = depth}, std::move(backend));
  }

  // Every block once, so that reads come from the device and writes allocate nothing.
  absl::Status Fill() {
    BALLAST_ASSIGN_OR_RETURN(const auto engine, Engine(kBlocks.back(), 4));
    for (uint64_t at = 0; at < options_.io_bytes; at += memory_.bytes()) {
      const uint64_t bytes = std::min<uint64_t>(memory_.bytes(), options_.io_bytes - at);
      BALLAST_RETURN_IF_ERROR(engine->Run({.kind = IoKind::kWrite,
                                           .descriptor = file_->descriptor(),
                                           .path = path_,
                                           .offset = at,
                                           .data = memory_.data(),
                                           .bytes = bytes}));
    }
    return engine->Run({.kind = IoKind::kSync, .descriptor = file_->descriptor(), .path = path_});
  }

  absl::StatusOr<TuneSample> Measure(uint64_t block, int depth) {
    TuneSample sample{.block_bytes = block, .queue_depth = depth};
    BALLAST_ASSIGN_OR_RETURN(const auto engine, Engine(block, depth));
    const auto rate = [&](IoMix mix) {
      return MeasureIo(engine.get(),
                       {.descriptor = file_->descriptor(),
                        .path = path_,
                        .file_bytes = options_.io_bytes,
                        .block_bytes = block,
                        .depth = depth,
                        .mix = mix,
                        .memory = memory_.data(),
                        .seconds = options_.seconds},
                       Now);
    };
    if (options_.read) {
      BALLAST_ASSIGN_OR_RETURN(sample.read, rate(IoMix::kRead));
    }
    if (options_.write) {
      BALLAST_ASSIGN_OR_RETURN(sample.write, rate(IoMix::kWrite));
    }
    if (options_.read && options_.write) {
      BALLAST_ASSIGN_OR_RETURN(sample.mixed, rate(IoMix::kMixed));
    }
    ++done_;
    std::cerr << absl::StreamFormat("\r%s: %2d of %d, blocks of %s, %2d under way  ", path_, done_,
                                    Pairs(), FormatBytes(block), depth);
    std::cerr.flush();
    return sample;
  }

  const TuneOptions& options_;
  const std::string path_;
  std::unique_ptr<NamelessFile> file_;
  Arena memory_;
  int done_ = 0;
};

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

// Text for JSON.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    const bool control = static_cast<unsigned char>(c) < 0x20;
    out += control ? absl::StrFormat("\\u%04x", c) : std::string(1, c);
  }
  return out + "\"";
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
  for (const std::string& warning : result.warnings) warnings.push_back(Quoted(warning));
  std::vector<std::string> samples;
  for (const TuneSample& sample : result.samples) {
    samples.push_back(SampleJson(sample));
  }
  return absl::StrCat(
      "{\"path\": ", Quoted(result.path), ", \"aio\": ", AioSection(result.chosen),
      ", \"ballast\": ",
      absl::StrFormat("{\"aio\": {\"block_size\": %d, \"queue_depth\": %d}}",
                      result.chosen.block_bytes, result.chosen.queue_depth),
      result.present ? absl::StrCat(", \"present\": ", SampleJson(*result.present)) : "",
      ", \"warnings\": [", absl::StrJoin(warnings, ", "), "], \"samples\": [",
      absl::StrJoin(samples, ", "), "]}");
}

struct Parsed {
  TuneOptions options;
  bool json = false;
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

absl::StatusOr<Parsed> Parse(const std::vector<std::string>& arguments) {
  Parsed parsed;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& flag = arguments[i];
    if (flag == "--no-read" || flag == "--no-write") {
      (flag == "--no-read" ? parsed.options.read : parsed.options.write) = false;
      continue;
    }
    if (flag != "--path" && flag != "--io-size" && flag != "--aio" && flag != "-o") {
      return absl::InvalidArgumentError("unknown argument " + flag);
    }
    if (++i == arguments.size()) return absl::InvalidArgumentError(flag + " needs a value");
    const std::string& value = arguments[i];
    if (flag == "--path") {
      parsed.options.paths.push_back(value);
    } else if (flag == "--aio") {
      BALLAST_ASSIGN_OR_RETURN(parsed.options.present, ReadAioFile(value));
    } else if (flag == "-o") {
      if (value != "text" && value != "json") {
        return absl::InvalidArgumentError(absl::StrCat("-o ", value, "; it takes text or json"));
      }
      parsed.json = value == "json";
    } else {
      BALLAST_ASSIGN_OR_RETURN(parsed.options.io_bytes, ParseBytes(value));
      if (parsed.options.io_bytes < kIoBytesMin || parsed.options.io_bytes > kIoBytesMax ||
          parsed.options.io_bytes % kBlocks.back() != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("--io-size ", value, "; it takes 64MiB to 16GiB, a multiple of 4MiB"));
      }
    }
  }
  if (parsed.options.paths.empty()) return absl::InvalidArgumentError("--path DIR is missing");
  if (!parsed.options.read && !parsed.options.write) {
    return absl::InvalidArgumentError("--no-read with --no-write leaves nothing to measure");
  }
  return parsed;
}

}  // namespace

TuneSample ChooseSample(const std::vector<TuneSample>& samples) {
  double best = 0;
  for (const TuneSample& sample : samples) best = std::max(best, sample.score());
  const TuneSample* chosen = nullptr;
  for (const TuneSample& sample : samples) {
    if (sample.score() < kNearlyBest * best) continue;
    if (chosen == nullptr || sample.bytes_under_way() < chosen->bytes_under_way() ||
        (sample.bytes_under_way() == chosen->bytes_under_way() &&
         sample.score() > chosen->score())) {
      chosen = &sample;
    }
  }
  return *chosen;
}

std::string AioSection(const TuneSample& sample) {
  return absl::StrFormat(
      "{\"block_size\": %d, \"queue_depth\": %d, \"intra_op_parallelism\": 1, "
      "\"single_submit\": false, \"overlap_events\": true}",
      sample.block_bytes, sample.queue_depth);
}

std::string ServerSection(const TuneSample& sample) {
  return absl::StrFormat("aio:\n  block_size: %s\n  queue_depth: %d\n",
                         FormatBytes(sample.block_bytes), sample.queue_depth);
}

absl::StatusOr<TuneResult> TuneDevice(const TuneOptions& options, const std::string& path) {
  return Tuner(options, path).Run();
}

int TuneMain(const std::vector<std::string>& arguments) {
  constexpr int kFailure = 1;
  constexpr int kUsageError = 2;
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
    results.push_back(parsed->json ? Json(*result) : Table(*result));
  }
  if (parsed->json) {
    std::cout << "[" << absl::StrJoin(results, ",\n") << "]\n";
  } else {
    std::cout << absl::StrJoin(results, "\n");
  }
  return std::cout.flush() ? 0 : kFailure;
}

}  // namespace ballast::tools
