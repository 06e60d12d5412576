// Sweeps of the NVMe tier over a state that does not fit into memory, against the disk's limit:
// a raw loop of the I/O engine that reads and writes as many blocks, without a step, and fio. All
// take turns; the ratios of one repetition are compared.
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
#include <array>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/parts/engine_loop.h"
#include "bench/parts/harness.h"
#include "bench/parts/raw_disk.h"
#include "bench/storage/tier_rig.h"
#include "common/base/status_macros.h"
#include "common/system/standard_descriptors.h"

namespace ballast::bench {
namespace {

constexpr char kUsage[] =
    "usage: tier_bench [--json] [--path DIR] [--extents N] [--extent-elements N] [--buffers N]\n"
    "                  [--threads N] [--block BYTES] [--depth N] [--seconds S]\n"
    "                  [--file BYTES] [--repeats N]\n";
constexpr std::array<int, 3> kShares = {25, 50, 75};
constexpr std::array<double, 3> kShareBars = {1.25, 1.75, 3.0};
constexpr double kRawBar = 0.92;
constexpr double kFioBar = 0.88;
constexpr double kLogBar = 0.88;
constexpr double kLogLimit = 24.0 / 26.0;

struct Options {
  std::string path = ".";
  int extents = 192;
  int extent_elements = 1 << 18;
  int buffers = 16;  // extents in memory where there is no cache to speak of
  int threads = 4;
  LoopOptions loop;  // of the raw loop and of fio
  int repeats = 7;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  absl::Status Prepare();
  absl::Status MeasureSweeps();
  absl::Status MeasureShares();
  absl::Status MeasureLog();
  Outcome Result() const;

 private:
  absl::StatusOr<std::unique_ptr<TierRig>> Rig(const std::string& name, uint32_t buffers, bool log);
  // Bytes read and written per second by one sweep.
  static absl::StatusOr<double> Rate(TierRig* rig);
  uint32_t few() const { return static_cast<uint32_t>(options_.buffers); }
  // The share of the extents that a sweep without a cache really moves.
  double moved() const { return 1.0 - static_cast<double>(options_.buffers) / options_.extents; }
  absl::Status Check(TierRig* rig);

  const Options options_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::optional<Fio> fio_;
  std::unique_ptr<EngineLoop> loop_;
  std::vector<double> sweeps_, raws_, fios_, vs_raw_, vs_fio_;
  std::array<std::vector<double>, 3> shares_;
  std::vector<double> log_;
  bool verified_ = true;
};

absl::Status Bench::Prepare() {
  fio_ = Fio::Find();
  BALLAST_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create(options_.path));
  BALLAST_ASSIGN_OR_RETURN(loop_, EngineLoop::Create(directory_->path(), options_.loop));
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
    BALLAST_ASSIGN_OR_RETURN(const double before, loop_->Run(IoMix::kMixed));
    BALLAST_ASSIGN_OR_RETURN(double sweep, Rate(rig.get()));
    sweep *= moved();
    BALLAST_ASSIGN_OR_RETURN(const double after, loop_->Run(IoMix::kMixed));
    sweeps_.push_back(sweep);
    raws_.push_back((before + after) / 2);
    vs_raw_.push_back(sweep / raws_.back());
    if (fio_.has_value()) {
      BALLAST_ASSIGN_OR_RETURN(const double fio, loop_->RunFio(*fio_, FioMode::kMixed));
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

Outcome Bench::Result() const {
  Report report;
  const auto add = [&](const std::string& key, const std::vector<double>& ratios, double bar) {
    report.AtLeast(key, report.AddMedian(key, ratios), bar);
  };
  add("sweep_vs_raw", vs_raw_, kRawBar);
  if (fio_.has_value()) {
    add("sweep_vs_fio", vs_fio_, kFioBar);
  } else {
    report.AddRaw("sweep_vs_fio", "null");
  }
  for (size_t s = 0; s < kShares.size(); ++s) {
    add(absl::StrCat("cache_", kShares[s]), shares_[s], kShareBars[s]);
  }
  add("log_vs_limit", log_, kLogBar);
  report.Add("sweep_mb_s", Median(sweeps_) / 1e6);
  report.Add("raw_mb_s", Median(raws_) / 1e6);
  report.Add("share_of_peak", Median(sweeps_) / Median(raws_));
  report.Add("state_bytes", 12.0 * options_.extents * options_.extent_elements);
  report.Add("extent_elements", options_.extent_elements);
  report.Add("buffers", options_.buffers);
  report.Add("threads", options_.threads);
  report.Add("durability", "power, one flush per sweep");
  return report.Finish(verified_);
}

absl::StatusOr<Outcome> Run(const Options& options) {
  Bench bench(options);
  BALLAST_RETURN_IF_ERROR(bench.Prepare());
  BALLAST_RETURN_IF_ERROR(bench.MeasureSweeps());
  BALLAST_RETURN_IF_ERROR(bench.MeasureShares());
  BALLAST_RETURN_IF_ERROR(bench.MeasureLog());
  return bench.Result();
}

int Main(int argc, char** argv) {
  Options options;
  Flags flags;
  flags.Text("--path", &options.path);
  flags.Number("--extents", 32, 1 << 20, &options.extents);
  flags.Multiple("--extent-elements", 65536, 1 << 24, &options.extent_elements);
  flags.Number("--buffers", 4, 1 << 16, &options.buffers);
  flags.Number("--threads", 1, 64, &options.threads);
  AddLoopFlags(&flags, &options.loop);
  flags.Number("--repeats", 1, 1000, &options.repeats);
  flags.Require([&] { return options.buffers < options.extents / 4; });
  return RunMain("tier_bench", kUsage, flags, argc, argv, [&] { return Run(options); });
}

}  // namespace
}  // namespace ballast::bench

BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST();

int main(int argc, char** argv) {
  if (!ballast::HoldStandardDescriptors().ok()) return 1;
  return ballast::bench::Main(argc, argv);
}
