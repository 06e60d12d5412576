// The smallest trainer: fits a weight vector to a target by pushing gradients and pulling stepped
// weights. Start `ballastd --dev`, then, once per trainer (slots 0..world-1):
//   push_pull --endpoint 127.0.0.1:PORT --job demo --world 1 --slot 0 --steps 200
// Prints one line every tenth of the run and exits 0 when the loss has fallen.
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ballast/client.h"
#include "ballast/error.h"

namespace {

namespace bc = ballast::client;

constexpr int64_t kElements = 1000;

struct Flags {
  bc::JobOptions job;
  int steps = 200;
};

// The whole of `value` as a number of 1 to 9 digits, so that "abc" is not taken for 0.
bool ParseNumber(const std::string& value, int* number) {
  if (value.empty() || value.size() > 9) return false;
  if (value.find_first_not_of("0123456789") != std::string::npos) return false;
  *number = std::stoi(value);
  return true;
}

// Says what is wrong with the flags on stderr.
bool ParseFlags(int argc, char** argv, Flags* flags) {
  flags->job.job = "push-pull";
  int world = 1;
  int slot = 0;
  const std::map<std::string, int*> numbers = {
      {"--world", &world}, {"--slot", &slot}, {"--steps", &flags->steps}};
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    const auto number = numbers.find(flag);
    if (flag == "--endpoint") {
      flags->job.endpoints.push_back(value);
    } else if (flag == "--job") {
      flags->job.job = value;
    } else if (number == numbers.end()) {
      std::fprintf(stderr, "unknown argument %s\n", argv[i]);
      return false;
    } else if (!ParseNumber(value, number->second)) {
      std::fprintf(stderr, "%s takes a whole number, not \"%s\"\n", argv[i], value);
      return false;
    }
  }
  flags->job.world = static_cast<uint32_t>(world);
  flags->job.slot = static_cast<uint32_t>(slot);
  if (flags->job.endpoints.empty()) std::fprintf(stderr, "--endpoint is missing\n");
  if (flags->steps == 0) std::fprintf(stderr, "--steps must be at least 1\n");
  return !flags->job.endpoints.empty() && flags->steps > 0;
}

int Report(const char* what, const absl::Status& status) {
  // Without the payload of the status, which is binary: it is what GetErrorInfo reads.
  std::fprintf(stderr, "%s: %s [%s]\n", what,
               status.ToString(absl::StatusToStringMode::kWithNoExtraData).c_str(),
               bc::GetErrorInfo(status).reason_name.c_str());
  return 1;
}

// Half the squared distance to the target, and its gradient.
double Loss(const std::vector<float>& weight, std::vector<float>* grad) {
  double loss = 0;
  for (size_t i = 0; i < weight.size(); ++i) {
    const float target = static_cast<float>(i % 10) - 4.5f;
    (*grad)[i] = weight[i] - target;
    loss += 0.5 * (*grad)[i] * (*grad)[i];
  }
  return loss;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  if (!ParseFlags(argc, argv, &flags)) {
    std::fprintf(stderr,
                 "usage: %s --endpoint HOST:PORT [--endpoint ...] [--job NAME] [--world W] "
                 "[--slot S] [--steps N]\n",
                 argv[0]);
    return 2;
  }

  std::vector<float> weight(kElements, 0.0f);
  std::vector<float> grad(kElements, 0.0f);
  bc::Tensor tensor;
  tensor.name = "weight";
  tensor.shape = {kElements};
  bc::TensorBuffers buffers;
  buffers.grad = grad.data();
  buffers.weight = weight.data();

  auto client = bc::Client::Attach(flags.job, {tensor}, {buffers});
  if (!client.ok()) return Report("attach", client.status());

  const bc::Hyper hyper =
      bc::AdamWHyper(/*lr=*/0.1, /*beta1=*/0.9, /*beta2=*/0.999, /*eps=*/1e-8, /*weight_decay=*/0);
  const double first_loss = Loss(weight, &grad);
  double loss = first_loss;
  for (int step = 1; step <= flags.steps; ++step) {
    auto report = (*client)->Step({hyper}, {buffers});
    if (!report.ok()) return Report("step", report.status());
    loss = Loss(weight, &grad);
    if (step % ((flags.steps + 9) / 10) == 0) {
      std::printf("round %llu  loss %.6f  grad_norm %.6f\n",
                  static_cast<unsigned long long>(report->round), loss, report->grad_norm);
    }
  }
  const absl::Status left = (*client)->Leave();
  if (!left.ok()) return Report("leave", left);
  return loss < first_loss ? 0 : 1;
}
