#include "bench/round/optimizer_compare.h"

#include <array>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ballast/client.h"
#include "bench/parts/round_model.h"
#include "bench/parts/server_process.h"
#include "common/base/status_macros.h"

namespace ballast::bench {
namespace {

constexpr double kBar = 0.70;

const std::vector<KindJob>& Kinds() {
  static const auto* const kinds = new std::vector<KindJob>{
      kAdamWJob,
      {OptimizerKind::kAdam, {0, 0}, {3e-4, 0.9, 0.95, 1e-8, 0.1}},
      {OptimizerKind::kSgd, {1, 0, 0}, {1e-2, 0.9, 0, 0.01}},
      {OptimizerKind::kAdagrad, {0, 0, 0}, {1e-2, 0, 0.01, 1e-10}},
      {OptimizerKind::kLion, {0}, {1e-4, 0.9, 0.99, 0.1}},
      {OptimizerKind::kLamb, {1, 0}, {1e-3, 0.9, 0.999, 1e-6, 0.01, 10, 0.01}},
  };
  return *kinds;
}

absl::StatusOr<KindJob> FindKind(const std::string& name) {
  std::vector<std::string> names;
  for (const KindJob& job : Kinds()) {
    if (absl::EqualsIgnoreCase(job.row().name, name)) return job;
    names.push_back(absl::AsciiStrToLower(job.row().name));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--optimizer takes ", absl::StrJoin(names, ", "), ", not \"", name, "\""));
}

// The two jobs in one repetition: AdamW first, whichever ran first.
struct Pair {
  std::array<double, 2> seconds = {};
  std::array<double, 2> step_seconds = {};  // of it, as the server has it
};

class Comparison {
 public:
  Comparison(const OptimizerOptions& options, KindJob kind)
      : options_(options), kinds_{kAdamWJob, std::move(kind)} {}

  absl::Status Prepare();
  absl::Status Measure();
  absl::Status Verify();
  Outcome Result() const;

 private:
  absl::Status Round(size_t which, Pair* pair);

  const OptimizerOptions& options_;
  Model model_;
  std::unique_ptr<ServerProcess> server_;
  const std::array<KindJob, 2> kinds_;
  std::array<std::unique_ptr<VerifiedJob>, 2> jobs_;
  std::vector<Pair> pairs_;
};

absl::Status Comparison::Prepare() {
  BALLAST_ASSIGN_OR_RETURN(model_, Model::Describe(options_.parameters));
  BALLAST_ASSIGN_OR_RETURN(server_,
                           ServerProcess::Start(options_.server, options_.server_arguments));
  BALLAST_RETURN_IF_ERROR(model_.Allocate());
  for (size_t i = 0; i < jobs_.size(); ++i) {
    client::JobOptions job;
    job.endpoints = {server_->address()};
    job.job = i == 0 ? "adamw" : "kind";
    job.durability = client::Durability::kNone;
    BALLAST_ASSIGN_OR_RETURN(jobs_[i], VerifiedJob::Attach(std::move(job), &model_, kinds_[i]));
  }
  return absl::OkStatus();
}

absl::Status Comparison::Round(size_t which, Pair* pair) {
  BALLAST_ASSIGN_OR_RETURN(const TimedRound round, jobs_[which]->Round());
  pair->seconds[which] = round.seconds;
  pair->step_seconds[which] = static_cast<double>(round.report.step_ns) * 1e-9;
  return absl::OkStatus();
}

absl::Status Comparison::Measure() {
  const auto text = [this](const Pair& pair) {
    return absl::StrFormat("AdamW %.1f ms, %s %.1f ms", pair.seconds[0] * 1e3, kinds_[1].row().name,
                           pair.seconds[1] * 1e3);
  };
  BALLAST_ASSIGN_OR_RETURN(
      pairs_, MeasureInTurn<Pair>(
                  options_.warmups, options_.repeats,
                  [this](size_t which, Pair* pair) { return Round(which, pair); }, text));
  return absl::OkStatus();
}

absl::Status Comparison::Verify() {
  for (const auto& job : jobs_) BALLAST_RETURN_IF_ERROR(job->Verify());
  return absl::OkStatus();
}

Outcome Comparison::Result() const {
  Report report;
  const std::vector<double> ratios =
      Column(pairs_, [](const Pair& pair) { return pair.seconds[0] / pair.seconds[1]; });
  report.AtLeast("adamw_vs_kind", report.AddMedian("adamw_vs_kind", ratios), kBar);
  const auto add = [&](const char* key, std::array<double, 2> Pair::*time, size_t which) {
    report.Add(key, Median(pairs_, [=](const Pair& pair) { return (pair.*time)[which] * 1e3; }));
  };
  add("adamw_round_ms", &Pair::seconds, 0);
  add("kind_round_ms", &Pair::seconds, 1);
  add("adamw_server_step_ms", &Pair::step_seconds, 0);
  add("kind_server_step_ms", &Pair::step_seconds, 1);
  report.Add("optimizer", std::string(kinds_[1].row().name));
  report.Add("parameters", model_.elements);
  report.Add("repeats", options_.repeats);
  const uint64_t differing = jobs_[0]->differing() + jobs_[1]->differing();
  report.Add("differing_elements", differing);
  return report.Finish(differing == 0);
}

}  // namespace

absl::StatusOr<Outcome> CompareOptimizer(const OptimizerOptions& options) {
  BALLAST_ASSIGN_OR_RETURN(KindJob kind, FindKind(options.kind));
  return RunBench<Comparison>(options, std::move(kind));
}

}  // namespace ballast::bench
