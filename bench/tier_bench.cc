// Sweeps of the NVMe tier over a state that does not fit into memory, against what the disk gives:
// a raw loop of the I/O engine that reads and writes as many blocks, without a step, and fio. All
// take turns; what is compared are the ratios of one repetition.
//
//   sweep_vs_raw   bytes per second, a whole durable sweep (every extent read, stepped, checked,
//                  written out of place, one flush) / the raw loop
//   sweep_vs_fio   the same / fio rw=rw
//   cache_25, cache_50, cache_75
//                  sweeps per second with that share of the extents in memory / without: with
//                  --buffers extents, less what these save
//   log_vs_limit   the sweep with every gradient logged in 2 bytes per element, divided by
//                  24 / 26 of the sweep without
//
// Then every value is compared with as many steps in memory.
// Comes from: the script bench/tier_bench. Goes to: stdout (--json), stderr.
// Thread safety: one thread; rigs and engine have theirs.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/raw_disk.h"
#include "bench/report.h"
#include "bench/tier_rig.h"
#include "common/base/status_macros.h"
#include "common/io/io_engine.h"
#include "common/io/io_stream.h"

namespace ballast::bench {
namespace {

constexpr char kUsage[] =
    "usage: tier_bench [--json] [--path DIR] [--extents N] [--extent-elements N] [--buffers N]\n"
    "                  [--threads N] [--block BYTES] [--depth N] [--seconds S] [--repeats N]\n";
constexpr std::array<int, 3> kShares = {25, 50, 75};
constexpr std::array<double, 3> kShareBars = {1.25, 1.75, 3.0};
constexpr double kRawBar = 0.92;
constexpr double kFioBar = 0.88;
constexpr double kLogBar = 0.88;
constexpr double kLogLimit = 24.0 / 26.0;

struct Options {
  bool json = false;
  std::string path = ".";
  int extents = 192;
  int extent_elements = 1 << 18;
  int buffers = 16;  // extents in memory where there is no cache to speak of
  int threads = 4;
  uint64_t block = uint64_t{1} << 20;
  int depth = 16;
  double seconds = 0.5;  // of a turn of the raw loop and of fio
  int repeats = 7;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}
  ~Bench() {
    engine_.reset();
    if (descriptor_ >= 0) close(descriptor_);
  }

  absl::Status Prepare();
  absl::Status MeasureSweeps();
  absl::Status MeasureShares();
  absl::Status MeasureLog();
  std::string Result() const;
  bool verified() const { return verified_; }

 private:
  absl::StatusOr<std::unique_ptr<TierRig>> Rig(const std::string& name, uint32_t buffers, bool log);
  // Bytes read and written per second by one sweep.
  static absl::StatusOr<double> Rate(TierRig* rig);
  absl::StatusOr<double> Raw();
  uint32_t few() const { return static_cast<uint32_t>(options_.buffers); }
  // Of the extents, what a sweep without a cache really moves.
  double moved() const { return 1.0 - static_cast<double>(options_.buffers) / options_.extents; }
  absl::Status Check(TierRig* rig);

  const Options options_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::unique_ptr<RawFile> raw_;
  std::optional<Fio> fio_;
  Arena memory_;
  int descriptor_ = -1;
  std::unique_ptr<IoEngine> engine_;
  std::vector<double> sweeps_, raws_, fios_, vs_raw_, vs_fio_;
  std::array<std::vector<double>, 3> shares_;
  std::vector<double> log_;
  bool verified_ = true;
};

absl::Status Bench::Prepare() {
  constexpr uint64_t kFileBytes = uint64_t{1} << 30;
  fio_ = Fio::Find();
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

absl::StatusOr<std::unique_ptr<TierRig>> Bench::Rig(const std::string& name, uint32_t buffers,
                                                    bool log) {
  BALLAST_ASSIGN_OR_RETURN(
      std::unique_ptr<TierRig> rig,
      TierRig::Create({.directory = absl::StrCat(directory_->path(), "/", name),
                       .extents = static_cast<uint32_t>(options_.extents),
                       .extent_elements = static_cast<uint32_t>(options_.extent_elements),
                       .buffers = buffers,
                       .tier_threads = options_.threads,
                       .log = log}));
  // The first sweeps find nothing of the last one in memory.
  for (int i = 0; i < 2; ++i) BALLAST_RETURN_IF_ERROR(rig->Sweep().status());
  return rig;
}

absl::StatusOr<double> Bench::Rate(TierRig* rig) {
  BALLAST_ASSIGN_OR_RETURN(const double seconds, rig->Sweep());
  return 2.0 * static_cast<double>(rig->payload_bytes()) / seconds;
}

absl::StatusOr<double> Bench::Raw() {
  return MeasureIo(engine_.get(),
                   {.descriptor = descriptor_,
                    .path = raw_->path(),
                    .file_bytes = raw_->bytes(),
                    .block_bytes = options_.block,
                    .depth = options_.depth,
                    .mix = IoMix::kMixed,
                    .memory = memory_.data(),
                    .seconds = options_.seconds},
                   Now);
}

absl::Status Bench::Check(TierRig* rig) {
  BALLAST_ASSIGN_OR_RETURN(const bool same, rig->Verify());
  verified_ = verified_ && same;
  return absl::OkStatus();
}

// Of the bytes a sweep counts as moved the few extents that stay in memory are not: the rate is
// that of the others.
absl::Status Bench::MeasureSweeps() {
  BALLAST_ASSIGN_OR_RETURN(const auto rig, Rig("sweep", few(), false));
  for (int i = 0; i < options_.repeats; ++i) {
    BALLAST_ASSIGN_OR_RETURN(const double before, Raw());
    BALLAST_ASSIGN_OR_RETURN(double sweep, Rate(rig.get()));
    sweep *= moved();
    BALLAST_ASSIGN_OR_RETURN(const double after, Raw());
    sweeps_.push_back(sweep);
    raws_.push_back((before + after) / 2);
    vs_raw_.push_back(sweep / raws_.back());
    if (fio_.has_value()) {
      BALLAST_ASSIGN_OR_RETURN(
          const double fio, fio_->Run(FioMode::kMixed, raw_->path(), raw_->bytes(), options_.block,
                                      options_.depth, options_.seconds));
      fios_.push_back(fio);
      vs_fio_.push_back(sweep / fio);
    }
    std::cerr << absl::StreamFormat("%d of %d, MB/s: raw %.0f, sweep %.0f, raw %.0f\n", i + 1,
                                    options_.repeats, before / 1e6, sweep / 1e6, after / 1e6);
  }
  return Check(rig.get());
}

absl::Status Bench::MeasureShares() {
  BALLAST_ASSIGN_OR_RETURN(const auto few, Rig("few", few(), false));
  for (size_t s = 0; s < kShares.size(); ++s) {
    const auto buffers = static_cast<uint32_t>(options_.extents * kShares[s] / 100);
    BALLAST_ASSIGN_OR_RETURN(const auto rig,
                             Rig(absl::StrCat("share-", kShares[s]), buffers, false));
    for (int i = 0; i < options_.repeats; ++i) {
      BALLAST_ASSIGN_OR_RETURN(const double before, Rate(few.get()));
      BALLAST_ASSIGN_OR_RETURN(const double with, Rate(rig.get()));
      BALLAST_ASSIGN_OR_RETURN(const double after, Rate(few.get()));
      shares_[s].push_back(2 * with / (before + after) / moved());
    }
    std::cerr << absl::StreamFormat("%d %% in memory: %.2fx\n", kShares[s], Median(shares_[s]));
    BALLAST_RETURN_IF_ERROR(Check(rig.get()));
  }
  return absl::OkStatus();
}

absl::Status Bench::MeasureLog() {
  BALLAST_ASSIGN_OR_RETURN(const auto without, Rig("without-log", few(), false));
  BALLAST_ASSIGN_OR_RETURN(const auto with, Rig("with-log", few(), true));
  for (int i = 0; i < options_.repeats; ++i) {
    BALLAST_ASSIGN_OR_RETURN(const double before, Rate(without.get()));
    BALLAST_ASSIGN_OR_RETURN(const double logged, Rate(with.get()));
    BALLAST_ASSIGN_OR_RETURN(const double after, Rate(without.get()));
    log_.push_back(2 * logged / (before + after) / kLogLimit);
  }
  std::cerr << absl::StreamFormat("with the log: %.2f of its limit\n", Median(log_));
  return Check(with.get());
}

std::string Bench::Result() const {
  JsonObject json;
  JsonObject spread;
  Bars bars;
  json.Add("sweep_vs_raw", Median(vs_raw_));
  bars.AtLeast("sweep_vs_raw", Median(vs_raw_), kRawBar);
  spread.Add("sweep_vs_raw", Spread(vs_raw_));
  if (fio_.has_value()) {
    json.Add("sweep_vs_fio", Median(vs_fio_));
    bars.AtLeast("sweep_vs_fio", Median(vs_fio_), kFioBar);
    spread.Add("sweep_vs_fio", Spread(vs_fio_));
  } else {
    json.AddRaw("sweep_vs_fio", "null");
  }
  for (size_t s = 0; s < kShares.size(); ++s) {
    const std::string key = absl::StrCat("cache_", kShares[s]);
    json.Add(key, Median(shares_[s]));
    bars.AtLeast(key, Median(shares_[s]), kShareBars[s]);
    spread.Add(key, Spread(shares_[s]));
  }
  json.Add("log_vs_limit", Median(log_));
  bars.AtLeast("log_vs_limit", Median(log_), kLogBar);
  spread.Add("log_vs_limit", Spread(log_));
  json.Add("sweep_mb_s", Median(sweeps_) / 1e6);
  json.Add("raw_mb_s", Median(raws_) / 1e6);
  json.Add("share_of_peak", Median(sweeps_) / Median(raws_));
  json.Add("state_bytes", static_cast<double>(options_.extents) * options_.extent_elements * 12);
  json.Add("extent_elements", static_cast<double>(options_.extent_elements));
  json.Add("buffers", static_cast<double>(options_.buffers));
  json.Add("threads", static_cast<double>(options_.threads));
  json.Add("durability", std::string("power, one flush per sweep"));
  json.AddRaw("spread", spread.Text());
  bars.AddTo(&json);
  json.Add("verified", verified_);
  json.Add("pass", verified_ && bars.met());
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
    bool good = false;
    if (flag == "--path") {
      options->path = value;
      good = true;
    } else if (flag == "--extents") {
      good = ParseNumber(value, 32, 1 << 20, &options->extents);
    } else if (flag == "--extent-elements") {
      good = ParseNumber(value, 65536, 1 << 24, &options->extent_elements) &&
             options->extent_elements % 65536 == 0;
    } else if (flag == "--buffers") {
      good = ParseNumber(value, 4, 1 << 16, &options->buffers);
    } else if (flag == "--threads") {
      good = ParseNumber(value, 1, 64, &options->threads);
    } else if (flag == "--block") {
      good = ParseNumber(value, uint64_t{4096}, uint64_t{64} << 20, &options->block) &&
             options->block % 4096 == 0;
    } else if (flag == "--depth") {
      good = ParseNumber(value, 2, 256, &options->depth);
    } else if (flag == "--seconds") {
      good = ParseNumber(value, 0.1, 3600.0, &options->seconds);
    } else if (flag == "--repeats") {
      good = ParseNumber(value, 1, 1000, &options->repeats);
    }
    if (!good) return false;
  }
  return true;
}

absl::StatusOr<std::string> RunBench(Bench* bench) {
  BALLAST_RETURN_IF_ERROR(bench->Prepare());
  BALLAST_RETURN_IF_ERROR(bench->MeasureSweeps());
  BALLAST_RETURN_IF_ERROR(bench->MeasureShares());
  BALLAST_RETURN_IF_ERROR(bench->MeasureLog());
  return bench->Result();
}

int Main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options) || options.buffers >= options.extents / 4) {
    std::cerr << kUsage;
    return 2;
  }
  Bench bench(options);
  const absl::StatusOr<std::string> result = RunBench(&bench);
  if (!result.ok()) {
    std::cerr << "tier_bench: " << result.status().message() << "\n";
    return 1;
  }
  std::cerr << *result << "\n";
  if (options.json) std::cout << *result << "\n";
  return bench.verified() ? 0 : 1;
}

}  // namespace
}  // namespace ballast::bench

int main(int argc, char** argv) { return ballast::bench::Main(argc, argv); }
