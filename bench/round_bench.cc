// How much of the network and of the optimizer a round of Ballast keeps: push + step + pull of a
// bf16 model by one trainer (this process) at one state server (a ballastd) over gRPC on loopback,
// with checksums on, clipping off and durability none unless --durability says otherwise.
// --durability without a level compares all three, see durability_compare.h.
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
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
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
#include "bench/durability_compare.h"
#include "bench/raw_disk.h"
#include "bench/raw_tcp.h"
#include "bench/report.h"
#include "bench/round_model.h"
#include "bench/server_process.h"
#include "common/base/status_macros.h"
#include "proto/convert/channel.h"

namespace ballast::bench {
namespace {

struct Options {
  bool json = false;
  uint64_t parameters = uint64_t{64} << 20;
  int warmups = 3;
  int repeats = 15;
  int step_threads = 1;
  client::Durability durability = client::Durability::kNone;
  bool compare_durability = false;
  double think_ms = -1;    // between rounds; negative: none, and chosen when levels are compared
  std::string path = ".";  // for what durable jobs write
  std::string server;      // path of ballastd
  std::vector<std::string> server_arguments;
};

constexpr char kUsage[] =
    "usage: round_bench [--json] [--parameters N] [--repeats N] [--warmups N]\n"
    "                   [--step-threads N (half of the cores)]\n"
    "                   [--server BALLASTD] [--set FIELD=VALUE]...\n"
    "                   [--durability [none|process|power]]\n"
    "                   [--think-ms T] [--path DIR]\n";

// Times of one repetition, in seconds, and what the trainer was told about its round.
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

double OwnCpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <typename Get>
double Fastest(const std::vector<Repetition>& repetitions, Get get) {
  double fastest = get(repetitions.front());
  for (const Repetition& repetition : repetitions) fastest = std::min(fastest, get(repetition));
  return fastest;
}

template <typename Get>
double Median(const std::vector<Repetition>& repetitions, Get get) {
  std::vector<double> values;
  for (const Repetition& repetition : repetitions) values.push_back(get(repetition));
  return bench::Median(std::move(values));
}

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {}

  absl::Status Prepare();
  absl::Status Measure();
  absl::Status Verify();
  // Forms the result; `pass` tells whether everything was right.
  absl::StatusOr<std::string> Result(bool* pass) const;

 private:
  absl::StatusOr<Repetition> Repeat();
  absl::Status MeasureRound(Repetition* repetition);
  absl::Status MeasurePull(Repetition* repetition);
  absl::StatusOr<double> CpuSeconds() const;
  void AddTimes(JsonObject* json) const;
  uint64_t PayloadBytes() const { return model_.elements * 2; }

  const Options options_;
  Model model_;
  std::string congestion_control_;
  std::unique_ptr<TemporaryDirectory> directory_;  // of a durable job
  std::unique_ptr<RawTcpPeer> raw_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<OptimizerOnly> optimizer_;
  std::unique_ptr<Reference> reference_;
  std::unique_ptr<client::Client> client_;
  std::vector<std::string> server_tcp_;  // congestion controls of Ballast's own connections
  std::vector<std::string> client_tcp_;
  uint64_t steps_ = 0;
  uint64_t differing_ = 0;
  std::vector<Repetition> repetitions_;
};

absl::Status Bench::Prepare() {
  BALLAST_ASSIGN_OR_RETURN(model_, Model::Describe(options_.parameters));
  BALLAST_ASSIGN_OR_RETURN(congestion_control_, ChooseCongestionControl());
  BALLAST_ASSIGN_OR_RETURN(raw_, RawTcpPeer::Fork(PayloadBytes(), congestion_control_));
  std::vector<std::string> arguments = options_.server_arguments;
  arguments.push_back(absl::StrCat("--set=rounds.worker_threads=", options_.step_threads));
  if (options_.durability != client::Durability::kNone) {
    BALLAST_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create(options_.path));
    arguments.push_back(absl::StrCat("--set=storage.data_dir=", directory_->path()));
  }
  BALLAST_ASSIGN_OR_RETURN(server_, ServerProcess::Start(options_.server, arguments));
  BALLAST_RETURN_IF_ERROR(model_.Allocate());
  BALLAST_ASSIGN_OR_RETURN(optimizer_, OptimizerOnly::Make(model_, options_.step_threads));
  reference_ = std::make_unique<Reference>(model_);

  client::JobOptions job;
  job.endpoints = {server_->address()};
  job.job = "round-bench";
  job.tile_elements = kTileElements;
  job.extent_elements = kExtentElements;
  job.durability = options_.durability;
  BALLAST_ASSIGN_OR_RETURN(client_, client::Client::Attach(job, model_.tensors, model_.buffers));
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
  BALLAST_ASSIGN_OR_RETURN(repetition->report, client_->Step({kHyper}, model_.buffers));
  repetition->round = Now() - start;
  BALLAST_ASSIGN_OR_RETURN(const double cpu_end, CpuSeconds());
  BALLAST_ASSIGN_OR_RETURN(const uint64_t faults_end, server_->MinorFaults());
  repetition->round_cpu = cpu_end - cpu;
  repetition->round_faults = static_cast<double>(faults_end - faults);
  ++steps_;
  reference_->Step();
  differing_ += reference_->DifferingWeights(model_);
  return absl::OkStatus();
}

absl::Status Bench::MeasurePull(Repetition* repetition) {
  for (const uint32_t tensor : model_.sampled) {
    std::memset(model_.buffers[tensor].weight, 0xFF, model_.tensor_elements[tensor] * 2);
  }
  BALLAST_ASSIGN_OR_RETURN(const double cpu, CpuSeconds());
  const double start = Now();
  BALLAST_RETURN_IF_ERROR(client_->FetchWeights(model_.buffers));
  repetition->pull = Now() - start;
  BALLAST_ASSIGN_OR_RETURN(const double cpu_end, CpuSeconds());
  repetition->pull_cpu = cpu_end - cpu;
  differing_ += reference_->DifferingWeights(model_);
  return absl::OkStatus();
}

absl::StatusOr<Repetition> Bench::Repeat() {
  Repetition repetition;
  if (options_.think_ms > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.think_ms * 1e-3));
  }
  BALLAST_ASSIGN_OR_RETURN(repetition.raw_push, raw_->Push(model_.gradients.data()));
  // Overwrites all weights, so that those of before cannot pass for the new ones.
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
  return absl::OkStatus();
}

absl::Status Bench::Verify() {
  BALLAST_ASSIGN_OR_RETURN(const uint64_t state, reference_->DifferingState(client_.get()));
  differing_ += state;
  // While the connections stand.
  BALLAST_ASSIGN_OR_RETURN(server_tcp_, server_->CongestionControl());
  client_tcp_ =
      OwnCongestionControl(std::stoi(server_->address().substr(server_->address().rfind(':') + 1)));
  return client_->Leave();
}

void Bench::AddTimes(JsonObject* json) const {
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
  for (const auto& [key, get] : times) json->Add(key, Median(repetitions_, get));
}

absl::StatusOr<std::string> Bench::Result(bool* pass) const {
  const auto push = [](const Repetition& r) {
    return static_cast<double>(r.report.push_ns) * 1e-9;
  };
  const double push_fastest =
      Fastest(repetitions_, [](const Repetition& r) { return r.raw_push; }) /
      Fastest(repetitions_, push);
  const double pull_fastest =
      Fastest(repetitions_, [](const Repetition& r) { return r.raw_pull; }) /
      Fastest(repetitions_, [](const Repetition& r) { return r.pull; });
  const double round_gb = static_cast<double>(2 * PayloadBytes()) * 1e-9;
  const double push_ratio = Median(repetitions_, [](const Repetition& r) { return r.raw_push; }) /
                            Median(repetitions_, push);
  const double pull_ratio = Median(repetitions_, [](const Repetition& r) { return r.raw_pull; }) /
                            Median(repetitions_, [](const Repetition& r) { return r.pull; });
  const double round_ratio = Median(repetitions_, [](const Repetition& r) { return r.optimizer; }) /
                             Median(repetitions_, [](const Repetition& r) { return r.round; });
  BALLAST_ASSIGN_OR_RETURN(const double copied, server_->Metric("ballast_copied_bytes_total"));
  BALLAST_ASSIGN_OR_RETURN(const double received, server_->Metric("ballast_push_bytes_total"));
  const client::TransferCounters counters = client_->counters();
  const bool same_tcp = server_tcp_ == std::vector<std::string>{congestion_control_} &&
                        client_tcp_ == server_tcp_ &&
                        CongestionControlOf(raw_->fd()) == congestion_control_;

  JsonObject json;
  json.Add("push_vs_raw_tcp", push_ratio);
  json.Add("pull_vs_raw_tcp", pull_ratio);
  json.Add("push_vs_raw_tcp_fastest", push_fastest);
  json.Add("pull_vs_raw_tcp_fastest", pull_fastest);
  json.Add("round_vs_optimizer_only", round_ratio);
  json.Add("cpu_s_per_gb",
           Median(repetitions_, [](const Repetition& r) { return r.round_cpu; }) / round_gb);
  json.Add("pull_cpu_s_per_gb",
           Median(repetitions_, [](const Repetition& r) { return r.pull_cpu; }) / (round_gb / 2));
  json.Add("copies_per_byte_server", received > 0 ? copied / received : 0);
  const double copies_up = static_cast<double>(counters.copied_up_bytes) /
                           static_cast<double>(counters.payload_up_bytes);
  const double copies_down = static_cast<double>(counters.copied_down_bytes) /
                             static_cast<double>(counters.payload_down_bytes);
  json.Add("copies_per_byte_client", copies_down);
  json.Add("copies_per_byte_client_up", copies_up);
  json.Add("parameters", static_cast<double>(model_.elements));
  if (options_.durability != client::Durability::kNone) json.Add("think_ms", options_.think_ms);
  json.Add("step_threads", static_cast<double>(options_.step_threads));
  json.Add("repeats", static_cast<double>(options_.repeats));
  AddTimes(&json);
  json.Add("congestion_control",
           absl::StrCat("raw ", congestion_control_, ", client ", absl::StrJoin(client_tcp_, "+"),
                        ", server ", absl::StrJoin(server_tcp_, "+")));
  json.Add("frames_refused", static_cast<double>(counters.frames_refused));
  json.Add("differing_elements", static_cast<double>(differing_));
  json.Add("pull_is", std::string("FetchWeights of the whole model after its round"));
  Bars bars;
  bars.AtLeast("push_vs_raw_tcp", push_ratio, 0.85);
  bars.AtLeast("pull_vs_raw_tcp", pull_ratio, 0.80);
  bars.AtLeast("round_vs_optimizer_only", round_ratio, 0.35);
  bars.AtMost("copies_per_byte_server", received > 0 ? copied / received : 0, 1);
  bars.AtMost("copies_per_byte_client", copies_down, 1);
  bars.AtMost("copies_per_byte_client_up", copies_up, 0);
  bars.AddTo(&json);
  *pass = differing_ == 0 && same_tcp;
  json.Add("same_congestion_control", same_tcp);
  json.Add("verified", differing_ == 0);
  json.Add("pass", *pass && bars.met());
  return json.Text();
}

bool ParseOptions(int argc, char** argv, Options* options) {
  const std::filesystem::path own = argv[0];
  options->server = (own.parent_path() / "ballastd").string();
  options->step_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency() / 2));
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") {
      options->json = true;
      continue;
    }
    // Without a level: all of them.
    const bool level = i + 1 < argc && !absl::StartsWith(argv[i + 1], "--");
    if (flag == "--durability" && !level) {
      options->compare_durability = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const std::string value = argv[++i];
    bool good = true;
    if (flag == "--durability") {
      good = ParseDurability(value, &options->durability);
    } else if (flag == "--think-ms") {
      good = ParseNumber(value, 0.0, 1e6, &options->think_ms);
    } else if (flag == "--path") {
      options->path = value;
    } else if (flag == "--parameters") {
      good = ParseNumber(value, uint64_t{1} << 20, uint64_t{1} << 32, &options->parameters);
    } else if (flag == "--repeats") {
      good = ParseNumber(value, 1, 1000, &options->repeats);
    } else if (flag == "--warmups") {
      good = ParseNumber(value, 0, 1000, &options->warmups);
    } else if (flag == "--step-threads") {
      good = ParseNumber(value, 1, 1024, &options->step_threads);
    } else if (flag == "--server") {
      options->server = value;
    } else if (flag == "--set") {
      options->server_arguments.push_back("--set=" + value);
    } else {
      good = false;
    }
    if (!good) return false;
  }
  return true;
}

absl::StatusOr<std::string> RunBench(const Options& options, bool* pass) {
  if (options.compare_durability) {
    return CompareDurability({.parameters = options.parameters,
                              .repeats = options.repeats,
                              .think_ms = options.think_ms,
                              .path = options.path,
                              .server = options.server,
                              .server_arguments = options.server_arguments},
                             pass);
  }
  Bench bench(options);
  BALLAST_RETURN_IF_ERROR(bench.Prepare());
  BALLAST_RETURN_IF_ERROR(bench.Measure());
  BALLAST_RETURN_IF_ERROR(bench.Verify());
  return bench.Result(pass);
}

int Main(int argc, char** argv) {
  TuneMalloc();
  DisableLockOrderChecks();
  Options options;
  if (!ParseOptions(argc, argv, &options)) {
    std::cerr << kUsage;
    return 2;
  }
  bool pass = false;
  const absl::StatusOr<std::string> result = RunBench(options, &pass);
  if (!result.ok()) {
    std::cerr << "round_bench: " << result.status().message() << "\n";
    return 1;
  }
  std::cerr << *result << "\n";
  if (options.json) std::cout << *result << "\n";
  return pass ? 0 : 1;
}

}  // namespace
}  // namespace ballast::bench

int main(int argc, char** argv) { return ballast::bench::Main(argc, argv); }
