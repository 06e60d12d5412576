// How soon a killed state server works again: a durable job (level power) of N * 10^9
// bytes of state (12 per parameter, bf16 gradients) in one ballastd, kill -9 right after a round,
// the same binary again on the same directory and port, and the trainer, which never ended,
// continues.
//
//   seconds      from starting the process until the trainer has finished a round
//   limit_s      1.3 * bytes / bandwidth + 1
//     bytes      of images and log that the server says it had to read
//     bandwidth  of O_DIRECT reads of a file of random bytes next to it, 4 MiB per read, four at a
//                time; the mean of once before the kill and once after the round
//
// The parts of `seconds`, from the times in the server's log and in the trainer's reports:
//   start_s      until the server begins to recover the job
//   load_s       until its state stands in memory: images read, rounds replayed; load_cpu_s is the
//                user and system time that the server has taken when the trainer is back
//   reach_s      until the trainer is back: it asks again after 0.1, 0.2, 0.4, ... at most 1 s
//   round_s      the round itself; usual_round_s is the median of those before the kill
//
// `read_bytes` is the kernel's count of the server's reads from disks (/proc/<pid>/io): at least
// `bytes`, or part of it came from the page cache, and then the repetition does not count as right.
// Weights are compared after every round, masters and moments at the end, with the scalar kernel on
// sampled tensors: any difference is exit status 1.
// Comes from: bench/recovery_bench. Goes to: client/cpp, a ballastd, stdout. Thread safety: main
// only.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "ballast/client.h"
#include "bench/parts/harness.h"
#include "bench/parts/raw_disk.h"
#include "bench/parts/round_model.h"
#include "bench/parts/server_process.h"
#include "common/base/status_macros.h"
#include "common/system/malloc_arenas.h"
#include "common/system/standard_descriptors.h"

namespace ballast::bench {
namespace {

constexpr double kStateBytes = 12;      // of memory, per parameter
constexpr double kServerBytes = 18;     // with registers and outgoing weights of a bf16 job
constexpr double kTrainerBytes = 2;     // weights; gradients are shared between tensors
constexpr double kDiskBytes = 24 + 24;  // two places; log of six rounds, as large as fp32 ones
constexpr uint64_t kDiskRest = uint64_t{4} << 30;    // segments in reserve
constexpr uint64_t kMemoryRest = uint64_t{1} << 30;  // for everything else
constexpr uint64_t kGradientBytes = uint64_t{256} << 20;
constexpr int kReadDepth = 4;
constexpr double kBandwidthFactor = 1.3;
constexpr double kAllowanceS = 1;

struct Options {
  std::vector<double> gigabytes = {1, 4, 12};
  std::string path = ".";
  uint64_t raw_bytes = uint64_t{2} << 30;
  int rounds = 6;  // before the first kill: more than it takes to checkpoint every extent once
  int repeats = 3;
  std::string server;
  std::vector<std::string> server_arguments;
};

constexpr char kUsage[] =
    "usage: recovery_bench [--json] [--gb N,...] [--path DIR] [--file BYTES]\n"
    "                      [--rounds N] [--repeats N]\n"
    "                      [--server BALLASTD] [--set FIELD=VALUE]...\n";

// One kill and what followed.
struct Repetition {
  double seconds = 0;
  double start = 0, load = 0, reach = 0, round = 0;
  double load_cpu = 0;
  double image_bytes = 0, log_bytes = 0, read_bytes = 0;
  double replayed_rounds = 0;
  double bandwidth = 0;

  double bytes() const { return image_bytes + log_bytes; }
  double limit() const { return kBandwidthFactor * bytes() / bandwidth + kAllowanceS; }
  // The state's loading rate, as a share of the disk's.
  double load_vs_disk() const { return bytes() / load / bandwidth; }
};

// Seconds since the epoch of the line in a server's log that contains `text`; 0 without one.
double LogTime(const std::string& log, const std::string& text, std::string* line_out = nullptr) {
  for (const auto part : absl::StrSplit(log, '\n')) {
    const std::string line(part);
    if (!absl::StrContains(line, text)) continue;
    const size_t at = line.find("20");  // of the year
    std::tm parts = {};
    double second = 0;
    if (at == std::string::npos ||
        std::sscanf(line.c_str() + at, "%4d-%2d-%2dT%2d:%2d:%lf", &parts.tm_year, &parts.tm_mon,
                    &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &second) != 6) {
      continue;
    }
    parts.tm_year -= 1900;
    parts.tm_mon -= 1;
    if (line_out != nullptr) *line_out = line;
    return static_cast<double>(timegm(&parts)) + second;
  }
  return 0;
}

double WallClock() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// One size.
class Job {
 public:
  Job(const Options& options, double gigabytes) : options_(options), gigabytes_(gigabytes) {}

  // Why this machine cannot hold it; empty when it can.
  std::string TooLarge() const;
  absl::Status Prepare();
  absl::Status Measure();
  absl::Status Verify() { return job_->Verify(); }
  void AddTo(Report* report) const;
  uint64_t differing() const { return job_->differing(); }
  // Whether everything came from the disk.
  bool from_disk() const;

 private:
  uint64_t Parameters() const { return static_cast<uint64_t>(gigabytes_ * 1e9 / kStateBytes); }
  absl::Status Round();
  absl::StatusOr<Repetition> Repeat();
  absl::Status RoundAfterKill(Repetition* repetition);
  absl::Status ReadLog(double started, double back, Repetition* repetition) const;

  const Options& options_;
  const double gigabytes_;
  Model model_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::unique_ptr<RawFile> raw_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<VerifiedJob> job_;
  double back_at_ = 0;  // wall clock, of the trainer's last return
  double back_cpu_ = 0;
  std::vector<double> round_seconds_;
  std::vector<Repetition> repetitions_;
};

std::string Job::TooLarge() const {
  const auto parameters = static_cast<double>(Parameters());
  const auto memory =
      static_cast<uint64_t>(parameters * (kServerBytes + kTrainerBytes)) + kMemoryRest;
  const auto disk = static_cast<uint64_t>(parameters * kDiskBytes) + kDiskRest + options_.raw_bytes;
  if (const uint64_t free = AvailableMemoryBytes(); free < memory) {
    return absl::StrCat("it takes ", memory, " bytes of memory, ", free, " are available");
  }
  if (const uint64_t free = FreeDiskBytes(options_.path); free < disk) {
    return absl::StrCat("it takes ", disk, " bytes of disk, ", free, " are free in ",
                        options_.path);
  }
  return "";
}

absl::Status Job::Prepare() {
  BALLAST_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create(options_.path));
  BALLAST_ASSIGN_OR_RETURN(raw_, RawFile::Create(directory_->path() + "/raw", options_.raw_bytes));
  BALLAST_ASSIGN_OR_RETURN(model_, Model::Describe(Parameters()));
  const auto budget = static_cast<uint64_t>(static_cast<double>(Parameters()) * (kServerBytes + 1));
  std::vector<std::string> arguments = {
      absl::StrCat("--set=storage.data_dir=", directory_->path(), "/data"),
      // Given, since a server's default is a share of the memory free at its start: less at the
      // second start, next to the trainer, and the state would move to NVMe.
      absl::StrCat("--set=storage.memory_budget=", budget + kGradientBytes, "B")};
  arguments.insert(arguments.end(), options_.server_arguments.begin(),
                   options_.server_arguments.end());
  BALLAST_ASSIGN_OR_RETURN(server_, ServerProcess::Start(options_.server, arguments, true));
  BALLAST_RETURN_IF_ERROR(model_.Allocate(kGradientBytes));
  client::JobOptions job;
  job.endpoints = {server_->address()};
  job.job = "recovery-bench";
  job.durability = client::Durability::kPower;
  job.on_pause = [this](const client::Pause& pause) {
    if (pause.kind != client::Pause::Kind::kBack) return;
    back_at_ = WallClock();
    back_cpu_ = server_->CpuSeconds().value_or(0);
  };
  BALLAST_ASSIGN_OR_RETURN(job_, VerifiedJob::Attach(std::move(job), &model_));
  for (int i = 0; i < options_.rounds; ++i) BALLAST_RETURN_IF_ERROR(Round());
  std::cerr << absl::StreamFormat("%.3g GB: %d parameters, rounds of %.2f s\n", gigabytes_,
                                  model_.elements, Median(round_seconds_));
  return absl::OkStatus();
}

absl::Status Job::Round() {
  BALLAST_ASSIGN_OR_RETURN(const TimedRound round, job_->Round());
  round_seconds_.push_back(round.seconds);
  return absl::OkStatus();
}

absl::Status Job::RoundAfterKill(Repetition* repetition) {
  job_->Spoil();
  BALLAST_RETURN_IF_ERROR(job_->client()->BeginStep({kHyper}, model_.buffers));
  const double start = Now();
  const double started = WallClock();
  BALLAST_RETURN_IF_ERROR(server_->Restart());
  client::RoundReport report;
  for (bool done = false; !done;) {
    BALLAST_ASSIGN_OR_RETURN(done, job_->client()->Wait(std::chrono::minutes(5), &report));
  }
  repetition->seconds = Now() - start;
  repetition->round = WallClock() - back_at_;
  repetition->load_cpu = back_cpu_;
  BALLAST_ASSIGN_OR_RETURN(const uint64_t read, server_->DiskReadBytes());
  repetition->read_bytes = static_cast<double>(read);
  job_->CheckRound();
  return ReadLog(started, back_at_, repetition);
}

absl::Status Job::ReadLog(double started, double back, Repetition* repetition) const {
  const std::string log = server_->Log();
  std::string line;
  const double begun = LogTime(log, "recovering");
  const double recovered = LogTime(log, "recovered: ", &line);
  if (begun == 0 || recovered == 0) {
    return absl::InternalError("the state server did not say that it recovered:\n" + log);
  }
  repetition->start = begun - started;
  repetition->load = recovered - begun;
  repetition->reach = back - recovered;
  const char* const numbers = line.c_str() + line.find("recovered: ");
  if (std::sscanf(numbers, "recovered: %lf bytes of images and %lf of log, %lf rounds",
                  &repetition->image_bytes, &repetition->log_bytes,
                  &repetition->replayed_rounds) != 3) {
    return absl::InternalError("cannot read: " + line);
  }
  return absl::OkStatus();
}

absl::StatusOr<Repetition> Job::Repeat() {
  Repetition repetition;
  BALLAST_ASSIGN_OR_RETURN(const double before, raw_->ReadDeep(kReadDepth));
  BALLAST_RETURN_IF_ERROR(Round());
  server_->Kill();
  BALLAST_RETURN_IF_ERROR(RoundAfterKill(&repetition));
  BALLAST_ASSIGN_OR_RETURN(const double after, raw_->ReadDeep(kReadDepth));
  repetition.bandwidth = (before + after) / 2;
  return repetition;
}

absl::Status Job::Measure() {
  for (int i = 0; i < options_.repeats; ++i) {
    BALLAST_ASSIGN_OR_RETURN(const Repetition one, Repeat());
    std::cerr << absl::StreamFormat(
        "         %.2f s of at most %.2f: start %.2f, load %.2f (cpu %.2f), reach %.2f, round "
        "%.2f; %.2f GB of "
        "images, %.2f of log, %.2f read, disk %.2f GB/s, state loaded at %.2f of it\n",
        one.seconds, one.limit(), one.start, one.load, one.load_cpu, one.reach, one.round,
        one.image_bytes / 1e9, one.log_bytes / 1e9, one.read_bytes / 1e9, one.bandwidth / 1e9,
        one.load_vs_disk());
    repetitions_.push_back(one);
  }
  return absl::OkStatus();
}

bool Job::from_disk() const {
  return std::all_of(repetitions_.begin(), repetitions_.end(),
                     [](const Repetition& one) { return one.read_bytes >= one.bytes(); });
}

void Job::AddTo(Report* report) const {
  const std::vector<double> seconds = Column(repetitions_, &Repetition::seconds);
  const double limit = Median(repetitions_, &Repetition::limit);
  JsonObject size;
  size.Add("seconds", Median(seconds));
  size.Add("limit_s", limit);
  size.Add("seconds_spread", Spread(seconds));
  size.Add("start_s", Median(repetitions_, &Repetition::start));
  size.Add("load_s", Median(repetitions_, &Repetition::load));
  size.Add("load_cpu_s", Median(repetitions_, &Repetition::load_cpu));
  size.Add("reach_s", Median(repetitions_, &Repetition::reach));
  size.Add("round_s", Median(repetitions_, &Repetition::round));
  size.Add("usual_round_s", Median(round_seconds_));
  size.Add("load_vs_disk", Median(repetitions_, &Repetition::load_vs_disk));
  size.Add("image_bytes", Median(repetitions_, &Repetition::image_bytes));
  size.Add("log_bytes", Median(repetitions_, &Repetition::log_bytes));
  size.Add("read_bytes", Median(repetitions_, &Repetition::read_bytes));
  size.Add("replayed_rounds", Median(repetitions_, &Repetition::replayed_rounds));
  size.Add("disk_read_mb_s", Median(repetitions_, &Repetition::bandwidth) / 1e6);
  size.Add("parameters", model_.elements);
  size.Add("from_disk", from_disk());
  const std::string key = absl::StrFormat("%.6gGB", gigabytes_);
  report->AddRaw(key, size.Text());
  report->AtMost(key, Median(seconds), limit);
}

bool ParseSizes(const std::string& text, std::vector<double>* sizes) {
  sizes->clear();
  for (const auto part : absl::StrSplit(text, ',')) {
    double size = 0;
    if (!ParseNumber(std::string(part), 0.1, 1e5, &size)) return false;
    sizes->push_back(size);
  }
  return true;
}

absl::Status RunJob(Job* job) {
  BALLAST_RETURN_IF_ERROR(job->Prepare());
  BALLAST_RETURN_IF_ERROR(job->Measure());
  return job->Verify();
}

absl::StatusOr<Outcome> Run(const Options& options) {
  Report report;
  std::vector<std::string> skipped;
  uint64_t differing = 0;
  bool from_disk = true;
  for (const double gigabytes : options.gigabytes) {
    Job job(options, gigabytes);
    if (const std::string why = job.TooLarge(); !why.empty()) {
      std::cerr << absl::StreamFormat("%.3g GB skipped: %s\n", gigabytes, why);
      skipped.push_back(absl::StrFormat("\"%.6gGB: %s\"", gigabytes, why));
      continue;
    }
    BALLAST_RETURN_IF_ERROR(RunJob(&job));
    job.AddTo(&report);
    differing += job.differing();
    from_disk = from_disk && job.from_disk();
  }
  report.AddRaw("skipped", absl::StrCat("[", absl::StrJoin(skipped, ", "), "]"));
  report.Add("differing_elements", differing);
  report.Add("from_disk", from_disk);
  return report.Finish(differing == 0, differing == 0 && from_disk);
}

int Main(int argc, char** argv) {
  TuneMalloc();
  Options options;
  Flags flags;
  flags.Value("--gb", [&](const auto& text) { return ParseSizes(text, &options.gigabytes); });
  flags.Text("--path", &options.path);
  flags.Multiple("--file", uint64_t{128} << 20, uint64_t{1} << 40, &options.raw_bytes);
  flags.Number("--rounds", 1, 1000, &options.rounds);
  flags.Number("--repeats", 1, 1000, &options.repeats);
  flags.Server(argv[0], &options.server, &options.server_arguments);
  return RunMain("recovery_bench", kUsage, flags, argc, argv, [&] { return Run(options); });
}

}  // namespace
}  // namespace ballast::bench

BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST();

int main(int argc, char** argv) {
  if (!ballast::HoldStandardDescriptors().ok()) return 1;
  return ballast::bench::Main(argc, argv);
}
