// A trainer as a process of its own, for tests that stop or kill it:
//   world_trainer ENDPOINT JOB SLOT WORLD fixed|variable
// Joins the job, prints "round N" after each round, and "REASON" when it is refused or thrown out.
// Comes from: world_test.cc. Thread safety: one thread.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "ballast/error.h"
#include "tests/e2e/trainer.h"

namespace {

int Report(const absl::Status& status) {
  std::printf("%s\n", ballast::client::GetErrorInfo(status).reason_name.c_str());
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  ballast::client::JobOptions options =
      ballast::server::SmallJob(argv[1], argv[2], static_cast<uint32_t>(std::atoi(argv[3])),
                                static_cast<uint32_t>(std::atoi(argv[4])));
  options.variable_world = std::string(argv[5]) == "variable";
  options.resume = ballast::client::Resume::kAuto;
  ballast::server::Trainer trainer(options);
  if (const absl::Status status = trainer.Attach(); !status.ok()) return Report(status);
  while (true) {
    const uint64_t round = trainer.client().round();
    if (const absl::Status status = trainer.Step(); !status.ok()) return Report(status);
    std::printf("round %llu\n", static_cast<unsigned long long>(round));
  }
}
