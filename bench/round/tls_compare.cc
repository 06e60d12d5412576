#include "bench/round/tls_compare.h"

#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ballast/client.h"
#include "bench/parts/round_model.h"
#include "bench/parts/server_process.h"
#include "common/base/status_macros.h"

namespace ballast::bench {
namespace {

// Of one repetition, plaintext first, whichever ran first.
using Pair = std::array<double, 2>;

class Comparison {
 public:
  explicit Comparison(const TlsOptions& options) : options_(options) {}

  absl::Status Prepare();
  absl::Status Measure();
  absl::Status Verify();
  Outcome Result() const;

 private:
  std::string At(const char* name) const { return absl::StrCat(options_.certificates, "/", name); }
  absl::Status Open(size_t which);
  absl::Status Round(size_t which, Pair* seconds);

  const TlsOptions& options_;
  Model model_;
  std::array<std::unique_ptr<ServerProcess>, 2> servers_;
  std::array<std::unique_ptr<VerifiedJob>, 2> jobs_;
  std::vector<Pair> pairs_;
};

absl::Status Comparison::Open(size_t which) {
  std::vector<std::string> arguments = options_.server_arguments;
  client::JobOptions job;
  if (which == 1) {
    arguments.push_back("--set=security.mode=tls");
    arguments.push_back(absl::StrCat("--set=security.ca=", At("ca.pem")));
    arguments.push_back(absl::StrCat("--set=security.certificate=", At("server-0.pem")));
    arguments.push_back(absl::StrCat("--set=security.key=", At("server-0.key")));
    job.security = {At("ca.pem"), At("trainer-default.pem"), At("trainer-default.key"), ""};
  }
  BALLAST_ASSIGN_OR_RETURN(servers_[which], ServerProcess::Start(options_.server, arguments));
  job.endpoints = {servers_[which]->address()};
  job.job = "round-bench";
  job.durability = client::Durability::kNone;
  BALLAST_ASSIGN_OR_RETURN(jobs_[which], VerifiedJob::Attach(std::move(job), &model_));
  return absl::OkStatus();
}

absl::Status Comparison::Prepare() {
  BALLAST_ASSIGN_OR_RETURN(model_, Model::Describe(options_.parameters));
  BALLAST_RETURN_IF_ERROR(model_.Allocate());
  BALLAST_RETURN_IF_ERROR(Open(0));
  return Open(1);
}

absl::Status Comparison::Round(size_t which, Pair* seconds) {
  BALLAST_ASSIGN_OR_RETURN(const TimedRound round, jobs_[which]->Round());
  (*seconds)[which] = round.seconds;
  return absl::OkStatus();
}

absl::Status Comparison::Measure() {
  BALLAST_ASSIGN_OR_RETURN(pairs_,
                           MeasureInTurn<Pair>(
                               options_.warmups, options_.repeats,
                               [this](size_t which, Pair* pair) { return Round(which, pair); },
                               [](const Pair& pair) {
                                 return absl::StrFormat("plaintext %.1f ms, TLS %.1f ms",
                                                        pair[0] * 1e3, pair[1] * 1e3);
                               }));
  return absl::OkStatus();
}

absl::Status Comparison::Verify() {
  for (const auto& job : jobs_) BALLAST_RETURN_IF_ERROR(job->Verify());
  return absl::OkStatus();
}

Outcome Comparison::Result() const {
  Report report;
  report.AddMedian("plaintext_vs_tls",
                   Column(pairs_, [](const Pair& pair) { return pair[0] / pair[1]; }));
  report.Add("plaintext_round_ms", Median(pairs_, [](const Pair& pair) { return pair[0] * 1e3; }));
  report.Add("tls_round_ms", Median(pairs_, [](const Pair& pair) { return pair[1] * 1e3; }));
  report.Add("parameters", model_.elements);
  report.Add("repeats", options_.repeats);
  const uint64_t differing = jobs_[0]->differing() + jobs_[1]->differing();
  report.Add("differing_elements", differing);
  return report.Finish(differing == 0);
}

}  // namespace

absl::StatusOr<Outcome> CompareTls(const TlsOptions& options) {
  return RunBench<Comparison>(options);
}

}  // namespace ballast::bench
