#include "tools/host/nvme_tune.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iostream>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "common/io/file.h"
#include "common/io/file_error.h"
#include "common/io/huge_pages.h"
#include "common/io/io_engine.h"
#include "common/io/io_stream.h"
#include "common/text/units.h"

namespace ballast::tools {
namespace {

constexpr double kNearlyBest = 0.97;

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
  Tuner(const TuneOptions& options, std::string path)
      : options_(options), path_(std::move(path)), pairs_(TunePairs(options)) {}

  absl::StatusOr<TuneResult> Run() {
    BALLAST_ASSIGN_OR_RETURN(file_, NamelessFile::Create(path_, options_.io_bytes));
    BALLAST_ASSIGN_OR_RETURN(memory_, Arena::Create(MemoryBytes()));
    std::mt19937_64 random(1);
    auto* const words = reinterpret_cast<uint64_t*>(memory_.data());
    for (size_t i = 0; i < memory_.bytes() / sizeof(uint64_t); ++i) words[i] = random();
    BALLAST_RETURN_IF_ERROR(Fill());
    TuneResult result{.path = path_, .warnings = Warnings(path_, file_->direct())};
    for (const auto& [block, depth] : pairs_) {
      BALLAST_ASSIGN_OR_RETURN(const TuneSample sample, Measure(block, depth));
      result.samples.push_back(sample);
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
  int Count() const { return static_cast<int>(pairs_.size()) + (options_.present ? 1 : 0); }

  uint64_t LargestBlock() const {
    return *std::max_element(options_.block_bytes.begin(), options_.block_bytes.end());
  }

  uint64_t MemoryBytes() const {
    uint64_t bytes = LargestBlock();
    const auto take = [&](uint64_t block, int depth) {
      bytes = std::max(bytes, block * static_cast<uint64_t>(depth));
    };
    for (const auto& [block, depth] : pairs_) take(block, depth);
    if (options_.present.has_value()) {
      take(options_.present->block_bytes, options_.present->queue_depth);
    }
    return bytes;
  }

  absl::StatusOr<std::unique_ptr<IoEngine>> Engine(uint64_t block, int depth) const {
    BALLAST_ASSIGN_OR_RETURN(auto backend, MakeLibaioBackend(depth));
    return IoEngine::Create({.block_bytes = block, .queue_depth = depth}, std::move(backend));
  }

  // Every block once, so that reads come from the device and writes allocate nothing.
  absl::Status Fill() {
    BALLAST_ASSIGN_OR_RETURN(const auto engine, Engine(LargestBlock(), 4));
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
                                    Count(), FormatBytes(block), depth);
    std::cerr.flush();
    return sample;
  }

  const TuneOptions& options_;
  const std::string path_;
  const std::vector<std::pair<uint64_t, int>> pairs_;
  std::unique_ptr<NamelessFile> file_;
  Arena memory_;
  int done_ = 0;
};

}  // namespace

std::vector<std::pair<uint64_t, int>> TunePairs(const TuneOptions& options) {
  constexpr uint64_t kUnderWayMax = uint64_t{1} << 30;
  const uint64_t most = std::min(kUnderWayMax, options.io_bytes);
  std::vector<std::pair<uint64_t, int>> pairs;
  for (const uint64_t block : options.block_bytes) {
    for (const int depth : options.queue_depths) {
      if (block * static_cast<uint64_t>(depth) <= most) pairs.emplace_back(block, depth);
    }
  }
  return pairs;
}

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

}  // namespace ballast::tools
