// `ballastctl export` and `ballastctl import`.
// Comes from: ballastctl. Goes to: the jobs' home. Thread safety: the main thread.
#include <iostream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "ballast/v1/admin.pb.h"
#include "common/bytes/crc32c.h"
#include "common/text/names.h"
#include "proto/convert/methods.h"
#include "server/snapshot/manifest.h"
#include "server/status/status_text.h"
#include "tools/commands/work_watch.h"
#include "tools/ctl/admin_call.h"
#include "tools/ctl/command.h"
#include "tools/ctl/output.h"

namespace ballast::tools {
namespace {

int Usage(const std::string& what) {
  std::cerr << "ballastctl: " << what << "; see ballastctl --help\n";
  return kUsageError;
}

std::string Took(uint64_t bytes, uint64_t milliseconds) {
  const double seconds = static_cast<double>(milliseconds) / 1000;
  return absl::StrCat(HumanBytes(static_cast<double>(bytes)), " in ", seconds, " s, ",
                      HumanRate(static_cast<double>(bytes), seconds));
}

// A job's name may be longer than an export's name allows in addition to the time: then it is cut,
// and a checksum tells two such jobs apart.
std::string DefaultName(const std::string& job) {
  const std::string time = absl::FormatTime("%Y%m%dT%H%M%S", absl::Now(), absl::UTCTimeZone());
  const size_t stem_bytes = server::kSnapshotNameBytesMax - time.size() - 1;
  std::string stem = job;
  if (stem.size() > stem_bytes) {
    const std::string sum = absl::StrFormat("-%08x", Crc32c(job.data(), job.size()));
    stem = absl::StrCat(stem.substr(0, stem_bytes - sum.size()), sum);
  }
  return absl::StrCat(stem, "-", time);
}

// Sets the format, and returns the fault of it; empty: none.
std::string SetFormat(const Options& options, v1::ExportRequest* request) {
  const bool universal = options.format == "deepspeed-universal";
  if (!universal && !options.format.empty() && options.format != "safetensors") {
    return absl::StrCat("--format takes safetensors or deepspeed-universal, not ",
                        Quoted(options.format));
  }
  if (!universal) {
    return options.torch_optimizer ? "--torch-optimizer is for --format deepspeed-universal" : "";
  }
  if (options.state || !options.dtype.empty()) {
    return "a universal checkpoint has fp32 masters and all optimizer state: leave out --state and "
           "--dtype";
  }
  request->set_format(v1::EXPORT_FORMAT_DEEPSPEED_UNIVERSAL);
  request->set_torch_optimizer(options.torch_optimizer);
  return "";
}

// Prints the result of an export; returns the exit code.
int ShowExport(const Options& options, const v1::ExportReply& reply) {
  return Print(
      options,
      absl::StrCat("exported ", reply.job(), ", round ", reply.round(), ", to ", reply.directory(),
                   "\n", reply.tensors(), " tensors, ", reply.parameters(), " parameters in ",
                   reply.files(), " files; ", Took(reply.bytes(), reply.milliseconds()), "\n"),
      server::ExportJson(reply));
}

int Export(const Options& options) {
  const std::map<std::string, v1::DType> dtypes = {{"", v1::DTYPE_UNSPECIFIED},
                                                   {"native", v1::DTYPE_UNSPECIFIED},
                                                   {"fp32", v1::DTYPE_F32},
                                                   {"bf16", v1::DTYPE_BF16},
                                                   {"fp16", v1::DTYPE_F16}};
  const auto dtype = dtypes.find(options.dtype);
  if (dtype == dtypes.end()) {
    return Usage(
        absl::StrCat("--dtype takes native, fp32, bf16 or fp16, not ", Quoted(options.dtype)));
  }
  const std::string& job = options.words[0];
  v1::ExportRequest request;
  request.set_job(job);
  request.set_snapshot(options.snapshot);
  request.set_name(options.name.empty() ? DefaultName(job) : options.name);
  request.set_dtype(dtype->second);
  request.set_state(options.state);
  request.set_consolidated(options.consolidated);
  request.set_tenant(options.tenant);
  if (const std::string wrong = SetFormat(options, &request); !wrong.empty()) return Usage(wrong);
  std::string endpoint = FirstThatServes(options);
  const auto reply = [&] {
    const WorkWatch watch(endpoint, [&](const v1::Work& work) {
      const bool mine = work.kind() == "export" && work.name() == request.name();
      return mine || (work.kind() == "snapshot" && work.name() == job);
    });
    return AskHome<v1::ExportReply>(&endpoint, method::kAdminExport, request, kWholeStateTimeoutS);
  }();
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  return ShowExport(options, *reply);
}

int Import(const Options& options) {
  v1::ImportRequest request;
  request.set_from(options.words[0]);
  request.set_as(options.as);
  request.set_world(options.world);
  request.set_tenant(options.tenant);
  std::string endpoint = FirstThatServes(options);
  const auto reply = [&] {
    const WorkWatch watch(endpoint, [&](const v1::Work& work) {
      return work.kind() == "import" && work.name() == options.as;
    });
    return AskHome<v1::ImportReply>(&endpoint, method::kAdminImport, request, kWholeStateTimeoutS);
  }();
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  v1::ListJobsReply shown;
  *shown.add_jobs() = reply->job();
  return Print(
      options,
      absl::StrCat("imported ", options.words[0],
                   reply->state() ? " with" : ", weights only, without", " optimizer state; ",
                   Took(reply->bytes(), reply->milliseconds()), "\n", server::JobsTable(shown)),
      server::ImportJson(*reply));
}

}  // namespace

std::vector<Command> ExchangeCommands() {
  return {
      {.name = "export",
       .words = "JOB",
       .help = "write a job's weights as safetensors files below storage.export_dir",
       .run = Export,
       .flags = {"--tenant", "--snapshot", "--name", "--dtype", "--state", "--consolidated",
                 "--format", "--torch-optimizer"}},
      {.name = "import",
       .words = "EXPORT",
       .help = "make a job NEW of such files",
       .run = Import,
       .flags = {"--tenant", "--as", "--world"},
       .needs = "--as"},
  };
}

}  // namespace ballast::tools
