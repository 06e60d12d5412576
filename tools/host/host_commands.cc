// `ballastctl doctor` and `ballastctl size`.
// Comes from: ballastctl. Goes to: doctor, size. Thread safety: the main thread.
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/inert.h"
#include "server/config/environment.h"
#include "server/config/load.h"
#include "server/status/status_text.h"
#include "tools/ctl/admin_call.h"
#include "tools/ctl/command.h"
#include "tools/ctl/output.h"
#include "tools/host/doctor.h"
#include "tools/host/size.h"

namespace ballast::tools {
namespace {

const char* LevelName(Finding::Level level) {
  switch (level) {
    case Finding::Level::kOk:
      return "ok";
    case Finding::Level::kWarn:
      return "warning";
    case Finding::Level::kFail:
      return "failure";
  }
  return "failure";
}

std::string FindingsText(const std::vector<Finding>& findings) {
  std::vector<server::Row> rows = {{"CHECK", "RESULT", "FOUND"}};
  std::string fixes;
  for (const Finding& finding : findings) {
    rows.push_back({finding.check, LevelName(finding.level), finding.found});
    if (!finding.fix.empty()) absl::StrAppend(&fixes, "\n", finding.check, ": ", finding.fix);
  }
  return absl::StrCat(server::TextTable(rows), fixes.empty() ? "" : absl::StrCat(fixes, "\n"));
}

std::string FindingsJson(const std::vector<Finding>& findings) {
  const auto one = [](std::string* out, const Finding& finding) {
    absl::StrAppend(out, "{\"check\": ", server::JsonText(finding.check), ", \"result\": \"",
                    LevelName(finding.level), "\", \"found\": ", server::JsonText(finding.found),
                    ", \"fix\": ", server::JsonText(finding.fix), "}");
  };
  return absl::StrCat("{\"findings\": [", absl::StrJoin(findings, ", ", one), "]}\n");
}

// Warnings do not change the exit code: a host with a small limit still serves.
int Doctor(const Options& options) {
  config::LoadOptions load;
  load.file = options.config;
  load.env = config::ProcessEnvironment();
  const absl::StatusOr<config::LoadedConfig> loaded = config::Load(load);
  if (!loaded.ok()) {
    std::cerr << "ballastctl: " << Inert(loaded.status().message()) << "\n";
    return ExitCode(loaded.status());
  }
  const std::vector<Finding> findings = JudgeHost(ReadHost(loaded->config));
  const bool failed = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.level == Finding::Level::kFail;
  });
  const int printed = Print(options, FindingsText(findings), FindingsJson(findings));
  return printed == 0 && failed ? kUnhealthy : printed;
}

std::string SizeText(const std::vector<SizeAnswer>& answers) {
  using server::ShortBytes;
  std::vector<server::Row> rows = {
      {"SERVER", "STATE", "GRADIENTS", "SUMS", "WEIGHTS", "MEMORY", "DISK"}};
  for (const SizeAnswer& one : answers) {
    rows.push_back(
        {absl::StrCat(one.server), ShortBytes(one.state),
         absl::StrCat(ShortBytes(one.gradients_min), " to ", ShortBytes(one.gradients_max)),
         ShortBytes(one.sums), ShortBytes(one.weights),
         absl::StrCat(ShortBytes(one.memory_min()), " to ", ShortBytes(one.memory_max())),
         ShortBytes(one.disk)});
  }
  return absl::StrCat(
      server::TextTable(rows),
      "\nA server takes the job when the smaller memory fits storage.memory_budget; the larger "
      "one\n"
      "lets every trainer push ahead. A durable job needs the disk, and with it its state may be\n"
      "larger than memory (docs/nvme.md).\n");
}

std::string TrainerText(const TrainerSize& one) {
  using server::ShortBytes;
  if (one.buckets == 0) return "";
  return absl::StrCat(
      "\nEach trainer, besides parameters and gradients: ", ShortBytes(one.buckets),
      " for a bucket, and for the\nsums of its share ", ShortBytes(one.sums_host),
      " of what is on the CPU, up to ", ShortBytes(one.sums_gpu),
      " on a GPU.\nIts own gradients stay as they are until the round has ended.\n");
}

std::string TrainerJson(const TrainerSize& one) {
  if (one.buckets == 0) return "";
  return absl::StrCat(", \"trainer\": {\"bucket_bytes\": ", one.buckets,
                      ", \"sum_bytes_host\": ", one.sums_host,
                      ", \"sum_bytes_gpu_max\": ", one.sums_gpu, "}");
}

std::string SizeJson(uint64_t parameters, const std::vector<SizeAnswer>& answers,
                     const TrainerSize& trainer) {
  const auto json = [](std::string* out, const SizeAnswer& one) {
    absl::StrAppend(
        out, "{\"server\": ", one.server, ", \"state_bytes\": ", one.state,
        ", \"gradient_bytes_min\": ", one.gradients_min,
        ", \"gradient_bytes_max\": ", one.gradients_max, ", \"sum_bytes\": ", one.sums,
        ", \"weight_bytes\": ", one.weights, ", \"memory_bytes_min\": ", one.memory_min(),
        ", \"memory_bytes_max\": ", one.memory_max(), ", \"disk_bytes\": ", one.disk, "}");
  };
  return absl::StrCat("{\"parameters\": ", parameters, ", \"servers\": [",
                      absl::StrJoin(answers, ", ", json), "]", TrainerJson(trainer), "}\n");
}

int WrongQuestion(const absl::Status& status) {
  std::cerr << "ballastctl: " << Inert(status.message()) << "\n";
  return kUsageError;
}

int Size(const Options& options) {
  const absl::StatusOr<uint64_t> parameters = ParseParameters(options.words[0]);
  if (!parameters.ok()) return WrongQuestion(parameters.status());
  const SizeQuestion question{.parameters = *parameters,
                              .trainers = options.trainers,
                              .servers = options.servers,
                              .optimizer = options.optimizer,
                              .dtype = options.dtype,
                              .collective = options.collective};
  const absl::StatusOr<std::vector<SizeAnswer>> answers = SizeOf(question);
  if (!answers.ok()) return WrongQuestion(answers.status());
  const absl::StatusOr<TrainerSize> trainer = TrainerSizeOf(question);
  if (!trainer.ok()) return WrongQuestion(trainer.status());
  return Print(options, absl::StrCat(SizeText(*answers), TrainerText(*trainer)),
               SizeJson(*parameters, *answers, *trainer));
}

}  // namespace

std::vector<Command> HostCommands() {
  return {
      {.name = "doctor",
       .help = "whether this host suits a state server, each finding with its fix",
       .run = Doctor,
       .flags = {"--config"},
       .asks_servers = false},
      {.name = "size",
       .words = "PARAMETERS",
       .help = "memory and disk that a job of so many will take of each server",
       .run = Size,
       .flags = {"--trainers", "--servers", "--optimizer", "--dtype", "--collective"},
       .asks_servers = false},
  };
}

}  // namespace ballast::tools
