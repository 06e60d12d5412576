// `ballastctl jobs`: durable jobs, running or resting on disk.
// Comes from: ballastctl. Goes to: the jobs' home. Thread safety: the main thread.
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "ballast/v1/admin.pb.h"
#include "common/base/names.h"
#include "proto/convert/methods.h"
#include "server/rpc/status_text.h"
#include "tools/admin_call.h"
#include "tools/command.h"
#include "tools/output.h"

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
  };
}

}  // namespace ballast::tools
