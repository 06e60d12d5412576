// DeepNVMe's handle (client/aio) against the I/O engine that it uses, and against fio: one file of
// 1 GiB, the same blocks, as many of them under way, huge pages and O_DIRECT everywhere. Handle and
// engine move all of the file with one operation, to or from 1 GiB of memory. In each repetition
// fio, handle, engine, handle and fio take turns; the ratios of one repetition are compared.
//
//   read_vs_engine, write_vs_engine    bytes per second, handle / engine
//   read_vs_fio, write_vs_fio          bytes per second, handle / fio
//   read_unaligned_vs_engine, write_unaligned_vs_engine
//                                      memory 64 bytes past a page boundary, as torch's tensors:
//                                      each byte is copied once more
//   aa_control                         the handle divided by itself: further from 1 than 0.90 to
//                                      1.10 the machine was not quiet enough to tell
//
// Then random bytes are written by the handle and read with pread, and the other way round.
// Comes from: the script bench/handle_bench. Goes to: stdout (--json), stderr.
// Thread safety: one thread, and those of handle and engine.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/parts/engine_loop.h"
#include "bench/parts/harness.h"
#include "bench/parts/raw_disk.h"
#include "client/aio/aio_handle.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "common/system/standard_descriptors.h"

namespace ballast::bench {
namespace {

constexpr char kUsage[] =
    "usage: handle_bench [--json] [--path DIR] [--block BYTES] [--depth N] [--parallel N]\n"
    "                    [--seconds S] [--file BYTES] [--repeats N]\n"
    "--seconds: of one turn of fio\n";
constexpr double kBar = 0.90;
constexpr double kControlLeast = 0.90;
constexpr double kControlMost = 1.10;
constexpr uint64_t kShift = 64;  // torch's offset of a tensor from a page boundary
constexpr std::array<IoKind, 2> kKinds = {IoKind::kRead, IoKind::kWrite};
constexpr std::array<FioMode, 2> kModes = {FioMode::kRead, FioMode::kWrite};
constexpr std::array<const char*, 2> kNames = {"read", "write"};

struct Options {
  std::string path = ".";
  LoopOptions loop;
  int parallelism = 1;
  int repeats = 9;
};

struct Ratios {
  std::vector<double> engine;
  std::vector<double> fio;
  std::vector<double> unaligned;  // to the engine
  std::vector<double> rates;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  absl::Status Prepare();
  absl::Status Measure();
  absl::Status Verify();
  Outcome Result() const;

 private:
  absl::StatusOr<double> RunHandle(IoKind kind, uint64_t shift);
  absl::StatusOr<double> RunEngine(IoKind kind);
  absl::Status Transfer(IoKind kind, char* memory, uint64_t bytes);
  absl::Status Repeat(int number, size_t which);

  const Options options_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::optional<Fio> fio_;
  std::unique_ptr<EngineLoop> loop_;
  Arena memory_;
  std::unique_ptr<AioHandle> handle_;
  std::array<Ratios, 2> ratios_;  // by kind
  std::vector<double> control_;
  bool verified_ = false;
};

absl::Status Bench::Prepare() {
  fio_ = Fio::Find();
  if (!fio_.has_value()) return absl::FailedPreconditionError("fio is not installed");
  BALLAST_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create(options_.path));
  BALLAST_ASSIGN_OR_RETURN(loop_, EngineLoop::Create(directory_->path(), options_.loop));
  BALLAST_ASSIGN_OR_RETURN(memory_, Arena::Create(loop_->file().bytes() + kShift));
  FillRandomBytes(memory_.data(), memory_.bytes(), 1);
  BALLAST_ASSIGN_OR_RETURN(handle_, AioHandle::Create({.block_bytes = options_.loop.block_bytes,
                                                       .queue_depth = options_.loop.depth,
                                                       .parallelism = options_.parallelism}));
  return absl::OkStatus();
}

absl::Status Bench::Transfer(IoKind kind, char* memory, uint64_t bytes) {
  const TransferRange range{.path = loop_->file().path(), .memory = memory, .bytes = bytes};
  const auto number =
      kind == IoKind::kRead ? handle_->StartRead(range, false) : handle_->StartWrite(range, false);
  if (!number.ok()) return number.status();
  constexpr std::chrono::hours kLong{1};
  if (!handle_->Wait(*number, kLong)) return absl::DeadlineExceededError("no end within an hour");
  return handle_->Take().status;
}

absl::StatusOr<double> Bench::RunHandle(IoKind kind, uint64_t shift) {
  const uint64_t bytes = loop_->file().bytes();
  const double begin = Now();
  BALLAST_RETURN_IF_ERROR(Transfer(kind, memory_.data() + shift, bytes));
  return static_cast<double>(bytes) / (Now() - begin);
}

absl::StatusOr<double> Bench::RunEngine(IoKind kind) {
  const uint64_t bytes = loop_->file().bytes();
  const double begin = Now();
  BALLAST_RETURN_IF_ERROR(loop_->engine().Run({.kind = kind,
                                               .descriptor = loop_->descriptor(),
                                               .path = loop_->file().path(),
                                               .data = memory_.data(),
                                               .bytes = bytes}));
  return static_cast<double>(bytes) / (Now() - begin);
}

absl::Status Bench::Repeat(int number, size_t which) {
  const IoKind kind = kKinds[which];
  BALLAST_ASSIGN_OR_RETURN(const double fio_before, loop_->RunFio(*fio_, kModes[which]));
  BALLAST_ASSIGN_OR_RETURN(const double before, RunHandle(kind, 0));
  BALLAST_ASSIGN_OR_RETURN(const double engine, RunEngine(kind));
  BALLAST_ASSIGN_OR_RETURN(const double after, RunHandle(kind, 0));
  BALLAST_ASSIGN_OR_RETURN(const double fio_after, loop_->RunFio(*fio_, kModes[which]));
  BALLAST_ASSIGN_OR_RETURN(const double unaligned, RunHandle(kind, kShift));
  const double rate = (before + after) / 2;
  const double fio = (fio_before + fio_after) / 2;
  Ratios& ratios = ratios_[which];
  ratios.rates.push_back(rate);
  ratios.engine.push_back(rate / engine);
  ratios.fio.push_back(rate / fio);
  ratios.unaligned.push_back(unaligned / engine);
  control_.push_back(before / after);
  std::cerr << absl::StreamFormat(
      "%d of %d, %-5s MB/s: handle %.0f and %.0f, engine %.0f, fio %.0f, unaligned %.0f\n",
      number + 1, options_.repeats, kNames[which], before / 1e6, after / 1e6, engine / 1e6,
      fio / 1e6, unaligned / 1e6);
  return absl::OkStatus();
}

absl::Status Bench::Measure() {
  for (int i = 0; i < options_.repeats; ++i) {
    for (size_t which = 0; which < kKinds.size(); ++which) {
      BALLAST_RETURN_IF_ERROR(Repeat(i, which));
    }
  }
  return absl::OkStatus();
}

absl::Status Bench::Verify() {
  constexpr size_t kBytes = (size_t{64} << 20) + 12345;
  const Arena other = *Arena::Create(kBytes);
  verified_ = true;
  for (const uint64_t shift : {uint64_t{0}, kShift}) {
    char* const memory = memory_.data() + shift;
    FillRandomBytes(memory, kBytes, 2 + shift);
    BALLAST_RETURN_IF_ERROR(Transfer(IoKind::kWrite, memory, kBytes));
    // Through the page cache: it reads the handle's writes to the disk and to the cache.
    const std::unique_ptr<File> file =
        *PosixFileSystem()->Open(loop_->file().path(), {.mode = OpenMode::kRead});
    BALLAST_ASSIGN_OR_RETURN(const size_t count, file->ReadAt(0, kBytes, other.data()));
    verified_ = verified_ && count == kBytes && std::memcmp(other.data(), memory, kBytes) == 0;
    std::memset(memory, 0, kBytes);
    BALLAST_RETURN_IF_ERROR(Transfer(IoKind::kRead, memory, kBytes));
    verified_ = verified_ && std::memcmp(other.data(), memory, kBytes) == 0;
  }
  return absl::OkStatus();
}

Outcome Bench::Result() const {
  Report report;
  for (size_t which = 0; which < kKinds.size(); ++which) {
    const std::string name = kNames[which];
    const Ratios& ratios = ratios_[which];
    report.AtLeast(name + "_vs_engine", report.AddMedian(name + "_vs_engine", ratios.engine), kBar);
    report.AtLeast(name + "_vs_fio", report.AddMedian(name + "_vs_fio", ratios.fio), kBar);
    report.AddMedian(name + "_unaligned_vs_engine", ratios.unaligned);
  }
  const double control = report.AddMedian("aa_control", control_);
  report.Add("conclusive", control >= kControlLeast && control <= kControlMost);
  for (size_t which = 0; which < kKinds.size(); ++which) {
    report.Add(absl::StrCat(kNames[which], "_mb_s"), Median(ratios_[which].rates) / 1e6);
  }
  report.Add("block_bytes", options_.loop.block_bytes);
  report.Add("queue_depth", options_.loop.depth);
  report.Add("intra_op_parallelism", options_.parallelism);
  report.Add("fio", absl::StrCat(fio_->version(), " --direct=1 --ioengine=libaio, huge pages"));
  return report.Finish(verified_);
}

int Main(int argc, char** argv) {
  Options options;
  Flags flags;
  flags.Text("--path", &options.path);
  AddLoopFlags(&flags, &options.loop);
  flags.Number("--parallel", 1, 64, &options.parallelism);
  flags.Number("--repeats", 1, 1000, &options.repeats);
  return RunMain("handle_bench", kUsage, flags, argc, argv,
                 [&] { return RunBench<Bench>(options); });
}

}  // namespace
}  // namespace ballast::bench

BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST();

int main(int argc, char** argv) {
  if (!ballast::HoldStandardDescriptors().ok()) return 1;
  return ballast::bench::Main(argc, argv);
}
