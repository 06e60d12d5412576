// How much of the network and of the optimizer a round of Ballast keeps: push + step + pull of a
// bf16 model by one trainer (this process) at one state server (a ballastd) over gRPC on loopback,
// with checksums on, clipping off and durability none unless --durability says otherwise.
// --durability without a level compares all three, see durability_compare.h; --tls compares with
// plaintext, see tls_compare.h; --optimizer compares
// a kind with AdamW, see optimizer_compare.h.
//
// Every repetition measures all of the following in turn, in this order, so that all see the same
// moods of the machine; the keys are ratios of medians over the repetitions.
//
//   raw push, raw pull   the same bytes from and to the same memory over one TCP connection to a
//                        third process, 1 MiB per write, the congestion control of Ballast's own
//                        connections, an answer of one byte at the end (raw_tcp.h)
//   round                Client::Step
//     push               of it: from the call until the server has acknowledged that every gradient
//                        is in its register. The server verifies checksums, copies into registers
//                        and forms norms meanwhile.
//   pull                 Client::FetchWeights after the round: from the call until all weights of
//                        the new version are in the tensors, verified. Inside a round the same
//                        bytes leave as the step produces them, so their time cannot be told from
//                        the optimizer's; this is the same path with the step already done.
//   optimizer only       the step's tiles with the same kernel, layout, data and number of threads
//                        in this process, while the server idles (round_model.h)
//
// Both step with as many threads as half of the machine's cores, since the trainer's network thread
// has as many bytes to move as the server's. Nothing is pinned. --step-threads sets another number;
// a server's own default, rounds.worker_threads, is one per core.
//
//   push_vs_raw_tcp          raw push / push
//   pull_vs_raw_tcp          raw pull / pull
//   push_vs_raw_tcp_fastest, pull_vs_raw_tcp_fastest
//                            the same of the fastest repetition of each side. A blocking loop over
//                            raw TCP has two moods: sender and receiver busy together, or one
//                            wake-up per segment, which on a virtual machine takes three times as
//                            long. A median of the second flatters gRPC; two fastest ones compare
//                            the first.
//   round_vs_optimizer_only  optimizer only / round
//   cpu_s_per_gb             user and system time of both processes during rounds, per 10^9 bytes
//                            of payload up and down; the step's own work is part of it
//   scraped_round_vs_round   a round while /metrics is read once / one without; in turn
//   copies_per_byte_server   payload bytes copied by our code on their way in, per byte received
//                            (ballast_copied_bytes_total / ballast_push_bytes_total); out there is
//                            no copy, the kernel writes into the buffers that gRPC sends
//   copies_per_byte_client   payload bytes copied by our code on their way in, per byte received
//   copies_per_byte_client_up  of the bytes sent, those that gRPC did not get from the caller's own
//                            memory, per byte sent
//
// Weights are compared after every round and after every fetch, masters and moments at the end,
// with the scalar kernel on sampled tensors: any difference is exit status 1.
// Comes from: bench/round_bench. Goes to: client/cpp, a ballastd, stdout. Thread safety: main only.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ballast/client.h"
#include "bench/parts/harness.h"
#include "bench/parts/raw_disk.h"
#include "bench/parts/round_model.h"
#include "bench/parts/server_process.h"
#include "bench/round/durability_compare.h"
#include "bench/round/optimizer_compare.h"
#include "bench/round/raw_tcp.h"
#include "bench/round/tls_compare.h"
#include "common/base/status_macros.h"
#include "common/system/malloc_arenas.h"
#include "common/system/standard_descriptors.h"
#include "common/threads/thread_executor.h"
#include "proto/convert/channel.h"

namespace ballast::bench {
namespace {

struct Options {
  uint64_t parameters = uint64_t{64} << 20;
  int warmups = 3;
  int repeats = 15;
  int step_threads = 1;
  client::Durability durability = client::Durability::kNone;
  bool compare_durability = false;
  std::string tls;         // directory of scripts/dev-ca.sh; empty: no such comparison
  std::string optimizer;   // compared with AdamW; empty: no such comparison
  double think_ms = -1;    // between rounds; negative: none, and chosen when levels are compared
  std::string path = ".";  // for what durable jobs write
  std::string server;      // path of ballastd
  std::vector<std::string> server_arguments;
};

// The server's argument for it.
std::string StepThreads(const Options& options) {
  return absl::StrCat("--set=rounds.worker_threads=", options.step_threads);
}

constexpr char kUsage[] =
    "usage: round_bench [--json] [--parameters N] [--repeats N] [--warmups N]\n"
    "                   [--step-threads N (half of the cores)]\n"
    "                   [--server BALLASTD] [--set FIELD=VALUE]...\n"
    "                   [--durability [none|process|power]]\n"
    "                   [--optimizer adam|sgd|adagrad|lion|lamb]\n"
    "                   [--tls DIR_OF_DEV_CA] [--think-ms T] [--path DIR]\n";

// Times of one repetition, in seconds, and the trainer's report of its round.
struct Repetition {
  double raw_push = 0;
  double raw_pull = 0;
  double round = 0;
  double pull = 0;
  double optimizer = 0;
  double round_cpu = 0;
  double pull_cpu = 0;
  double round_faults = 0;
  client::RoundReport report;
};

template <typename Get>
double Fastest(const std::vector<Repetition>& repetitions, const Get& get) {
  return std::ranges::min(Column(repetitions, get));
}

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {}

  absl::Status Prepare();
  absl::Status Measure();
  absl::Status Verify();
  absl::StatusOr<Outcome> Result() const;

 private:
  absl::StatusOr<Repetition> Repeat();
  absl::Status MeasureRound(Repetition* repetition);
  absl::Status MeasurePull(Repetition* repetition);
  // Rounds with one scrape each, and rounds without, in turn.
  absl::Status MeasureScrapes();
  absl::StatusOr<double> CpuSeconds() const;
  void AddRatios(Report* report) const;
  absl::Status AddCopies(const client::TransferCounters& counters, Report* report) const;
  // A scrape's cost for the server, also as a share of a round.
  absl::Status AddScrapes(Report* report) const;
  void AddTimes(Report* report) const;
  uint64_t PayloadBytes() const { return model_.elements * 2; }

  const Options options_;
  Model model_;
  std::string congestion_control_;
  std::unique_ptr<TemporaryDirectory> directory_;  // of a durable job
  std::unique_ptr<RawTcpPeer> raw_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<OptimizerOnly> optimizer_;
  std::unique_ptr<VerifiedJob> job_;
  std::vector<std::string> server_tcp_;  // congestion controls of Ballast's own connections
  std::vector<std::string> client_tcp_;
  uint64_t steps_ = 0;
  std::vector<Repetition> repetitions_;
  std::vector<double> scraped_;  // seconds of rounds with a scrape, and of those between them
  std::vector<double> unscraped_;
};

absl::Status Bench::Prepare() {
  BALLAST_ASSIGN_OR_RETURN(model_, Model::Describe(options_.parameters));
  BALLAST_ASSIGN_OR_RETURN(congestion_control_, ChooseCongestionControl());
  BALLAST_ASSIGN_OR_RETURN(raw_, RawTcpPeer::Fork(PayloadBytes(), congestion_control_));
  std::vector<std::string> arguments = options_.server_arguments;
  arguments.push_back(StepThreads(options_));
  if (options_.durability != client::Durability::kNone) {
    BALLAST_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create(options_.path));
    arguments.push_back(absl::StrCat("--set=storage.data_dir=", directory_->path()));
  }
  BALLAST_ASSIGN_OR_RETURN(server_, ServerProcess::Start(options_.server, arguments));
  BALLAST_RETURN_IF_ERROR(model_.Allocate());
  BALLAST_ASSIGN_OR_RETURN(optimizer_, OptimizerOnly::Make(model_, options_.step_threads));
  client::JobOptions job;
  job.endpoints = {server_->address()};
  job.job = "round-bench";
  job.durability = options_.durability;
  BALLAST_ASSIGN_OR_RETURN(job_, VerifiedJob::Attach(std::move(job), &model_));
  std::cerr << absl::StreamFormat("%d parameters in %d tensors, %d step threads, raw TCP with %s\n",
                                  model_.elements, model_.tensors.size(), options_.step_threads,
                                  congestion_control_);
  return absl::OkStatus();
}

absl::StatusOr<double> Bench::CpuSeconds() const {
  BALLAST_ASSIGN_OR_RETURN(const double server, server_->CpuSeconds());
  return server + OwnCpuSeconds();
}

absl::Status Bench::MeasureRound(Repetition* repetition) {
  BALLAST_ASSIGN_OR_RETURN(const uint64_t faults, server_->MinorFaults());
  BALLAST_ASSIGN_OR_RETURN(const double cpu, CpuSeconds());
  const double start = Now();
  BALLAST_ASSIGN_OR_RETURN(repetition->report, job_->client()->Step({kHyper}, model_.buffers));
  repetition->round = Now() - start;
  BALLAST_ASSIGN_OR_RETURN(const double cpu_end, CpuSeconds());
  BALLAST_ASSIGN_OR_RETURN(const uint64_t faults_end, server_->MinorFaults());
  repetition->round_cpu = cpu_end - cpu;
  repetition->round_faults = static_cast<double>(faults_end - faults);
  ++steps_;
  job_->CheckRound();
  return absl::OkStatus();
}

absl::Status Bench::MeasurePull(Repetition* repetition) {
  for (const uint32_t tensor : model_.sampled) {
    std::memset(model_.buffers[tensor].weight, 0xFF, model_.tensor_elements[tensor] * 2);
  }
  BALLAST_ASSIGN_OR_RETURN(const double cpu, CpuSeconds());
  const double start = Now();
  BALLAST_RETURN_IF_ERROR(job_->client()->FetchWeights(model_.buffers));
  repetition->pull = Now() - start;
  BALLAST_ASSIGN_OR_RETURN(const double cpu_end, CpuSeconds());
  repetition->pull_cpu = cpu_end - cpu;
  job_->CheckWeights();
  return absl::OkStatus();
}

absl::StatusOr<Repetition> Bench::Repeat() {
  Repetition repetition;
  if (options_.think_ms > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.think_ms * 1e-3));
  }
  BALLAST_ASSIGN_OR_RETURN(repetition.raw_push, raw_->Push(model_.gradients.data()));
  // Overwrites all weights, so that the old ones cannot pass for the new ones.
  BALLAST_ASSIGN_OR_RETURN(repetition.raw_pull, raw_->Pull(model_.weights.data()));
  BALLAST_RETURN_IF_ERROR(MeasureRound(&repetition));
  BALLAST_RETURN_IF_ERROR(MeasurePull(&repetition));
  repetition.optimizer = optimizer_->Step(steps_);
  return repetition;
}

absl::Status Bench::Measure() {
  for (int i = 0; i < options_.warmups + options_.repeats; ++i) {
    BALLAST_ASSIGN_OR_RETURN(const Repetition one, Repeat());
    const bool warmup = i < options_.warmups;
    std::cerr << absl::StreamFormat(
        "%s raw %.1f/%.1f ms, push %.1f, pull %.1f, round %.1f (decided after %.1f), "
        "optimizer %.1f ms\n",
        warmup ? "warm-up:" : "        ", one.raw_push * 1e3, one.raw_pull * 1e3,
        static_cast<double>(one.report.push_ns) * 1e-6, one.pull * 1e3, one.round * 1e3,
        static_cast<double>(one.report.push_ns + one.report.wait_ns) * 1e-6, one.optimizer * 1e3);
    if (!warmup) repetitions_.push_back(one);
  }
  return MeasureScrapes();
}

absl::Status Bench::MeasureScrapes() {
  ThreadExecutor beside("scrape", 1);
  for (int i = 0; i < 2 * options_.repeats; ++i) {
    const bool scraped = i % 2 == 1;
    std::promise<absl::Status> answered;
    if (scraped) {
      beside.Post([&] { answered.set_value(server_->Metric("ballast_rounds_total").status()); });
    } else {
      answered.set_value(absl::OkStatus());
    }
    Repetition one;
    const absl::Status status = MeasureRound(&one);
    const absl::Status scrape = answered.get_future().get();
    BALLAST_RETURN_IF_ERROR(status);
    BALLAST_RETURN_IF_ERROR(scrape);
    (scraped ? scraped_ : unscraped_).push_back(one.round);
  }
  return absl::OkStatus();
}

absl::Status Bench::Verify() {
  // While the connections are open.
  BALLAST_ASSIGN_OR_RETURN(server_tcp_, server_->CongestionControl());
  client_tcp_ =
      OwnCongestionControl(std::stoi(server_->address().substr(server_->address().rfind(':') + 1)));
  return job_->Verify();
}

void Bench::AddTimes(Report* report) const {
  const std::pair<const char*, double (*)(const Repetition&)> times[] = {
      {"raw_push_ms", [](const Repetition& r) { return r.raw_push * 1e3; }},
      {"raw_pull_ms", [](const Repetition& r) { return r.raw_pull * 1e3; }},
      {"push_ms", [](const Repetition& r) { return static_cast<double>(r.report.push_ns) * 1e-6; }},
      {"pull_ms", [](const Repetition& r) { return r.pull * 1e3; }},
      {"round_ms", [](const Repetition& r) { return r.round * 1e3; }},
      {"optimizer_only_ms", [](const Repetition& r) { return r.optimizer * 1e3; }},
      {"round_wait_ms",
       [](const Repetition& r) { return static_cast<double>(r.report.wait_ns) * 1e-6; }},
      {"round_step_and_pull_ms",
       [](const Repetition& r) { return static_cast<double>(r.report.pull_ns) * 1e-6; }},
      {"server_step_ms",
       [](const Repetition& r) { return static_cast<double>(r.report.step_ns) * 1e-6; }},
      {"server_page_faults_per_round", [](const Repetition& r) { return r.round_faults; }},
  };
  for (const auto& [key, get] : times) report->Add(key, Median(repetitions_, get));
}

void Bench::AddRatios(Report* report) const {
  const auto push = [](const Repetition& r) {
    return static_cast<double>(r.report.push_ns) * 1e-9;
  };
  const auto add = [&](const char* key, double of, double to, double bar) {
    report->Add(key, of / to);
    report->AtLeast(key, of / to, bar);
  };
  add("push_vs_raw_tcp", Median(repetitions_, &Repetition::raw_push), Median(repetitions_, push),
      0.85);
  add("pull_vs_raw_tcp", Median(repetitions_, &Repetition::raw_pull),
      Median(repetitions_, &Repetition::pull), 0.80);
  report->Add("push_vs_raw_tcp_fastest",
              Fastest(repetitions_, &Repetition::raw_push) / Fastest(repetitions_, push));
  report->Add("pull_vs_raw_tcp_fastest", Fastest(repetitions_, &Repetition::raw_pull) /
                                             Fastest(repetitions_, &Repetition::pull));
  add("round_vs_optimizer_only", Median(repetitions_, &Repetition::optimizer),
      Median(repetitions_, &Repetition::round), 0.35);
  const double round_gb = static_cast<double>(2 * PayloadBytes()) * 1e-9;
  report->Add("cpu_s_per_gb", Median(repetitions_, &Repetition::round_cpu) / round_gb);
  report->Add("pull_cpu_s_per_gb", Median(repetitions_, &Repetition::pull_cpu) / (round_gb / 2));
}

absl::Status Bench::AddCopies(const client::TransferCounters& counters, Report* report) const {
  BALLAST_ASSIGN_OR_RETURN(const double copied, server_->Metric("ballast_copied_bytes_total"));
  BALLAST_ASSIGN_OR_RETURN(const double received, server_->Metric("ballast_push_bytes_total"));
  const auto add = [&](const char* key, double copies, double bar) {
    report->Add(key, copies);
    report->AtMost(key, copies, bar);
  };
  add("copies_per_byte_server", received > 0 ? copied / received : 0, 1);
  add("copies_per_byte_client",
      static_cast<double>(counters.copied_down_bytes) /
          static_cast<double>(counters.payload_down_bytes),
      1);
  add("copies_per_byte_client_up",
      static_cast<double>(counters.copied_up_bytes) /
          static_cast<double>(counters.payload_up_bytes),
      0);
  return absl::OkStatus();
}

absl::Status Bench::AddScrapes(Report* report) const {
  constexpr int kScrapes = 100;
  BALLAST_ASSIGN_OR_RETURN(const double before, server_->CpuSeconds());
  for (int i = 0; i < kScrapes; ++i) {
    BALLAST_RETURN_IF_ERROR(server_->Metric("ballast_rounds_total").status());
  }
  BALLAST_ASSIGN_OR_RETURN(const double after, server_->CpuSeconds());
  const double scrape = (after - before) / kScrapes;
  report->Add("scrape_cpu_ms", scrape * 1e3);
  report->Add("scrape_cpu_vs_round_cpu", scrape / Median(repetitions_, &Repetition::round_cpu));
  std::vector<double> ratios;
  for (size_t i = 0; i < scraped_.size(); ++i) ratios.push_back(scraped_[i] / unscraped_[i]);
  report->AddMedian("scraped_round_vs_round", ratios);
  return absl::OkStatus();
}

absl::StatusOr<Outcome> Bench::Result() const {
  const client::TransferCounters counters = job_->client()->counters();
  const bool same_tcp = server_tcp_ == std::vector<std::string>{congestion_control_} &&
                        client_tcp_ == server_tcp_ &&
                        CongestionControlOf(raw_->fd()) == congestion_control_;
  Report report;
  AddRatios(&report);
  BALLAST_RETURN_IF_ERROR(AddCopies(counters, &report));
  BALLAST_RETURN_IF_ERROR(AddScrapes(&report));
  report.Add("parameters", model_.elements);
  if (options_.durability != client::Durability::kNone) report.Add("think_ms", options_.think_ms);
  report.Add("step_threads", options_.step_threads);
  report.Add("repeats", options_.repeats);
  AddTimes(&report);
  report.Add("congestion_control",
             absl::StrCat("raw ", congestion_control_, ", client ", absl::StrJoin(client_tcp_, "+"),
                          ", server ", absl::StrJoin(server_tcp_, "+")));
  report.Add("frames_refused", counters.frames_refused);
  report.Add("differing_elements", job_->differing());
  report.Add("pull_is", "FetchWeights of the whole model after its round");
  report.Add("same_congestion_control", same_tcp);
  return report.Finish(job_->differing() == 0, job_->differing() == 0 && same_tcp);
}

absl::StatusOr<Outcome> Run(const Options& options) {
  if (options.compare_durability) {
    return CompareDurability({.parameters = options.parameters,
                              .repeats = options.repeats,
                              .think_ms = options.think_ms,
                              .path = options.path,
                              .server = options.server,
                              .server_arguments = options.server_arguments});
  }
  if (!options.tls.empty()) {
    std::vector<std::string> arguments = options.server_arguments;
    arguments.push_back(StepThreads(options));
    return CompareTls({.certificates = options.tls,
                       .parameters = options.parameters,
                       .warmups = options.warmups,
                       .repeats = options.repeats,
                       .server = options.server,
                       .server_arguments = arguments});
  }
  if (!options.optimizer.empty()) {
    std::vector<std::string> arguments = options.server_arguments;
    arguments.push_back(StepThreads(options));
    return CompareOptimizer({.kind = options.optimizer,
                             .parameters = options.parameters,
                             .warmups = options.warmups,
                             .repeats = options.repeats,
                             .server = options.server,
                             .server_arguments = arguments});
  }
  return RunBench<Bench>(options);
}

int Main(int argc, char** argv) {
  TuneMalloc();
  DisableLockOrderChecks();
  Options options;
  options.step_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency() / 2));
  Flags flags;
  // Without a level: all of them.
  flags.OptionalValue("--durability", &options.compare_durability, [&](const auto& level) {
    return ParseDurability(level, &options.durability);
  });
  flags.Number("--think-ms", 0.0, 1e6, &options.think_ms);
  flags.Text("--path", &options.path);
  flags.Text("--optimizer", &options.optimizer);
  flags.Text("--tls", &options.tls);
  flags.Number("--parameters", uint64_t{1} << 20, uint64_t{1} << 32, &options.parameters);
  flags.Number("--repeats", 1, 1000, &options.repeats);
  flags.Number("--warmups", 0, 1000, &options.warmups);
  flags.Number("--step-threads", 1, 1024, &options.step_threads);
  flags.Server(argv[0], &options.server, &options.server_arguments);
  return RunMain("round_bench", kUsage, flags, argc, argv, [&] { return Run(options); });
}

}  // namespace
}  // namespace ballast::bench

BALLAST_HOLD_STANDARD_DESCRIPTORS_FIRST();

int main(int argc, char** argv) {
  if (!ballast::HoldStandardDescriptors().ok()) return 1;
  return ballast::bench::Main(argc, argv);
}
