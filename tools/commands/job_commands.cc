// `ballastctl jobs`: durable jobs, running or resting on disk.
// Comes from: ballastctl. Goes to: the jobs' home. Thread safety: the main thread.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ballast/v1/admin.pb.h"
#include "common/base/reason.h"
#include "common/text/names.h"
#include "proto/convert/methods.h"
#include "server/status/status_text.h"
#include "tools/commands/cluster_view.h"
#include "tools/ctl/admin_call.h"
#include "tools/ctl/command.h"
#include "tools/ctl/output.h"

namespace ballast::tools {
namespace {

// `jobs list` and, with a name, `jobs show`.
int ListJobs(const Options& options, const std::string& name) {
  std::string endpoint = FirstThatServes(options);
  v1::ListJobsRequest request;
  request.set_tenant(options.tenant);
  absl::StatusOr<v1::ListJobsReply> reply =
      AskHome<v1::ListJobsReply>(&endpoint, method::kAdminListJobs, request, kTimeoutS);
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  v1::ListJobsReply shown;
  for (const v1::DurableJob& job : reply->jobs()) {
    if (name.empty() || job.name() == name) *shown.add_jobs() = job;
  }
  if (!name.empty() && shown.jobs().empty()) {
    std::cerr << "ballastctl: there is no durable job " << Quoted(name) << " at " << endpoint
              << "\n";
    return kNotFound;
  }
  return Print(options, server::JobsTable(shown), server::JobsJson(shown));
}

int DeleteJob(const Options& options) {
  const std::string& name = options.words[0];
  std::string endpoint = FirstThatServes(options);
  v1::DeleteJobRequest request;
  request.set_name(name);
  request.set_force(options.force);
  request.set_tenant(options.tenant);
  const absl::StatusOr<v1::DeleteJobReply> reply =
      AskHome<v1::DeleteJobReply>(&endpoint, method::kAdminDeleteJob, request, kDeleteTimeoutS);
  if (!reply.ok()) return Failed(endpoint, options, reply.status());
  return Print(options, absl::StrCat("deleted ", name, "\n"),
               absl::StrCat("{\"deleted\": ", server::JsonText(name), "}\n"));
}

// Each server opens its own files, so each one is asked.
int RetryJob(const Options& options) {
  const std::string& name = options.words[0];
  const ClusterView view = AskCluster(options, v1::StatusRequest());
  int code = SayWhoIsSilent(view, options);
  v1::RetryJobRequest request;
  request.set_name(name);
  request.set_tenant(options.tenant);
  std::vector<uint32_t> have, opened;
  for (const v1::StatusReply& server : view.servers) {
    const auto reply = Ask<v1::RetryJobReply>(server.address(), method::kAdminRetryJob, request,
                                              kWholeStateTimeoutS);
    if (ReasonOf(reply.status()) == Reason::kUnknownJob) continue;
    have.push_back(server.id());
    if (!reply.ok()) code = std::max(code, Failed(server.address(), options, reply.status()));
    if (reply.ok() && reply->opened()) opened.push_back(server.id());
  }
  if (have.empty() && code == 0) {
    std::cerr << "ballastctl: no server has a durable job " << Quoted(name) << "\n";
    return kNotFound;
  }
  if (code != 0) return code;
  const std::string ids = absl::StrJoin(opened, ", ");
  return Print(
      options,
      opened.empty() ? absl::StrCat("nothing is wrong with ", name, "\n")
                     : absl::StrCat("opened ", name, " on server ", ids, "\n"),
      absl::StrCat("{\"job\": ", server::JsonText(name), ", \"opened_on\": [", ids, "]}\n"));
}

}  // namespace

std::vector<Command> JobCommands() {
  return {
      {.name = "jobs list",
       .help = "durable jobs, running or resting on disk",
       .run = [](const Options& options) { return ListJobs(options, ""); },
       .flags = {"--tenant", "--watch", "--every"}},
      {.name = "jobs show",
       .words = "NAME",
       .help = "one durable job",
       .run = [](const Options& options) { return ListJobs(options, options.words[0]); },
       .flags = {"--tenant", "--watch", "--every"}},
      {.name = "jobs delete",
       .words = "NAME",
       .help = "remove a job from every server; refused while trainers are attached",
       .run = DeleteJob,
       .flags = {"--tenant", "--force"}},
      {.name = "jobs retry",
       .words = "NAME",
       .help = "open a damaged job again, when its files were put back",
       .run = RetryJob,
       .flags = {"--tenant"}},
  };
}

}  // namespace ballast::tools
