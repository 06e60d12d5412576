// A trainer process of the kill storm: takes its seat (resume), runs rounds, some of them uploads,
// until it is told which one is the last, and compares every bit it gets with the reference.
//
//   fault_trainer --endpoint HOST:PORT... --job NAME --world W --slot S --life L --seed X
//                 --folder DIR --durability power|process [--think-us N]
//
// The processes of a job share state in DIR, written so that kill -9 at any instant leaves it
// right:
//   lives-<slot>        "life first-round" of each process, before its first round
//   done-<slot>-<life>  the last round whose weights the process has seen and compared
//   last                the last round to run; comes from the driver near the end
//   reference-<slot>    the reference's state, now and then, so that a new process need not begin
//                       with round 1
// On standard output, a line each: "resumed ROUND" or "new OPTIMIZER", "pause MS", "lost ROUNDS",
// "differs BITS of ROUND extent E array A", "uploads ROUNDS" of the job, "finished ROUND",
// "error REASON text".
// Exit status: 0 finished; 10 another process holds the seat now (fenced); 11 the seat's last
// process still lives, or nobody answered: start it again; 12 any other error; 13 rounds were lost
// or bits differ.
// Comes from: kill_storm.py. Goes to: the client library. Thread safety: one thread.
#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "ballast/client.h"
#include "ballast/error.h"
#include "common/policy/schedule_arguments.h"
#include "tests/fault/reference.h"

namespace ballast::fault {
namespace {

constexpr int kFinished = 0, kFenced = 10, kTryAgain = 11, kError = 12, kWrong = 13, kUsage = 2;
constexpr uint64_t kSaveEveryRounds = 200;

struct Options {
  client::JobOptions job;
  std::optional<OptimizerKind> optimizer;  // without one the seed draws it
  uint64_t life = 1;
  uint64_t seed = 1;
  uint64_t think_us = 0;
  std::string folder;
};

bool SetOption(const std::string& name, const std::string& value, Options* options) {
  client::JobOptions& job = options->job;
  if (name == "--endpoint") {
    job.endpoints.push_back(value);
  } else if (name == "--job") {
    job.job = value;
  } else if (name == "--folder") {
    options->folder = value;
  } else if (name == "--device") {
    job.device = value == "nvme" ? client::Device::kNvme : client::Device::kCpu;
  } else if (name == "--durability") {
    job.durability = value == "process" ? client::Durability::kProcess : client::Durability::kPower;
    return value == "process" || value == "power";
  } else if (name == "--optimizer") {
    const OptimizerRow* const row = FindOptimizer(std::string_view(value));
    if (row != nullptr) options->optimizer = row->kind;
    return row != nullptr || value == "drawn";
  } else if (name == "--world") {
    return absl::SimpleAtoi(value, &job.world);
  } else if (name == "--slot") {
    return absl::SimpleAtoi(value, &job.slot);
  } else if (name == "--life") {
    return absl::SimpleAtoi(value, &options->life);
  } else if (name == "--seed") {
    return absl::SimpleAtoi(value, &options->seed);
  } else if (name == "--think-us") {
    return absl::SimpleAtoi(value, &options->think_us);
  } else {
    return false;
  }
  return true;
}

// --- State shared by the job's processes --------------------------------------------------------

// Which process of each slot ran which round.
class Lives {
 public:
  Lives(std::string folder, uint32_t world) : folder_(std::move(folder)), world_(world) {}

  // Says that `life` of `slot` runs from `round` on.
  void Enter(uint32_t slot, uint64_t life, uint64_t round) const {
    const std::string line = absl::StrCat(life, " ", round, "\n");
    const int file = open(Path(slot).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0 || write(file, line.data(), line.size()) < 0) std::perror("lives");
    close(file);
  }
  // Per slot, the process whose gradients `round` was committed with: of those that ran it, the
  // last. Valid once a trainer has seen the round's end.
  std::vector<uint64_t> Of(uint64_t round) const {
    std::vector<uint64_t> lives(world_, 0);
    for (uint32_t slot = 0; slot < world_; ++slot) {
      std::ifstream file(Path(slot));
      uint64_t life = 0, first = 0;
      while (file >> life >> first) {
        if (first <= round && life > lives[slot]) lives[slot] = life;
      }
    }
    return lives;
  }

 private:
  std::string Path(uint32_t slot) const { return absl::StrCat(folder_, "/lives-", slot); }

  const std::string folder_;
  const uint32_t world_;
};

// The newest round whose end any process of the job has seen.
uint64_t Committed(const std::string& folder) {
  uint64_t committed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!absl::StartsWith(entry.path().filename().string(), "done-")) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    uint64_t round = 0;
    if (file.read(reinterpret_cast<char*>(&round), sizeof(round)) && round > committed) {
      committed = round;
    }
  }
  return committed;
}

// The last round to run; UINT64_MAX while nobody knows.
uint64_t LastRound(const std::string& folder) {
  std::ifstream file(folder + "/last");
  uint64_t last = 0;
  return file >> last ? last : UINT64_MAX;
}

// --- The process --------------------------------------------------------------------------------

class Trainer {
 public:
  explicit Trainer(const Options& options)
      : options_(options),
        reference_(options.seed, options.job.world, options.optimizer),
        lives_(options.folder, options.job.world) {}

  int Work();

 private:
  using Words = std::vector<char>;

  int Attach();
  int RunRound();
  // The round's one call of the client, as the reference has it: a step or an upload.
  absl::StatusOr<client::RoundReport> CallClient();
  int Finish();
  // Brings the reference to the client's round.
  int CatchUp();
  int Report(const absl::Status& status) const;
  std::vector<client::TensorBuffers> Buffers();
  void MakeGradients();
  void EditWeights();
  // Bits in which the weights differ from the reference, extent by extent.
  uint64_t DifferingWeights() const;
  // Likewise of one array, tensor by tensor.
  // Of one state array.
  uint64_t DifferingState(size_t array, const std::vector<std::vector<float>>& got) const;
  // With the optimizer that the seed draws.
  client::JobOptions Job() const;

  const Options& options_;
  Reference reference_;
  const Lives lives_;
  std::unique_ptr<client::Client> client_;
  std::vector<Words> weights_, grads_;
  std::vector<bool> present_;
  int done_ = -1;  // file
};

void Say(const std::string& line) {
  // One write each, so that lines of dead processes are whole.
  const std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) std::perror("stdout");
}

void Store(DType dtype, float value, size_t i, std::vector<char>* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to->data() + i * 4, &value, 4);
  } else {
    const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    std::memcpy(to->data() + i * 2, &half, 2);
  }
}

float Get(DType dtype, const std::vector<char>& from, size_t i) {
  uint32_t bits = 0;
  if (dtype == DType::kF32) {
    std::memcpy(&bits, from.data() + i * 4, 4);
  } else {
    uint16_t half = 0;
    std::memcpy(&half, from.data() + i * 2, 2);
    bits = uint32_t{half} << 16;
  }
  return std::bit_cast<float>(bits);
}

// Calls f(element of the extent, tensor, element of the tensor) for all of an extent.
template <typename F>
void ForEachElement(const Layout& layout, uint32_t extent_id, F f) {
  const Extent& extent = layout.extents()[extent_id];
  for (uint32_t r = 0; r < extent.run_count; ++r) {
    const Run& run = layout.runs()[extent.first_run + r];
    for (uint32_t i = 0; i < run.elements; ++i) {
      f(run.extent_offset + i, run.tensor, run.tensor_offset + i);
    }
  }
}

// The user state that the process `life` commits with a round; of many sizes.
std::string UserState(uint64_t round, uint64_t life) {
  return absl::StrCat("round ", round, " of life ", life, std::string(round % 97, '.'));
}

uint64_t DifferingBits(float a, float b) {
  return static_cast<uint64_t>(
      std::popcount(std::bit_cast<uint32_t>(a) ^ std::bit_cast<uint32_t>(b)));
}

std::vector<client::TensorBuffers> Trainer::Buffers() {
  std::vector<client::TensorBuffers> buffers(weights_.size());
  for (size_t t = 0; t < weights_.size(); ++t) {
    buffers[t].weight = weights_[t].data();
    if (!grads_.empty() && present_[t]) buffers[t].grad = grads_[t].data();
  }
  return buffers;
}

int Trainer::Report(const absl::Status& status) const {
  const std::string reason = client::GetErrorInfo(status).reason_name;
  Say(absl::StrCat("error ", reason, " ", status.message()));
  if (reason == "WRONG_INCARNATION") return kFenced;
  const bool again = reason == "SLOT_TAKEN" || reason == "UNREACHABLE";
  return again ? kTryAgain : kError;
}

client::JobOptions Trainer::Job() const {
  client::JobOptions job = options_.job;
  const JobSpec& spec = reference_.spec();
  const OptimizerRow& row = OptimizerRowOf(spec);
  job.optimizer = row.name;
  for (size_t o = 0; o < row.options.size(); ++o) {
    job.optimizer_options[row.options[o].name] = spec.options[o];
  }
  if (const std::optional<LossScalerConfig>& scaler = spec.policy.loss_scaler) {
    job.policy.loss_scale = client::DynamicLossScale{scaler->initial_scale_power,
                                                     scaler->loss_scale_window, scaler->hysteresis};
  }
  if (!spec.policy.schedule.has_value()) return job;
  job.policy.schedule.type = ScheduleType(*spec.policy.schedule);
  for (const ScheduleArgument& argument : ScheduleArguments(*spec.policy.schedule)) {
    job.policy.schedule.arguments.emplace(argument.name, argument.value);
  }
  return job;
}

int Trainer::Attach() {
  const Layout& layout = reference_.layout();
  std::vector<client::Tensor> tensors;
  for (const Parameter& parameter : Parameters()) {
    client::Tensor tensor;
    tensor.name = parameter.name;
    tensor.shape = {parameter.elements};
    tensor.dtype = static_cast<client::DType>(parameter.dtype);
    tensor.group = parameter.group;
    tensors.push_back(std::move(tensor));
    weights_.emplace_back(parameter.elements * DTypeBytes(parameter.dtype));
  }
  for (uint32_t e = 0; e < layout.extents().size(); ++e) {
    ForEachElement(layout, e, [&](uint32_t from, uint32_t tensor, uint64_t to) {
      Store(layout.extents()[e].dtype, reference_.extent(e).weight[from], to, &weights_[tensor]);
    });
  }
  const uint64_t committed = Committed(options_.folder);
  const client::JobOptions job = Job();
  auto attached = client::Client::Attach(job, tensors, Buffers());
  if (!attached.ok()) return Report(attached.status());
  client_ = *std::move(attached);
  Say(client_->resumed() ? absl::StrCat("resumed ", client_->round())
                         : absl::StrCat("new ", job.optimizer, " ", job.policy.schedule.type,
                                        job.policy.loss_scale.has_value() ? " scaled" : ""));
  if (client_->round() > committed) return CatchUp();
  Say(absl::StrCat("lost ", committed + 1 - client_->round()));
  return kWrong;
}

int Trainer::CatchUp() {
  const uint32_t slot = options_.job.slot;
  const std::string saved = absl::StrCat(options_.folder, "/reference-", slot);
  if (const absl::Status loaded = reference_.Load(saved);
      !loaded.ok() && !absl::IsNotFound(loaded)) {
    Say(loaded.ToString());
    return kError;
  }
  while (reference_.round() < client_->round()) reference_.Step(lives_.Of(reference_.round()));
  if (DifferingWeights() != 0) return kWrong;
  const uint64_t before = client_->round() - 1;
  const std::string state = before == 0 ? "" : UserState(before, lives_.Of(before)[slot]);
  if (client_->user_state() != state) {
    Say(absl::StrCat("differs 64 of ", before, " in the user state: \"", client_->user_state(),
                     "\", not \"", state, "\""));
    return kWrong;
  }
  lives_.Enter(slot, options_.life, client_->round());
  const std::string path = absl::StrCat(options_.folder, "/done-", slot, "-", options_.life);
  done_ = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  return kFinished;
}

void Trainer::MakeGradients() {
  const Layout& layout = reference_.layout();
  grads_.resize(weights_.size());
  present_.resize(weights_.size());
  for (uint32_t t = 0; t < weights_.size(); ++t) {
    grads_[t].resize(weights_[t].size());
    present_[t] = reference_.Present(reference_.round(), options_.job.slot, t);
  }
  for (uint32_t e = 0; e < layout.extents().size(); ++e) {
    const std::vector<float> grad = reference_.Gradient(options_.life, options_.job.slot, e);
    ForEachElement(layout, e, [&](uint32_t from, uint32_t tensor, uint64_t to) {
      Store(layout.extents()[e].dtype, grad[from], to, &grads_[tensor]);
    });
  }
}

void Trainer::EditWeights() {
  const Layout& layout = reference_.layout();
  for (uint32_t e = 0; e < layout.extents().size(); ++e) {
    const std::vector<float> edited = reference_.Edited(e);
    ForEachElement(layout, e, [&](uint32_t from, uint32_t tensor, uint64_t to) {
      Store(layout.extents()[e].dtype, edited[from], to, &weights_[tensor]);
    });
  }
}

absl::StatusOr<client::RoundReport> Trainer::CallClient() {
  if (!reference_.Uploads(reference_.round())) {
    std::vector<client::Hyper> hyper;
    for (const uint32_t group : {0, 1}) hyper.push_back(reference_.HyperOf(group));
    return client_->Step(hyper, Buffers(), reference_.loss_scale());
  }
  client::RoundReport report;
  if (absl::Status begun = client_->BeginUpload(Buffers()); !begun.ok()) return begun;
  while (true) {
    const absl::StatusOr<bool> over = client_->Wait(std::chrono::hours(1), &report);
    if (!over.ok()) return over.status();
    if (*over) return report;
  }
}

int Trainer::RunRound() {
  const uint64_t round = client_->round();
  const bool upload = reference_.Uploads(round);
  if (upload) {
    EditWeights();
  } else {
    MakeGradients();
  }
  if (options_.think_us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(options_.think_us));
  }
  const absl::Status kept = client_->SetUserState(UserState(round, options_.life));
  if (!kept.ok()) return Report(kept);
  const absl::StatusOr<client::RoundReport> report = CallClient();
  if (!report.ok()) return Report(report.status());
  if (report->paused_ns > 0) Say(absl::StrCat("pause ", report->paused_ns / 1'000'000));
  const Decision decision = reference_.Step(lives_.Of(round));
  const bool has_norm = decision.applied && !upload;
  const bool same_report = report->round == round && report->applied == decision.applied &&
                           (report->grad_norm == decision.grad_norm || !has_norm) &&
                           (report->clip_coef == decision.clip_coef || upload) &&
                           report->opt_step == reference_.opt_step() &&
                           report->policy.loss_scale == reference_.loss_scale();
  if (!same_report) {
    Say(absl::StrCat("differs 64 of ", round, " in the report: norm ", report->grad_norm, ", not ",
                     decision.grad_norm, "; opt_step ", report->opt_step, ", not ",
                     reference_.opt_step(), "; loss scale ", report->policy.loss_scale, ", not ",
                     reference_.loss_scale()));
    return kWrong;
  }
  if (DifferingWeights() != 0) return kWrong;
  if (pwrite(done_, &round, sizeof(round), 0) != sizeof(round)) std::perror("done");
  if (round % kSaveEveryRounds != 0) return kFinished;
  const absl::Status saved =
      reference_.Save(absl::StrCat(options_.folder, "/reference-", options_.job.slot));
  if (!saved.ok()) Say(saved.ToString());
  return saved.ok() ? kFinished : kError;
}

uint64_t Trainer::DifferingWeights() const {
  const Layout& layout = reference_.layout();
  uint64_t bits = 0;
  for (uint32_t e = 0; e < layout.extents().size(); ++e) {
    uint64_t here = 0;
    ForEachElement(layout, e, [&](uint32_t from, uint32_t tensor, uint64_t to) {
      here += DifferingBits(Get(layout.extents()[e].dtype, weights_[tensor], to),
                            reference_.extent(e).weight[from]);
    });
    if (here > 0) {
      Say(absl::StrCat("differs ", here, " of ", reference_.round() - 1, " extent ", e,
                       " array weight"));
    }
    bits += here;
  }
  return bits;
}

uint64_t Trainer::DifferingState(size_t array, const std::vector<std::vector<float>>& got) const {
  const Layout& layout = reference_.layout();
  uint64_t bits = 0;
  for (uint32_t e = 0; e < layout.extents().size(); ++e) {
    ForEachElement(layout, e, [&](uint32_t from, uint32_t tensor, uint64_t to) {
      bits += DifferingBits(got[tensor][to], reference_.extent(e).arrays[array][from]);
    });
  }
  return bits;
}

// Compares all state arrays and step counts, and leaves.
int Trainer::Finish() {
  std::vector<std::vector<std::vector<float>>> state(StateArrayCount(reference_.spec()));
  std::vector<client::StateBuffers> buffers(weights_.size());
  for (size_t t = 0; t < weights_.size(); ++t) {
    for (auto& array : state) {
      array.emplace_back(Parameters()[t].elements);
      buffers[t].arrays.push_back(array.back().data());
    }
  }
  std::vector<uint64_t> steps;
  if (const absl::Status fetched = client_->FetchState(buffers, &steps); !fetched.ok()) {
    return Report(fetched);
  }
  uint64_t bits = 0;
  for (size_t a = 0; a < state.size(); ++a) bits += DifferingState(a, state[a]);
  if (bits != 0) Say(absl::StrCat("differs ", bits, " of ", reference_.round() - 1, " in state"));
  bool same_steps = steps.size() == weights_.size();
  for (uint32_t t = 0; t < steps.size() && same_steps; ++t) {
    same_steps = steps[t] == reference_.tensor_step(t);
  }
  if (!same_steps) Say("differs 64 in the tensors' step counts");
  if (bits != 0 || !same_steps) return kWrong;
  const absl::Status left = client_->Leave();
  if (!left.ok()) return Report(left);
  uint64_t uploads = 0;
  for (uint64_t round = 1; round < client_->round(); ++round) uploads += reference_.Uploads(round);
  if (options_.job.slot == 0) Say(absl::StrCat("uploads ", uploads));
  Say(absl::StrCat("finished ", client_->round() - 1));
  return kFinished;
}

int Trainer::Work() {
  if (const int failed = Attach(); failed != kFinished) return failed;
  while (client_->round() <= LastRound(options_.folder)) {
    if (const int failed = RunRound(); failed != kFinished) return failed;
  }
  return Finish();
}

int Main(int argc, char** argv) {
  Options options;
  options.job.max_grad_norm = kMaxGradNorm;
  options.job.tile_elements = kTileElements;
  options.job.extent_elements = kExtentElements;
  options.job.resume = client::Resume::kAuto;
  bool good = argc % 2 == 1;
  for (int i = 1; i + 1 < argc; i += 2) good = good && SetOption(argv[i], argv[i + 1], &options);
  if (!good || options.folder.empty() || options.job.endpoints.empty()) {
    std::fprintf(stderr, "wrong arguments; see the head of tests/fault/trainer.cc\n");
    return kUsage;
  }
  return Trainer(options).Work();
}

}  // namespace
}  // namespace ballast::fault

int main(int argc, char** argv) { return ballast::fault::Main(argc, argv); }
