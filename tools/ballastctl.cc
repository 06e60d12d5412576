// ballastctl: what the state servers know, for operators and scripts.
// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a server cannot be reached. Results go to stdout,
// everything else to stderr.
// Comes from: the operator. Goes to: the servers' Admin service. Thread safety: the main thread.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ballast/v1/admin.pb.h"
#include "common/base/address.h"
#include "common/base/names.h"
#include "proto/convert/methods.h"
#include "server/rpc/status_text.h"
#include "tools/admin_call.h"
#include "tools/exchange.h"
#include "tools/nvme_tune.h"
#include "tools/work_watch.h"

namespace ballast::tools {
namespace {

const char kUsage[] =
    R"(usage: ballastctl status [--endpoint HOST:PORT]... [-o table|json]
       ballastctl jobs list [--endpoint HOST:PORT] [-o table|json]
       ballastctl jobs show NAME [--endpoint HOST:PORT] [-o table|json]
       ballastctl jobs delete NAME [--force] [--endpoint HOST:PORT]
       ballastctl snapshot create JOB NAME [--keep N] [--endpoint HOST:PORT]
       ballastctl snapshot list [JOB] [--endpoint HOST:PORT] [-o table|json]
       ballastctl snapshot show|verify|delete JOB NAME [--endpoint HOST:PORT]
       ballastctl snapshot restore|fork JOB NAME --as NEW [--world N] [--endpoint HOST:PORT]
       ballastctl export JOB [--snapshot NAME] [--name EXPORT] [--dtype native|fp32|bf16|fp16]
                         [--state] [--consolidated] [--endpoint HOST:PORT] [-o table|json]
       ballastctl import EXPORT --as NEW [--world N] [--endpoint HOST:PORT] [-o table|json]
       ballastctl tune nvme --path DIR...    (see ballastctl tune nvme --help)

status shows servers, jobs, and which trainer owes what of the open round. jobs is about durable
jobs, running or resting on disk; delete removes a job's log, checkpoint and records from every
server, and refuses while trainers are attached. snapshot keeps the state that a round of a job
begins with under a name; verify reads all of it; restore makes a job NEW of it, which rests until
trainers attach with resume, on the servers there are now; fork does so without copying: NEW shares
the snapshot's files until its rounds have written its own. export has the servers write a job's
weights as safetensors files into a directory EXPORT below storage.export_dir; import makes a job
NEW of such a directory. tune measures a disk and needs no server.

  --force                delete: also while trainers are attached; they end with JOB_FAILED
  --keep N               snapshot create: remove the job's oldest until N are left
  --as NEW               snapshot restore and fork, import: name of the new job
  --world N              and its number of trainers (default: as it was)
  --snapshot NAME        export: that snapshot of the job (default: its present state)
  --name EXPORT          export: name of the directory (default: JOB and the time)
  --dtype native|...     export: of the weights (default: native, each tensor's own)
  --state                export: optimizer state, too, so that an import continues the job
  --consolidated         export: one file, written by one server, in place of one per server
  --endpoint HOST:PORT   a server to ask; may be repeated or hold a list with commas
                         (default: BALLAST_ENDPOINTS)
  -o table|json          form of the output (default: table)
  --version, --help

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a server cannot be reached.
)";

// Commas and blanks separate endpoints, as they do for trainers.
absl::Status AddEndpoints(const std::string& text, Options* options) {
  for (const absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar(", \t\r\n"), absl::SkipEmpty())) {
    if (const absl::Status status = ParseEndpoint(part).status(); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(options->source, ": ", status.message()));
    }
    options->endpoints.emplace_back(part.data(), part.size());
  }
  return absl::OkStatus();
}

absl::Status SetOption(const std::string& flag, const std::string& value, Options* options) {
  if (flag == "--endpoint") return AddEndpoints(value, options);
  const std::map<std::string, std::string*> texts = {{"--as", &options->as},
                                                     {"--snapshot", &options->snapshot},
                                                     {"--name", &options->name},
                                                     {"--dtype", &options->dtype}};
  if (const auto text = texts.find(flag); text != texts.end()) {
    if (value.empty()) return absl::InvalidArgumentError(absl::StrCat(flag, " needs a value"));
    *text->second = value;
    return absl::OkStatus();
  }
  if (flag == "--keep" || flag == "--world") {
    uint32_t* const to = flag == "--keep" ? &options->keep : &options->world;
    if (absl::SimpleAtoi(value, to) && *to > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " takes a number from 1 on, not \"", value, "\""));
  }
  if (value == "table" || value == "json") {
    options->json = value == "json";
  } else {
    return absl::InvalidArgumentError(absl::StrCat("-o takes table or json, not \"", value, "\""));
  }
  return absl::OkStatus();
}

// Flags that a value follows, besides -o.
const std::vector<std::string>& ValueFlags() {
  static const auto* const flags = new std::vector<std::string>{
      "--endpoint", "--output", "--keep", "--as", "--world", "--snapshot", "--name", "--dtype"};
  return *flags;
}

absl::Status UnknownArgument(const std::string& argument, const std::string& flag) {
  std::vector<std::string> all = ValueFlags();
  all.insert(all.end(), {"--force", "--state", "--consolidated", "--help"});
  const std::string near = DidYouMean(flag, all);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown argument ", argument,
                   near.empty() ? "" : absl::StrCat(" (did you mean ", near, "?)")));
}

// Sets the switch that `argument` names; false when it names none.
bool SetSwitch(const std::string& argument, Options* options) {
  const std::map<std::string, bool*> switches = {{"--help", &options->help},
                                                 {"-h", &options->help},
                                                 {"--force", &options->force},
                                                 {"--state", &options->state},
                                                 {"--consolidated", &options->consolidated}};
  const auto one = switches.find(argument);
  if (one == switches.end()) return false;
  *one->second = true;
  return true;
}

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (SetSwitch(argument, &options)) continue;
    if (!absl::StartsWith(argument, "-")) {
      options.words.push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    const std::vector<std::string>& flags = ValueFlags();
    if (flag != "-o" && std::find(flags.begin(), flags.end(), flag) == flags.end()) {
      return UnknownArgument(argument, flag);
    }
    if (equals == std::string::npos && i + 1 == arguments.size()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " needs a value"));
    }
    const std::string value =
        equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (const absl::Status status = SetOption(flag, value, &options); !status.ok()) return status;
  }
  const char* endpoints = std::getenv("BALLAST_ENDPOINTS");
  if (options.endpoints.empty() && endpoints != nullptr) {
    options.source = "BALLAST_ENDPOINTS";
    if (const absl::Status status = AddEndpoints(endpoints, &options); !status.ok()) return status;
  }
  return options;
}

// `jobs list` and, with a name, `jobs show`.
int ListJobs(const Options& options, const std::string& name) {
  std::string endpoint = options.endpoints.front();
  absl::StatusOr<v1::ListJobsReply> reply = AskHome<v1::ListJobsReply>(
      &endpoint, method::kAdminListJobs, v1::ListJobsRequest(), kTimeoutS);
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  v1::ListJobsReply shown;
  for (const v1::DurableJob& job : reply->jobs()) {
    if (name.empty() || job.name() == name) *shown.add_jobs() = job;
  }
  if (!name.empty() && shown.jobs().empty()) {
    std::cerr << "ballastctl: there is no durable job \"" << name << "\" at " << endpoint << "\n";
    return kFailure;
  }
  std::cout << (options.json ? server::JobsJson(shown) : server::JobsTable(shown));
  return std::cout.flush() ? 0 : kFailure;
}

int DeleteJob(const Options& options, const std::string& name) {
  std::string endpoint = options.endpoints.front();
  v1::DeleteJobRequest request;
  request.set_name(name);
  request.set_force(options.force);
  const absl::StatusOr<v1::DeleteJobReply> reply =
      AskHome<v1::DeleteJobReply>(&endpoint, method::kAdminDeleteJob, request, kDeleteTimeoutS);
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  std::cout << "deleted " << name << "\n";
  return std::cout.flush() ? 0 : kFailure;
}

int Jobs(const Options& options) {
  const std::vector<std::string>& words = options.words;
  const bool list = words.size() == 1 && words[0] == "list";
  const bool show = words.size() == 2 && words[0] == "show";
  const bool remove = words.size() == 2 && words[0] == "delete";
  if (!list && !show && !remove) {
    std::cerr << "ballastctl: jobs takes list, show NAME or delete NAME\n";
    return kUsageError;
  }
  if (remove) return DeleteJob(options, words[1]);
  return ListJobs(options, show ? words[1] : "");
}

int ShowSnapshots(const Options& options, const v1::ListSnapshotsReply& shown) {
  std::cout << (options.json ? server::SnapshotsJson(shown) : server::SnapshotsTable(shown));
  return std::cout.flush() ? 0 : kFailure;
}

// `snapshot list` and, with a name, `snapshot show`.
int ListSnapshots(const Options& options, const std::string& job, const std::string& name) {
  std::string endpoint = options.endpoints.front();
  v1::ListSnapshotsRequest request;
  request.set_job(job);
  const auto reply =
      AskHome<v1::ListSnapshotsReply>(&endpoint, method::kAdminListSnapshots, request, kTimeoutS);
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  v1::ListSnapshotsReply shown;
  for (const v1::Snapshot& one : reply->snapshots()) {
    if (name.empty() || one.name() == name) *shown.add_snapshots() = one;
  }
  if (name.empty() || !shown.snapshots().empty()) return ShowSnapshots(options, shown);
  std::cerr << "ballastctl: job \"" << job << "\" has no snapshot \"" << name << "\" at "
            << endpoint << "\n";
  return kFailure;
}

// create, verify and delete.
int ChangeSnapshot(const Options& options, const char* method, const char* done) {
  std::string endpoint = options.endpoints.front();
  v1::SnapshotRequest request;
  request.set_job(options.words[1]);
  request.set_name(options.words[2]);
  request.set_keep(options.keep);
  const auto reply = [&] {
    const WorkWatch watch(endpoint, [&](const v1::Work& work) {
      return work.kind() == "snapshot" && work.name() == request.job();
    });
    return AskHome<v1::SnapshotReply>(&endpoint, method, request, kWholeStateTimeoutS);
  }();
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  if (!options.json) std::cout << done << " " << request.job() << " " << request.name() << "\n";
  v1::ListSnapshotsReply shown;
  *shown.add_snapshots() = reply->snapshot();
  return ShowSnapshots(options, shown);
}

// `share`: fork.
int RestoreSnapshot(const Options& options, bool share) {
  std::string endpoint = options.endpoints.front();
  v1::RestoreSnapshotRequest request;
  request.set_job(options.words[1]);
  request.set_name(options.words[2]);
  request.set_as(options.as);
  request.set_world(options.world);
  request.set_share(share);
  const auto reply = [&] {
    const WorkWatch watch(endpoint, [&](const v1::Work& work) {
      return work.kind() == "restore" && work.name() == request.as();
    });
    return AskHome<v1::RestoreSnapshotReply>(&endpoint, method::kAdminRestoreSnapshot, request,
                                             kWholeStateTimeoutS);
  }();
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  if (!reply->copied().empty()) std::cerr << "ballastctl: " << reply->copied() << "\n";
  v1::ListJobsReply shown;
  *shown.add_jobs() = reply->job();
  std::cout << (options.json ? server::JobsJson(shown) : server::JobsTable(shown));
  return std::cout.flush() ? 0 : kFailure;
}

int Snapshots(const Options& options) {
  const std::vector<std::string>& words = options.words;
  const std::string verb = words.empty() ? "" : words[0];
  if (verb == "list" && words.size() <= 2) {
    return ListSnapshots(options, words.size() == 2 ? words[1] : "", "");
  }
  if (words.size() == 3) {
    if (verb == "show") return ListSnapshots(options, words[1], words[2]);
    if (verb == "create") return ChangeSnapshot(options, method::kAdminCreateSnapshot, "taken");
    if (verb == "verify") return ChangeSnapshot(options, method::kAdminVerifySnapshot, "whole");
    if (verb == "delete") return ChangeSnapshot(options, method::kAdminDeleteSnapshot, "deleted");
    const bool fork = verb == "fork";
    if ((fork || verb == "restore") && !options.as.empty()) return RestoreSnapshot(options, fork);
  }
  std::cerr << "ballastctl: snapshot takes create|show|verify|delete JOB NAME, list [JOB] or "
               "fork|restore JOB NAME --as NEW\n";
  return kUsageError;
}

int Status(const Options& options) {
  if (!options.words.empty()) {
    std::cerr << "ballastctl: status takes no " << options.words.front() << "\n";
    return kUsageError;
  }
  std::vector<v1::StatusReply> replies;
  int code = 0;
  for (const std::string& endpoint : options.endpoints) {
    absl::StatusOr<v1::StatusReply> reply =
        Ask<v1::StatusReply>(endpoint, method::kAdminStatus, v1::StatusRequest(), kTimeoutS);
    if (reply.ok()) {
      replies.push_back(*std::move(reply));
      continue;
    }
    std::cerr << "ballastctl: " << ErrorText(endpoint, options.source, reply.status()) << "\n";
    code = std::max(code, IsUnreachable(reply.status()) ? kUnreachable : kFailure);
  }
  if (!replies.empty() || options.json) {
    std::cout << (options.json ? server::StatusJson(replies) : server::StatusTable(replies));
  }
  return std::cout.flush() ? code : kFailure;
}

int Tune(const std::vector<std::string>& arguments) {
  if (arguments.size() > 1 && arguments[1] == "nvme") {
    return TuneMain(std::vector<std::string>(arguments.begin() + 2, arguments.end()));
  }
  std::cerr << "ballastctl: tune measures \"nvme\" only"
            << (arguments.size() > 1 ? ", not \"" + arguments[1] + "\"" : "")
            << ": ballastctl tune nvme --path DIR\n";
  return kUsageError;
}

// Runs a command that asks servers.
int AskServers(const std::string& command, const Options& options) {
  if (options.endpoints.empty()) {
    std::cerr << "ballastctl: no server to ask; give --endpoint or set BALLAST_ENDPOINTS\n";
    return kUsageError;
  }
  if (command == "snapshot") return Snapshots(options);
  if (command == "export") return Export(options);
  if (command == "import") return Import(options);
  return command == "jobs" ? Jobs(options) : Status(options);
}

int Main(const std::vector<std::string>& arguments) {
  // Unreachable servers are reported by us, in one line.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  const std::string command = arguments.empty() ? "" : arguments[0];
  if (command == "--help" || command == "-h") {
    std::cout << kUsage;
    return 0;
  }
  if (command == "--version") {
    std::cout << "ballastctl " << BALLAST_VERSION << "\n";
    return 0;
  }
  if (command == "tune") return Tune(arguments);
  const std::set<std::string> commands = {"status", "jobs", "snapshot", "export", "import"};
  if (commands.count(command) == 0) {
    if (!command.empty()) std::cerr << "ballastctl: unknown command " << command << "\n";
    std::cerr << kUsage;
    return kUsageError;
  }
  const absl::StatusOr<Options> options =
      ParseOptions(std::vector<std::string>(arguments.begin() + 1, arguments.end()));
  if (!options.ok()) {
    std::cerr << "ballastctl: " << options.status().message() << "; see ballastctl --help\n";
    return kUsageError;
  }
  if (options->help) {
    std::cout << kUsage;
    return 0;
  }
  return AskServers(command, *options);
}

}  // namespace
}  // namespace ballast::tools

int main(int argc, char** argv) {
  return ballast::tools::Main(std::vector<std::string>(argv + 1, argv + argc));
}
