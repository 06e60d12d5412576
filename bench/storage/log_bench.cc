// How much of the disk's speed the gradient log keeps, and how soon a round is safe after its last
// byte.
//
// Every repetition measures all sides in turn, on the same directory, so that all see the disk in
// the same state; keys that compare are medians of the repetitions' ratios. All sides write to
// equally large files, written once before, past the page cache; all have huge pages.
//
//   group_vs_raw     GradientLog: four AppendExtent of 4 MiB and one Sync, again and again
//                    / a loop of four pwrite of 4 MiB and one fdatasync; no bar
//   group_vs_fio     the same / fio with four writes of 4 MiB under way and no flush (raw_disk.h)
//   durable_ms_p50   from the call of AppendExtent with the last 4 MiB extent of a round until
//                    AppendPrepared and Sync have returned: from the last gradient to the vote. The
//                    extents in front of it (15) came at half the rate that the disk writes.
//   bare_ms_p50      pwrite of 4 KiB and fdatasync, right before each of these rounds
//   vs_rocksdb       a round's 16 MiB: four AppendExtent and one Sync / a batch of sixteen values
//                    of 1 MiB in RocksDB with one synced write. Neither RocksDB's flushes nor its
//                    compactions run while the log is measured; both may run in its own turn.
//   vs_rocksdb_64k   records of 64 KiB with a Sync each / Put of 64 KiB with sync each; no bar:
//                    rounds do not look like this
//   same_again       the log / the log, two turns of one repetition: how far noise goes
//
// The logs are opened again at the end, and every untrimmed extent is compared; so are
// RocksDB's last values. Any difference is exit status 1.
// Comes from: bench/log_bench. Goes to: server/durability, RocksDB, stdout. Thread safety: main
// only.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/parts/harness.h"
#include "bench/parts/raw_disk.h"
#include "bench/storage/log_writers.h"
#include "common/base/status_macros.h"
#include "common/io/file.h"
#include "common/system/standard_descriptors.h"

namespace ballast::bench {
namespace {

constexpr uint64_t kFileBytes = uint64_t{1} << 30;  // of every file written to
constexpr size_t kGroupExtents = 4;
constexpr size_t kGroupBytes = kGroupExtents * kBlockBytes;
constexpr size_t kRoundExtents = 16;
constexpr size_t kValueBytes = size_t{1} << 20;
constexpr size_t kSmallBytes = size_t{64} << 10;
constexpr double kGroupBar = 0.80;
constexpr double kRocksBar = 5;
constexpr double kDurableMsBar = 2;
constexpr double kDurableVsBareBar = 2;

struct Options {
  std::string path = ".";
  double seconds = 40;
  int repeats = 9;
};

constexpr char kUsage[] = "usage: log_bench [--json] [--path DIR] [--seconds N] [--repeats N]\n";

// Rates of one repetition, bytes per second.
struct Rates {
  double log = 0;
  double raw = 0;
  double fio = 0;  // 0: no fio
  double log_again = 0;
  double rocks = 0;
  double log_small = 0;
  double rocks_small = 0;
};

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {}

  absl::Status Prepare();
  absl::Status Measure();
  absl::Status Verify();
  Outcome Result() const;

 private:
  absl::Status MeasureRates();
  absl::Status MeasureLatency();
  absl::StatusOr<Rates> Repeat(double slice);
  absl::StatusOr<double> BareMs();
  absl::StatusOr<double> DurableMs(double arrival_rate);
  std::vector<double> Ratios(double Rates::*of, double Rates::*to) const;

  const Options options_;
  std::optional<Fio> fio_ = Fio::Find();
  Payloads payloads_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::unique_ptr<RawFile> raw_;
  std::unique_ptr<LogWriter> log_;
  std::unique_ptr<LogWriter> small_;
  std::unique_ptr<LogWriter> rounds_;
  std::unique_ptr<RocksWriter> rocks_;
  uint64_t bare_page_ = 0;
  std::vector<Rates> rates_;
  std::vector<double> durable_ms_;
  std::vector<double> bare_ms_;
  double arrival_rate_ = 0;
  uint64_t differing_ = 0;
};

absl::Status Bench::Prepare() {
  const uint64_t needed = 8 * kFileBytes;
  const uint64_t free = FreeDiskBytes(options_.path);
  if (free < needed) {
    return absl::ResourceExhaustedError(absl::StrCat(options_.path, " has ", free,
                                                     " free bytes, the benchmark wants ", needed,
                                                     "; name another directory with --path"));
  }
  BALLAST_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create(options_.path));
  BALLAST_RETURN_IF_ERROR(payloads_.Fill());
  const auto below = [this](const char* name) { return directory_->path() + "/" + name; };
  BALLAST_ASSIGN_OR_RETURN(raw_, RawFile::Create(below("raw"), kFileBytes));
  BALLAST_ASSIGN_OR_RETURN(log_, LogWriter::Create(below("groups"), kFileBytes, &payloads_));
  BALLAST_ASSIGN_OR_RETURN(small_, LogWriter::Create(below("small"), kFileBytes, &payloads_));
  BALLAST_ASSIGN_OR_RETURN(rounds_, LogWriter::Create(below("rounds"), kFileBytes, &payloads_));
  BALLAST_ASSIGN_OR_RETURN(rocks_, RocksWriter::Create(below("rocksdb"), &payloads_));
  std::cerr << "fio: " << (fio_.has_value() ? fio_->Describe() : "missing") << "\n";
  return absl::OkStatus();
}

absl::StatusOr<Rates> Bench::Repeat(double slice) {
  Rates rates;
  BALLAST_ASSIGN_OR_RETURN(rates.log, log_->WriteRounds(kGroupExtents, kBlockBytes, slice));
  BALLAST_ASSIGN_OR_RETURN(rates.raw, raw_->WriteGroups(kGroupBytes, slice));
  if (fio_.has_value()) {
    BALLAST_ASSIGN_OR_RETURN(rates.fio, fio_->Write(raw_->path(), raw_->bytes(), slice));
  }
  BALLAST_ASSIGN_OR_RETURN(rates.log_again, log_->WriteRounds(kGroupExtents, kBlockBytes, slice));
  BALLAST_ASSIGN_OR_RETURN(rates.rocks,
                           rocks_->WriteBatches(kGroupBytes / kValueBytes, kValueBytes, slice));
  BALLAST_ASSIGN_OR_RETURN(rates.log_small, small_->WriteRounds(1, kSmallBytes, slice / 2));
  BALLAST_ASSIGN_OR_RETURN(rates.rocks_small, rocks_->WriteBatches(1, kSmallBytes, slice / 2));
  return rates;
}

absl::Status Bench::Measure() {
  BALLAST_RETURN_IF_ERROR(MeasureRates());
  return MeasureLatency();
}

absl::Status Bench::MeasureRates() {
  // Seven slices a repetition, two of them half as long; one repetition warms up.
  const double slice = options_.seconds * 0.85 / (6 * (options_.repeats + 1));
  for (int i = 0; i <= options_.repeats; ++i) {
    BALLAST_ASSIGN_OR_RETURN(const Rates one, Repeat(slice));
    std::cerr << absl::StreamFormat(
        "%s MB/s: log %.0f, raw %.0f, fio %.0f, log again %.0f, RocksDB %.0f; 64 KiB: log %.0f, "
        "RocksDB %.0f\n",
        i == 0 ? "warm-up:" : "        ", one.log / 1e6, one.raw / 1e6, one.fio / 1e6,
        one.log_again / 1e6, one.rocks / 1e6, one.log_small / 1e6, one.rocks_small / 1e6);
    if (i > 0) rates_.push_back(one);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Bench::BareMs() {
  const char* const page = payloads_.Of(bare_page_, 0);
  const uint64_t offset = bare_page_++ % (raw_->bytes() / kPageBytes) * kPageBytes;
  const double start = Now();
  BALLAST_RETURN_IF_ERROR(raw_->Write(offset, page, kPageBytes));
  BALLAST_RETURN_IF_ERROR(raw_->Sync());
  return (Now() - start) * 1e3;
}

absl::StatusOr<double> Bench::DurableMs(double arrival_rate) {
  const double begin = Now();
  const double interval = static_cast<double>(kBlockBytes) / arrival_rate;
  for (uint32_t extent = 0; extent + 1 < kRoundExtents; ++extent) {
    BALLAST_RETURN_IF_ERROR(rounds_->AppendExtent(extent, kBlockBytes));
    const double wait = begin + (extent + 1) * interval - Now();
    if (wait > 0) std::this_thread::sleep_for(std::chrono::duration<double>(wait));
  }
  const double start = Now();
  BALLAST_RETURN_IF_ERROR(rounds_->AppendExtent(kRoundExtents - 1, kBlockBytes));
  BALLAST_RETURN_IF_ERROR(rounds_->Prepare(kRoundExtents));
  BALLAST_RETURN_IF_ERROR(rounds_->EndRound());
  return (Now() - start) * 1e3;
}

absl::Status Bench::MeasureLatency() {
  arrival_rate_ = Median(rates_, &Rates::raw) / 2;
  const double end = Now() + options_.seconds * 0.15;
  while (Now() < end || durable_ms_.size() < 8) {
    BALLAST_ASSIGN_OR_RETURN(const double bare, BareMs());
    BALLAST_ASSIGN_OR_RETURN(const double durable, DurableMs(arrival_rate_));
    bare_ms_.push_back(bare);
    durable_ms_.push_back(durable);
  }
  std::cerr << absl::StreamFormat("%d rounds: bare %s ms, durable %s ms\n", bare_ms_.size(),
                                  Spread(bare_ms_), Spread(durable_ms_));
  return absl::OkStatus();
}

absl::Status Bench::Verify() {
  const auto add = [this](const absl::StatusOr<uint64_t>& differing) {
    if (differing.ok()) differing_ += *differing;
    return differing.status();
  };
  BALLAST_RETURN_IF_ERROR(add(log_->Verify(kGroupExtents, kBlockBytes)));
  BALLAST_RETURN_IF_ERROR(add(small_->Verify(1, kSmallBytes)));
  BALLAST_RETURN_IF_ERROR(add(rounds_->Verify(kRoundExtents, kBlockBytes)));
  return add(rocks_->Verify());
}

std::vector<double> Bench::Ratios(double Rates::*of, double Rates::*to) const {
  std::vector<double> ratios;
  for (const Rates& rates : rates_) {
    if (rates.*to > 0) ratios.push_back(rates.*of / (rates.*to));
  }
  return ratios;
}

Outcome Bench::Result() const {
  Report report;
  const auto add_ratio = [&](const char* key, double Rates::*of, double Rates::*to, double bar) {
    const std::vector<double> ratios = Ratios(of, to);
    if (ratios.empty()) return report.AddRaw(key, "null");
    const double ratio = report.AddMedian(key, ratios);
    if (bar > 0) report.AtLeast(key, ratio, bar);
  };
  add_ratio("group_vs_raw", &Rates::log, &Rates::raw, 0);
  add_ratio("group_vs_fio", &Rates::log_again, &Rates::fio, kGroupBar);
  const double durable = Median(durable_ms_);
  const double bare = Median(bare_ms_);
  report.Add("durable_ms_p50", durable);
  report.Add("bare_ms_p50", bare);
  report.AtMost("durable_ms_p50", durable, std::max(kDurableMsBar, kDurableVsBareBar * bare));
  add_ratio("vs_rocksdb", &Rates::log_again, &Rates::rocks, kRocksBar);
  add_ratio("vs_rocksdb_64k", &Rates::log_small, &Rates::rocks_small, 0);
  add_ratio("same_again", &Rates::log, &Rates::log_again, 0);
  report.AddSpread("durable_ms", durable_ms_);
  report.AddSpread("bare_ms", bare_ms_);
  const std::pair<const char*, double Rates::*> rates[] = {
      {"log_mb_s", &Rates::log},           {"raw_mb_s", &Rates::raw},
      {"fio_mb_s", &Rates::fio},           {"rocksdb_mb_s", &Rates::rocks},
      {"log_64k_mb_s", &Rates::log_small}, {"rocksdb_64k_mb_s", &Rates::rocks_small}};
  for (const auto& [key, member] : rates) {
    report.Add(key, Median(rates_, member) / 1e6);
  }
  report.Add("arrival_mb_s", arrival_rate_ / 1e6);
  report.Add("repeats", options_.repeats);
  report.Add("direct_io", PosixFileSystem()->DirectIo(directory_->path()));
  report.Add("fio", fio_.has_value() ? fio_->Describe() : "missing");
  report.Add("differing_extents", differing_);
  return report.Finish(differing_ == 0);
}

int Main(int argc, char** argv) {
  Options options;
  Flags flags;
  flags.Text("--path", &options.path);
  flags.Number("--seconds", 1.0, 3600.0, &options.seconds);
  flags.Number("--repeats", 1, 1000, &options.repeats);
  return RunMain("log_bench", kUsage, flags, argc, argv, [&] { return RunBench<Bench>(options); });
}

}  // namespace
}  // namespace ballast::bench

BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST();

int main(int argc, char** argv) {
  if (!ballast::HoldStandardDescriptors().ok()) return 1;
  return ballast::bench::Main(argc, argv);
}
