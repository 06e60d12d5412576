// The I/O engine against fio on one file: the same blocks, as many of them under way, huge pages on
// both sides, O_DIRECT. In each repetition engine, fio and engine again take turns; what is
// compared are the ratios of one repetition.
//
//   read_vs_fio, write_vs_fio, mixed_vs_fio   bytes per second, engine / fio; mixed: as many blocks
//                                             are read as are written
//   aa_control                                the engine divided by itself: further from 1 than
//                                             0.95 to 1.05 the machine was not quiet enough to tell
//
// Then random bytes are written through the engine and read with pread, and the other way round.
// Comes from: the script bench/aio_bench. Goes to: stdout (--json), stderr.
// Thread safety: one thread, and the engine's.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/raw_disk.h"
#include "bench/report.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "common/io/io_engine.h"
#include "common/io/io_stream.h"

namespace ballast::bench {
namespace {

constexpr char kUsage[] =
    "usage: aio_bench [--json] [--path DIR] [--block BYTES] [--depth N] [--seconds S]\n"
    "                 [--repeats N]\n";
constexpr double kBar = 0.92;
constexpr double kControlLeast = 0.95;
constexpr double kControlMost = 1.05;
constexpr std::array<FioMode, 3> kModes = {FioMode::kRead, FioMode::kWrite, FioMode::kMixed};
constexpr std::array<const char*, 3> kNames = {"read", "write", "mixed"};

struct Options {
  bool json = false;
  std::string path = ".";
  uint64_t block = uint64_t{1} << 20;
  int depth = 16;
  double seconds = 0.5;  // of each turn
  int repeats = 9;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}
  ~Bench() {
    engine_.reset();
    if (descriptor_ >= 0) close(descriptor_);
  }

  absl::Status Prepare();
  absl::Status Measure();
  absl::Status Verify();
  std::string Result(bool* pass) const;

 private:
  absl::StatusOr<double> Engine(FioMode mode) {
    const IoMix mix = mode == FioMode::kRead    ? IoMix::kRead
                      : mode == FioMode::kWrite ? IoMix::kWrite
                                                : IoMix::kMixed;
    return MeasureIo(engine_.get(),
                     {.descriptor = descriptor_,
                      .path = raw_->path(),
                      .file_bytes = raw_->bytes(),
                      .block_bytes = options_.block,
                      .depth = options_.depth,
                      .mix = mix,
                      .memory = memory_.data(),
                      .seconds = options_.seconds},
                     Now);
  }

  const Options options_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::unique_ptr<RawFile> raw_;
  std::optional<Fio> fio_;
  Arena memory_;
  int descriptor_ = -1;
  std::unique_ptr<IoEngine> engine_;
  std::array<std::vector<double>, 3> ratios_;  // by mode, engine / fio
  std::array<std::vector<double>, 3> rates_;   // of the engine
  std::vector<double> control_;
  bool verified_ = false;
};

absl::Status Bench::Prepare() {
  constexpr uint64_t kFileBytes = uint64_t{1} << 30;
  fio_ = Fio::Find();
  if (!fio_.has_value()) return absl::FailedPreconditionError("fio is not installed");
  BALLAST_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create(options_.path));
  BALLAST_ASSIGN_OR_RETURN(raw_, RawFile::Create(directory_->path() + "/file", kFileBytes));
  BALLAST_ASSIGN_OR_RETURN(memory_,
                           Arena::Create(options_.block * static_cast<uint64_t>(options_.depth)));
  FillRandomBytes(memory_.data(), memory_.bytes(), 1);
  descriptor_ = open(raw_->path().c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (descriptor_ < 0) return absl::InternalError("cannot open " + raw_->path());
  BALLAST_ASSIGN_OR_RETURN(auto backend, MakeLibaioBackend(options_.depth));
  BALLAST_ASSIGN_OR_RETURN(
      engine_, IoEngine::Create({.block_bytes = options_.block, .queue_depth = options_.depth},
                                std::move(backend)));
  return absl::OkStatus();
}

absl::Status Bench::Measure() {
  for (int i = 0; i < options_.repeats; ++i) {
    for (size_t m = 0; m < kModes.size(); ++m) {
      BALLAST_ASSIGN_OR_RETURN(const double before, Engine(kModes[m]));
      BALLAST_ASSIGN_OR_RETURN(const double fio,
                               fio_->Run(kModes[m], raw_->path(), raw_->bytes(), options_.block,
                                         options_.depth, options_.seconds));
      BALLAST_ASSIGN_OR_RETURN(const double after, Engine(kModes[m]));
      rates_[m].push_back((before + after) / 2);
      ratios_[m].push_back((before + after) / 2 / fio);
      control_.push_back(before / after);
      std::cerr << absl::StreamFormat("%d of %d, %-5s MB/s: engine %.0f, fio %.0f, engine %.0f\n",
                                      i + 1, options_.repeats, kNames[m], before / 1e6, fio / 1e6,
                                      after / 1e6);
    }
  }
  return absl::OkStatus();
}

absl::Status Bench::Verify() {
  const size_t bytes = memory_.bytes();
  BALLAST_ASSIGN_OR_RETURN(const Arena other, Arena::Create(bytes));
  FillRandomBytes(memory_.data(), bytes, 2);
  const IoRequest request{.descriptor = descriptor_, .path = "file", .bytes = bytes};
  IoRequest write = request;
  write.kind = IoKind::kWrite;
  write.data = memory_.data();
  BALLAST_RETURN_IF_ERROR(engine_->Run(std::move(write)));
  const ssize_t count = pread(descriptor_, other.data(), bytes, 0);
  const bool written =
      count == static_cast<ssize_t>(bytes) && std::memcmp(other.data(), memory_.data(), bytes) == 0;
  FillRandomBytes(other.data(), bytes, 3);
  BALLAST_RETURN_IF_ERROR(raw_->Write(0, other.data(), bytes));
  IoRequest read = request;
  read.data = memory_.data();
  BALLAST_RETURN_IF_ERROR(engine_->Run(std::move(read)));
  verified_ = written && std::memcmp(other.data(), memory_.data(), bytes) == 0;
  return absl::OkStatus();
}

std::string Bench::Result(bool* pass) const {
  JsonObject json;
  Bars bars;
  JsonObject spread;
  for (size_t m = 0; m < kModes.size(); ++m) {
    const std::string key = absl::StrCat(kNames[m], "_vs_fio");
    json.Add(key, Median(ratios_[m]));
    bars.AtLeast(key, Median(ratios_[m]), kBar);
    spread.Add(key, Spread(ratios_[m]));
  }
  const double control = Median(control_);
  json.Add("aa_control", control);
  json.Add("conclusive", control >= kControlLeast && control <= kControlMost);
  for (size_t m = 0; m < kModes.size(); ++m) {
    json.Add(absl::StrCat(kNames[m], "_mb_s"), Median(rates_[m]) / 1e6);
  }
  spread.Add("aa_control", Spread(control_));
  json.Add("block_bytes", static_cast<double>(options_.block));
  json.Add("queue_depth", static_cast<double>(options_.depth));
  json.Add("fio", absl::StrCat(fio_->version(), " --direct=1 --ioengine=libaio, huge pages"));
  json.AddRaw("spread", spread.Text());
  bars.AddTo(&json);
  json.Add("verified", verified_);
  json.Add("pass", verified_ && bars.met());
  *pass = verified_;
  return json.Text();
}

bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") {
      options->json = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const std::string value = argv[++i];
    bool good = true;
    if (flag == "--path") {
      options->path = value;
    } else if (flag == "--block") {
      good = ParseNumber(value, uint64_t{4096}, uint64_t{64} << 20, &options->block) &&
             options->block % 4096 == 0;
    } else if (flag == "--depth") {
      good = ParseNumber(value, 2, 256, &options->depth);
    } else if (flag == "--seconds") {
      good = ParseNumber(value, 0.1, 3600.0, &options->seconds);
    } else if (flag == "--repeats") {
      good = ParseNumber(value, 1, 1000, &options->repeats);
    } else {
      good = false;
    }
    if (!good) return false;
  }
  return true;
}

absl::StatusOr<std::string> RunBench(Bench* bench, bool* pass) {
  BALLAST_RETURN_IF_ERROR(bench->Prepare());
  BALLAST_RETURN_IF_ERROR(bench->Measure());
  BALLAST_RETURN_IF_ERROR(bench->Verify());
  return bench->Result(pass);
}

int Main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) {
    std::cerr << kUsage;
    return 2;
  }
  Bench bench(options);
  bool pass = false;
  const absl::StatusOr<std::string> result = RunBench(&bench, &pass);
  if (!result.ok()) {
    std::cerr << "aio_bench: " << result.status().message() << "\n";
    return 1;
  }
  std::cerr << *result << "\n";
  if (options.json) std::cout << *result << "\n";
  return pass ? 0 : 1;
}

}  // namespace
}  // namespace ballast::bench

int main(int argc, char** argv) { return ballast::bench::Main(argc, argv); }
