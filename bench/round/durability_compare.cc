#include "bench/round/durability_compare.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/parts/harness.h"
#include "bench/parts/raw_disk.h"
#include "bench/parts/round_model.h"
#include "bench/parts/server_process.h"
#include "common/base/status_macros.h"

namespace ballast::bench {
namespace {

constexpr uint64_t kRawBytes = uint64_t{1} << 30;
constexpr double kWriteSeconds = 1;  // of each measurement of the disk
constexpr int kWriteDepth = 4;
constexpr int kWarmUpRounds = 3;
constexpr int kRoundsPerTurn = 6;
constexpr std::chrono::milliseconds kSettle{300};
constexpr double kProcessBar = 0.95;
constexpr double kPowerBar = 0.85;
// Storage.checkpoint_rounds of the server: every extent is written once in that many rounds.
constexpr int kCheckpointRounds = 4;
constexpr double kStateBytes = 12;    // per parameter
constexpr double kGradientBytes = 2;  // of a bf16 job with one trainer, as the log has them

constexpr std::array<const char*, 3> kNames = {"none", "process", "power"};
constexpr std::array<client::Durability, 3> kLevels = {
    client::Durability::kNone, client::Durability::kProcess, client::Durability::kPower};

// Times of the jobs in one repetition, by level.
struct Turn {
  std::array<double, 3> seconds = {};       // rounds and think time
  std::array<double, 3> step_seconds = {};  // rounds only
  std::array<double, 3> server_cpu = {};    // seconds of the server's threads meanwhile
};

class Comparison {
 public:
  explicit Comparison(const DurabilityOptions& options) : options_(options) {}

  absl::Status Prepare();
  absl::Status Measure();
  absl::Status Verify();
  Outcome Result() const;

 private:
  absl::Status MeasureDisk();
  absl::Status ChooseThinkTime();
  absl::StatusOr<double> Round(size_t level);
  absl::StatusOr<Turn> Repeat(int number);
  double BytesPerRound() const {
    return model_.elements * (kGradientBytes + kStateBytes / kCheckpointRounds);
  }
  std::vector<double> Ratios(size_t level, std::array<double, 3> Turn::*time) const;
  double MedianMs(size_t level, std::array<double, 3> Turn::*time) const;

  const DurabilityOptions& options_;
  Model model_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::unique_ptr<ServerProcess> server_;
  std::array<std::unique_ptr<VerifiedJob>, 3> jobs_;
  double write_rate_ = 0;  // bytes per second
  double think_s_ = 0;
  double round_s_ = 0;  // of a job without durability, while the think time was chosen
  std::vector<Turn> turns_;
};

absl::Status Comparison::Prepare() {
  BALLAST_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create(options_.path));
  BALLAST_RETURN_IF_ERROR(MeasureDisk());
  BALLAST_ASSIGN_OR_RETURN(model_, Model::Describe(options_.parameters));
  std::vector<std::string> arguments = options_.server_arguments;
  arguments.push_back(absl::StrCat("--set=storage.data_dir=", directory_->path(), "/data"));
  arguments.push_back(absl::StrCat("--set=storage.checkpoint_rounds=", kCheckpointRounds));
  BALLAST_ASSIGN_OR_RETURN(server_, ServerProcess::Start(options_.server, arguments));
  BALLAST_RETURN_IF_ERROR(model_.Allocate());
  for (size_t level = 0; level < jobs_.size(); ++level) {
    client::JobOptions job;
    job.endpoints = {server_->address()};
    job.job = absl::StrCat("durability-", kNames[level]);
    job.durability = kLevels[level];
    BALLAST_ASSIGN_OR_RETURN(jobs_[level], VerifiedJob::Attach(std::move(job), &model_));
  }
  for (size_t level = 0; level < jobs_.size(); ++level) {
    for (int i = 0; i < kWarmUpRounds; ++i) BALLAST_RETURN_IF_ERROR(Round(level).status());
  }
  return ChooseThinkTime();
}

// The rate that the disk takes bytes at, with as many under way as it likes.
absl::Status Comparison::MeasureDisk() {
  BALLAST_ASSIGN_OR_RETURN(const std::unique_ptr<RawFile> raw,
                           RawFile::Create(directory_->path() + "/raw", kRawBytes));
  std::vector<double> rates;
  for (int i = 0; i < 3; ++i) {
    BALLAST_ASSIGN_OR_RETURN(const double rate, raw->WriteDeep(kWriteDepth, kWriteSeconds));
    rates.push_back(rate);
  }
  write_rate_ = Median(rates);
  return absl::OkStatus();
}

// A trainer that computes for as long as its rounds take, or longer when the disk needs that to
// take a round's bytes in half of the time.
absl::Status Comparison::ChooseThinkTime() {
  std::vector<double> rounds;
  for (int i = 0; i < 2 * kRoundsPerTurn; ++i) {
    BALLAST_ASSIGN_OR_RETURN(const double seconds, Round(0));
    rounds.push_back(seconds);
  }
  round_s_ = Median(rounds);
  think_s_ = options_.think_ms >= 0
                 ? options_.think_ms * 1e-3
                 : std::max(round_s_, 2 * BytesPerRound() / write_rate_ - round_s_);
  std::cerr << absl::StreamFormat(
      "%d parameters: %.0f MB per round to a disk that writes %.0f MB/s; rounds of %.0f ms and "
      "%.0f ms between them: %.2f of what the disk takes\n",
      model_.elements, BytesPerRound() / 1e6, write_rate_ / 1e6, round_s_ * 1e3, think_s_ * 1e3,
      BytesPerRound() / (write_rate_ * (round_s_ + think_s_)));
  return absl::OkStatus();
}

absl::StatusOr<double> Comparison::Round(size_t level) {
  BALLAST_ASSIGN_OR_RETURN(const TimedRound round, jobs_[level]->Round());
  return round.seconds;
}

absl::StatusOr<Turn> Comparison::Repeat(int number) {
  Turn turn;
  // All orders in turn, so that nobody always follows the same neighbour.
  std::array<size_t, 3> order = {0, 1, 2};
  for (int i = 0; i < number; ++i) std::next_permutation(order.begin(), order.end());
  for (const size_t level : order) {
    // Writes left by the previous job do not count for this one, but those left by its own first
    // round do.
    std::this_thread::sleep_for(kSettle);
    BALLAST_RETURN_IF_ERROR(Round(level).status());
    BALLAST_ASSIGN_OR_RETURN(const double cpu, server_->CpuSeconds());
    for (int round = 0; round < kRoundsPerTurn; ++round) {
      std::this_thread::sleep_for(std::chrono::duration<double>(think_s_));
      BALLAST_ASSIGN_OR_RETURN(const double seconds, Round(level));
      turn.step_seconds[level] += seconds;
      turn.seconds[level] += seconds + think_s_;
    }
    BALLAST_ASSIGN_OR_RETURN(const double cpu_end, server_->CpuSeconds());
    turn.server_cpu[level] = cpu_end - cpu;
  }
  return turn;
}

absl::Status Comparison::Measure() {
  for (int i = 0; i < options_.repeats; ++i) {
    BALLAST_ASSIGN_OR_RETURN(const Turn turn, Repeat(i));
    std::cerr << absl::StreamFormat("         ms per round: none %.1f, process %.1f, power %.1f\n",
                                    turn.step_seconds[0] * 1e3 / kRoundsPerTurn,
                                    turn.step_seconds[1] * 1e3 / kRoundsPerTurn,
                                    turn.step_seconds[2] * 1e3 / kRoundsPerTurn);
    turns_.push_back(turn);
  }
  return absl::OkStatus();
}

absl::Status Comparison::Verify() {
  for (const auto& job : jobs_) BALLAST_RETURN_IF_ERROR(job->Verify());
  return absl::OkStatus();
}

std::vector<double> Comparison::Ratios(size_t level, std::array<double, 3> Turn::*time) const {
  return Column(turns_, [=](const Turn& turn) { return (turn.*time)[0] / (turn.*time)[level]; });
}

double Comparison::MedianMs(size_t level, std::array<double, 3> Turn::*time) const {
  return Median(turns_, [=](const Turn& turn) { return (turn.*time)[level]; }) * 1e3 /
         kRoundsPerTurn;
}

Outcome Comparison::Result() const {
  Report report;
  for (size_t level = 1; level < jobs_.size(); ++level) {
    const std::string key = absl::StrCat(kNames[level], "_vs_none");
    const double ratio = report.AddMedian(key, Ratios(level, &Turn::seconds));
    report.AtLeast(key, ratio, level == 1 ? kProcessBar : kPowerBar);
  }
  for (size_t level = 1; level < jobs_.size(); ++level) {
    report.Add(absl::StrCat(kNames[level], "_step_vs_none"),
               Median(Ratios(level, &Turn::step_seconds)));
  }
  for (size_t level = 0; level < jobs_.size(); ++level) {
    report.Add(absl::StrCat(kNames[level], "_round_ms"), MedianMs(level, &Turn::step_seconds));
  }
  for (size_t level = 0; level < jobs_.size(); ++level) {
    report.Add(absl::StrCat(kNames[level], "_server_cpu_ms"), MedianMs(level, &Turn::server_cpu));
  }
  report.Add("think_ms", think_s_ * 1e3);
  report.Add("disk_write_mb_s", write_rate_ / 1e6);
  report.Add("disk_mb_per_round", BytesPerRound() / 1e6);
  report.Add("disk_share", BytesPerRound() / (write_rate_ * (round_s_ + think_s_)));
  report.Add("parameters", model_.elements);
  report.Add("repeats", options_.repeats);
  report.Add("rounds_per_turn", kRoundsPerTurn);
  uint64_t differing = 0;
  for (const auto& job : jobs_) differing += job->differing();
  report.Add("differing_elements", differing);
  return report.Finish(differing == 0);
}

}  // namespace

bool ParseDurability(const std::string& name, client::Durability* level) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name != kNames[i]) continue;
    *level = kLevels[i];
    return true;
  }
  return false;
}

absl::StatusOr<Outcome> CompareDurability(const DurabilityOptions& options) {
  return RunBench<Comparison>(options);
}

}  // namespace ballast::bench
