// The I/O engine against fio on one file: the same blocks, as many of them under way, huge pages on
// both sides, O_DIRECT. In each repetition engine, fio and engine again take turns; the ratios of
// one repetition are compared.
//
//   read_vs_fio, write_vs_fio, mixed_vs_fio   bytes per second, engine / fio; mixed: as many blocks
//                                             are read as are written
//   aa_control                                the engine divided by itself: further from 1 than
//                                             0.95 to 1.05 the machine was not quiet enough to tell
//
// Then random bytes are written through the engine and read with pread, and the other way round.
// Comes from: the script bench/aio_bench. Goes to: stdout (--json), stderr.
// Thread safety: one thread, and the engine's.
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
#include "bench/parts/engine_loop.h"
#include "bench/parts/harness.h"
#include "bench/parts/raw_disk.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "common/io/io_engine.h"
#include "common/io/io_stream.h"
#include "common/system/standard_descriptors.h"

namespace ballast::bench {
namespace {

constexpr char kUsage[] =
    "usage: aio_bench [--json] [--path DIR] [--block BYTES] [--depth N] [--seconds S]\n"
    "                 [--file BYTES] [--repeats N]\n";
constexpr double kBar = 0.92;
constexpr double kControlLeast = 0.95;
constexpr double kControlMost = 1.05;
constexpr std::array<FioMode, 3> kModes = {FioMode::kRead, FioMode::kWrite, FioMode::kMixed};
constexpr std::array<IoMix, 3> kMixes = {IoMix::kRead, IoMix::kWrite, IoMix::kMixed};
constexpr std::array<const char*, 3> kNames = {"read", "write", "mixed"};

struct Options {
  std::string path = ".";
  LoopOptions loop;
  int repeats = 9;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  absl::Status Prepare();
  absl::Status Measure();
  absl::Status Verify();
  Outcome Result() const;

 private:
  const Options options_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::optional<Fio> fio_;
  std::unique_ptr<EngineLoop> loop_;
  std::array<std::vector<double>, 3> ratios_;  // by mode, engine / fio
  std::array<std::vector<double>, 3> rates_;   // of the engine
  std::vector<double> control_;
  bool verified_ = false;
};

absl::Status Bench::Prepare() {
  fio_ = Fio::Find();
  if (!fio_.has_value()) return absl::FailedPreconditionError("fio is not installed");
  BALLAST_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create(options_.path));
  BALLAST_ASSIGN_OR_RETURN(loop_, EngineLoop::Create(directory_->path(), options_.loop));
  return absl::OkStatus();
}

absl::Status Bench::Measure() {
  for (int i = 0; i < options_.repeats; ++i) {
    for (size_t m = 0; m < kModes.size(); ++m) {
      BALLAST_ASSIGN_OR_RETURN(const double before, loop_->Run(kMixes[m]));
      BALLAST_ASSIGN_OR_RETURN(const double fio, loop_->RunFio(*fio_, kModes[m]));
      BALLAST_ASSIGN_OR_RETURN(const double after, loop_->Run(kMixes[m]));
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
  Arena& memory = loop_->memory();
  const size_t bytes = memory.bytes();
  BALLAST_ASSIGN_OR_RETURN(const Arena other, Arena::Create(bytes));
  FillRandomBytes(memory.data(), bytes, 2);
  const IoRequest request{.descriptor = loop_->descriptor(), .path = "file", .bytes = bytes};
  IoRequest write = request;
  write.kind = IoKind::kWrite;
  write.data = memory.data();
  BALLAST_RETURN_IF_ERROR(loop_->engine().Run(std::move(write)));
  const ssize_t count = pread(loop_->descriptor(), other.data(), bytes, 0);
  const bool written =
      count == static_cast<ssize_t>(bytes) && std::memcmp(other.data(), memory.data(), bytes) == 0;
  FillRandomBytes(other.data(), bytes, 3);
  BALLAST_RETURN_IF_ERROR(loop_->file().Write(0, other.data(), bytes));
  IoRequest read = request;
  read.data = memory.data();
  BALLAST_RETURN_IF_ERROR(loop_->engine().Run(std::move(read)));
  verified_ = written && std::memcmp(other.data(), memory.data(), bytes) == 0;
  return absl::OkStatus();
}

Outcome Bench::Result() const {
  Report report;
  for (size_t m = 0; m < kModes.size(); ++m) {
    const std::string key = absl::StrCat(kNames[m], "_vs_fio");
    report.AtLeast(key, report.AddMedian(key, ratios_[m]), kBar);
  }
  const double control = report.AddMedian("aa_control", control_);
  report.Add("conclusive", control >= kControlLeast && control <= kControlMost);
  for (size_t m = 0; m < kModes.size(); ++m) {
    report.Add(absl::StrCat(kNames[m], "_mb_s"), Median(rates_[m]) / 1e6);
  }
  report.Add("block_bytes", options_.loop.block_bytes);
  report.Add("queue_depth", options_.loop.depth);
  report.Add("fio", absl::StrCat(fio_->version(), " --direct=1 --ioengine=libaio, huge pages"));
  return report.Finish(verified_);
}

int Main(int argc, char** argv) {
  Options options;
  Flags flags;
  flags.Text("--path", &options.path);
  AddLoopFlags(&flags, &options.loop);
  flags.Number("--repeats", 1, 1000, &options.repeats);
  return RunMain("aio_bench", kUsage, flags, argc, argv, [&] { return RunBench<Bench>(options); });
}

}  // namespace
}  // namespace ballast::bench

BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST();

int main(int argc, char** argv) {
  if (!ballast::HoldStandardDescriptors().ok()) return 1;
  return ballast::bench::Main(argc, argv);
}
